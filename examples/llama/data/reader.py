"""The batches of a run, each computed from the data, the seed and the number of its step alone."""

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..model import Batch
from .binning import Whole
from .corpus import Part
from .data_config import DataConfig
from .documents import DataError
from .length_batches import ByLength, joined
from .packing import Stream
from .position import Position
from .prepare import prepare

_NAMES = {"text": "documents", "chat": "conversations", "pairs": "answers"}


class DataChangedError(DataError):
    """A run would continue with different data, or in another order, than it began with."""


class Reader:
    """The batches of a run.

    Args:
        config: what is read.
        folder: the run's folder; prepared data go into `data` there, unless `config` names a cache.
        say: called with messages about whatever takes long.
        vocab: size of the model's vocabulary, which must hold all tokens; None: any.
        rows: numbers of the rows of a batch that this process needs, if there are several; None:
            all. With `config.dynamic` a batch is always whole.

    Attributes:
        config: what is read.
        tokenizer: the one given, or one trained on the data that is not held out.
        held_out_batches: how many batches the held-out data make.
    """

    def __init__(
        self,
        config: DataConfig,
        folder: str | Path,
        vocab: int | None = None,
        say: Callable[[str], object] = lambda text: None,
        rows: Sequence[int] | None = None,
    ) -> None:
        self.tokenizer, self._corpus = prepare(config, Path(folder), vocab, say)
        train, held_out, _ = self._corpus
        if config.kind == "text" and not config.dynamic and len(train.tokens) < config.seq:
            raise DataError(
                f"the {len(train.tokens)} tokens to train on do not fill one row of {config.seq}: "
                f"use more text, or a smaller seq"
            )
        if not len(held_out.tokens):
            raise DataError(
                f"none of {len(train.ends)} {_NAMES[config.kind]} is held out: "
                f"use a larger part than {config.held_out}, or more text"
                if not config.validation
                else "data.validation has no text: give other files"
            )
        self.config, self._position = config, Position()
        some = rows is not None and not config.dynamic
        self._rows = np.array(rows) if some else np.arange(config.batch)
        self._train, self._held_out = _rows(config, train), _packed(config, held_out)
        if not self._train.rows:
            raise DataError("no document to train on has two tokens: use more text")
        self.held_out_batches = -(-self._held_out.rows // config.batch)

    def __str__(self) -> str:
        train, held_out, _ = self._corpus
        return (
            f"{len(train.tokens):,} tokens of {len(train.ends):,} {self._name} to train on, "
            f"{len(held_out.tokens):,} of {len(held_out.ends):,} held out"
        )

    def batch(self, step: int) -> Batch:
        """The batch of one step, counted from 0."""
        first = self._position.row_at(step, self.config.batch)
        numbers = first + self._rows  # of the rows, over all epochs
        epochs, places = np.divmod(numbers, self._train.rows)
        parts = [
            self._train.batch(int(number), places[epochs == number]) for number in np.unique(epochs)
        ]
        return _batch(joined(parts))

    def widths(self) -> list[int]:
        """The width of each batch of an epoch, with `config.dynamic`."""
        assert isinstance(self._train, ByLength)
        return self._train.widths()

    def held_out(self, number: int) -> Batch:
        """One of the `held_out_batches`; rows of the last may be empty."""
        if not 0 <= number < self.held_out_batches:
            raise IndexError(f"no batch {number}: {self.held_out_batches} are held out")
        rows = number * self.config.batch + self._rows
        return _batch(self._held_out.batch(None, rows))

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint keeps to continue with the batch of `step`, as plain JSON values."""
        return {"step": step, **self._made_of(), **self._position._asdict()}

    def go_on(self, state: dict[str, Any], new_data: bool = False) -> str:
        """Continue after the batches of a run with this `state`.

        Args:
            state: as the method of that name returned it, in this or an earlier version.
            new_data: whether the data may differ from the run's from here on.

        Returns:
            A message about new data, if any.

        Raises:
            DataChangedError: the data, or their order, differ without `new_data`; or the tokenizer
                does, whose token numbers the model has learned.
        """
        unset = {key: None for key in ("kind", "dynamic") if state.get(key)}
        now, step, position = unset | self._made_of(), state["step"], Position.of(state)
        was = {key: state.get(key) for key in now}
        differ = [key for key in now if was[key] != now[key]]
        changed = "; ".join(f"{key} was {was[key]}, is {now[key]}" for key in differ)
        if not changed:
            self._position = position
            return ""
        if not new_data:
            raise DataChangedError(
                f"the data is not that of the checkpoint: {changed}. "
                f"Resume with the files and settings of the run, or start another run. To "
                f"resume with other data or another batch size, use fit --new-data"
            )
        if "tokenizer" in differ:
            raise DataChangedError(
                "the tokenizer is not that of the checkpoint, whose tokens the model has learned: "
                "set data.tokenizer to the folder `tokenizer` in the run's folder"
            )
        self._position = position.changed(step, was, rows_go_on=differ == ["batch"])
        return f"from step {step + 1} on the data is different: {changed}"

    def _made_of(self) -> dict[str, Any]:
        """What determines the batches of steps."""
        kind = self.config.kind
        return {
            # Earlier versions had no others.
            **({} if kind == "text" else {"kind": kind}),
            **({"dynamic": True} if self.config.dynamic else {}),
            "text": self._corpus.fingerprint,
            "tokenizer": self.tokenizer.digest,
            "batch": self.config.batch,
            "seq": self.config.seq,
            "seed": self.config.seed,
        }

    @property
    def _name(self) -> str:
        return _NAMES[self.config.kind]


def _rows(config: DataConfig, part: Part) -> Stream | Whole | ByLength:
    if config.dynamic:
        return ByLength(part, config.seq, config.batch, config.seed)
    return _packed(config, part)


def _packed(config: DataConfig, part: Part) -> Stream | Whole:
    if config.kind == "text":
        return Stream(part, config.seq, config.seed)
    return Whole(part, config.seq, 2 if config.kind == "pairs" else 1, config.seed)


def _batch(arrays: Iterable[np.ndarray]) -> Batch:
    return Batch(*map(torch.from_numpy, arrays))


def prefetch(batch: Callable[[int], Batch], steps: range, ahead: int = 2) -> Generator[Batch]:
    """The batches of `steps`, computed in a thread while the caller uses the ones before.

    An error of the thread is raised here. At most `ahead` batches wait.
    """
    pool, coming = ThreadPoolExecutor(1, "reader"), iter(steps)
    try:
        waiting = deque(pool.submit(batch, step) for step in itertools.islice(coming, ahead))
        while waiting:
            ready = waiting.popleft().result()
            waiting.extend(pool.submit(batch, step) for step in itertools.islice(coming, 1))
            yield ready
    finally:  # also when the caller closes the generator
        pool.shutdown(cancel_futures=True)
