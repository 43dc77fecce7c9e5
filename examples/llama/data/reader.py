"""The batches of a run, each computed from the data, the seed and the number of its step alone."""

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ..model import Batch
from . import corpus, mixture, packing
from .binning import Whole
from .corpus import Part
from .data_config import DataConfig
from .documents import DataError
from .length_batches import ByLength
from .mixture import Mixture
from .packing import Stream
from .prepare import prepare

_NAMES = {"text": "documents", "chat": "conversations", "pairs": "answers", "unpaired": "answers"}


class Position(NamedTuple):
    """How steps correspond to rows of the data."""

    since: int = 0  # steps that were made before the current data
    row: int = 0  # the row, counted over all epochs, that the first batch after those began with
    before: tuple[dict[str, Any], ...] = ()  # the earlier data, oldest first

    def row_at(self, step: int, batch: int) -> int:
        """The first row of the batch of a step, counted from 0."""
        return self.row + (step - self.since) * batch

    def changed(self, step: int, was: dict[str, Any], *, rows_go_on: bool) -> "Position":
        """The position of a run whose data change after `step`, and were those of `was` before.

        If `rows_go_on`, the rows are the same, and the remaining ones come next.
        """
        ended = was | {"since": self.since, "row": self.row, "until": step}
        row = self.row_at(step, was["batch"]) if rows_go_on else 0
        return Position(step, row, (*self.before, ended))


class DataChangedError(DataError):
    """A run would continue with different data, or in another order, than it began with."""


class Reader:
    """The batches of a run.

    Args:
        config: what is read.
        folder: the run's folder; prepared data go into `data` there, unless `config` names a cache.
        vocab: size of the model's vocabulary, which must hold all tokens; None: any.
        say: called with messages about whatever takes long.
        rows: numbers of the rows of a batch that this process needs, if there are several; None:
            all. With `config.dynamic` a batch is always whole.
    """

    def __init__(
        self,
        config: DataConfig,
        folder: str | Path,
        vocab: int | None = None,
        say: Callable[[str], object] = lambda text: None,
        rows: Sequence[int] | None = None,
    ) -> None:
        self.config, self._position = config, Position()
        self.tokenizer, self._corpora, self._stored = prepare(config, Path(folder), vocab, say)
        self._weights = mixture.whole(config.weights or (1,))
        train, held_out, _ = zip(*self._corpora, strict=True)
        self._check_amounts(train, held_out)
        some = rows is not None and not config.dynamic
        self._rows = np.array(rows) if some else np.arange(config.batch)
        self._train = Mixture(
            [_rows(config, part, dynamic=config.dynamic) for part in train], self._weights
        )
        packed = [_rows(config, part, dynamic=False) for part in held_out if len(part.tokens)]
        self._held_out = Mixture(packed, [part.rows for part in packed])
        if not all(part.rows for part in self._train.sources):
            raise DataError("no document to train on has two tokens: use more text")
        self.held_out_batches = -(-sum(part.rows for part in packed) // config.batch)

    def _check_amounts(self, train: Sequence[Part], held_out: Sequence[Part]) -> None:
        """Raise an error if there is too little of something."""
        config = self.config
        for files, part in zip(config.files, train, strict=False):
            if config.kind == "text" and not config.dynamic and len(part.tokens) < config.seq:
                which = f" of {files!r}" if config.weights else ""
                raise DataError(
                    f"the {len(part.tokens)} tokens{which} to train on do not fill one row of "
                    f"{config.seq}: use more text, or a smaller seq"
                )
        if not any(len(part.tokens) for part in held_out):
            count = sum(len(part.ends) for part in train)
            raise DataError(
                f"none of {count} {_NAMES[config.kind]} is held out: "
                f"use a larger part than {config.held_out}, or more text"
                if not config.validation
                else "data.validation has no text: give other files"
            )

    def __str__(self) -> str:
        train, held_out, _ = zip(*self._corpora, strict=True)
        tokens, documents = _counts(train)
        text = f"{tokens:,} tokens of {documents:,} {_NAMES[self.config.kind]} to train on"
        if self.config.weights:
            shares = zip(self._weights, self.config.files, strict=True)
            each = (f"{weight / sum(self._weights):.1%} {files}" for weight, files in shares)
            text += f" ({', '.join(each)})"
        tokens, documents = _counts(held_out)
        return f"{text}, {tokens:,} of {documents:,} held out"

    def batch(self, step: int) -> Batch:
        """The batch of one step, counted from 0."""
        first = self._position.row_at(step, self.config.batch)
        return _batch(self._train.batch(first + self._rows))

    def check(self, *, wait: bool = True) -> None:
        """Raise a `DataError` if tokens that were read are damaged.

        Those of large data are compared with their checksums while batches are read already;
        without `wait`, this says what is known so far.
        """
        for stored in self._stored:
            stored.check(wait=wait)

    def widths(self) -> list[int]:
        """The width of each batch of an epoch, with `config.dynamic`."""
        [rows] = self._train.sources
        assert isinstance(rows, ByLength)
        return rows.widths()

    def held_out(self, number: int) -> Batch:
        """One of the `held_out_batches`; rows of the last may be empty."""
        if not 0 <= number < self.held_out_batches:
            raise IndexError(f"no batch {number}: {self.held_out_batches} are held out")
        rows = number * self.config.batch + self._rows
        return _batch(self._held_out.batch(rows, shuffled=False))

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint keeps to continue with the batch of `step`, as plain JSON values."""
        return {"step": step, **self._made_of(), **self._position._asdict()}

    def go_on(self, state: dict[str, Any], new_data: bool = False) -> str:
        """Continue after the batches of a run with this `state`; a message about new data, if any.

        Raises:
            DataChangedError: the data, or their order, differ without `new_data`; or the tokenizer
                does, whose token numbers the model has learned.
        """
        now, step = self._made_of(), state["step"]
        position = Position(state["since"], state["row"], tuple(state["before"]))
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
        return {
            "kind": self.config.kind,
            "dynamic": self.config.dynamic,
            "weights": self._weights,
            "order": f"of blocks of {packing.BLOCK:,} documents",
            "text": corpus.fingerprint(self._corpora),
            "tokenizer": self.tokenizer.digest,
            "batch": self.config.batch,
            "seq": self.config.seq,
            "seed": self.config.seed,
        }


def _counts(parts: Iterable[Part]) -> tuple[int, int]:
    """How many tokens and documents there are."""
    tokens, documents = zip(*((len(part.tokens), len(part.ends)) for part in parts), strict=True)
    return sum(tokens), sum(documents)


def _rows(config: DataConfig, part: Part, *, dynamic: bool) -> mixture.Source:
    if dynamic:
        return ByLength(part, config.seq, config.batch, config.seed)
    if config.kind == "text":
        return Stream(part, config.seq, config.seed)
    labelled = config.kind == "unpaired"
    group = 2 if labelled or config.kind == "pairs" else 1
    return Whole(part, config.seq, group, config.seed, labelled=labelled)


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
