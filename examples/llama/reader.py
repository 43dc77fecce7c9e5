"""The batches of a run, each computed from the data, the seed and the number of its step alone."""

import functools
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from . import corpus, documents, tokenizer
from .disk_cache import cached
from .documents import PYTHON_DOCS, DataError
from .model import Batch
from .packing import Epoch, in_order, pack, shuffled


class DataChangedError(DataError):
    """A run would go on with other data, or in another order, than it began with."""


@dataclass(frozen=True)
class DataConfig:
    """What is read, and how much of it a step takes.

    Attributes:
        files: text, JSON lines and parquet files, folders of them, or patterns; `python-docs` is
            the language reference inside Python.
        field: what holds the text in JSON and parquet.
        tokenizer: a tokenizer.json, or a folder with one; None: one is trained on the data.
        vocab: tokens of the one that is trained.
        batch: rows of a batch, of all hosts together.
        seq: tokens of a row.
        held_out: the part of the documents that is never trained on.
        seed: of the order.
        cache: a folder, which runs may share, for what is made of the data; None: the run's own.
    """

    files: tuple[str, ...] = (PYTHON_DOCS,)
    field: str = "text"
    tokenizer: str | None = None
    vocab: int = 2048
    batch: int = 8
    seq: int = 128
    held_out: float = 0.1
    seed: int = 0
    cache: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("seq", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise DataError(f"{name} is {getattr(self, name)}: use {least} or more")
        if not 0 < self.held_out < 1:
            raise DataError(f"held_out is {self.held_out}: use a part between 0 and 1")


class Reader:
    """The batches of a run.

    Args:
        config: what is read.
        folder: the run's folder: what is made of the data goes to `data` in it, unless `config`
            names a cache.
        say: is told of what takes long.
        vocab: of the model that is trained, which shall have all tokens; None: of any.

    Attributes:
        config: what is read.
        tokenizer: the one given, or one trained on what is not held out.
        held_out_batches: how many batches hold all that is held out.
    """

    def __init__(
        self,
        config: DataConfig,
        folder: str | Path,
        vocab: int | None = None,
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        if not config.files:
            raise DataError("data.files is empty: give files, folders or patterns")
        cache = Path(folder, "data") if config.cache is None else Path(config.cache).expanduser()
        files = documents.find(config.files)
        settings = config.field, config.held_out

        def pieces() -> Iterator[tuple[str, bool]]:
            return documents.split(documents.read(files, config.field), config.held_out)

        def train_tokenizer(folder: Path) -> None:
            say(f"a tokenizer of {config.vocab} tokens is trained on {len(files)} files")
            tokenizer.train((text for text, held in pieces() if not held), config.vocab, folder)

        def write_corpus(folder: Path) -> None:
            say(f"the documents of {len(files)} files are encoded")
            corpus.write(pieces(), self.tokenizer, folder)

        self.tokenizer = tokenizer.load(
            config.tokenizer or cached(cache, files, [*settings, config.vocab], train_tokenizer)
        )
        if vocab is not None:  # Before all is encoded, which takes long.
            self.tokenizer.check_fits(vocab)
        self._corpus = corpus.load(
            cached(cache, files, [*settings, self.tokenizer.digest], write_corpus)
        )
        train, held_out, _ = self._corpus
        if len(train.tokens) < config.seq:
            raise DataError(
                f"the {len(train.tokens)} tokens to train on do not fill a row of {config.seq}: "
                f"use more text, or a smaller seq"
            )
        if not len(held_out.tokens):
            raise DataError(
                f"none of {len(train.ends)} documents is held out: "
                f"use a larger part than {config.held_out}, or more text"
            )
        self.config, self._rows = config, np.arange(config.batch)
        self._epoch = functools.lru_cache(2)(  # A batch may lie in two.
            lambda number: shuffled(train.ends, config.seq, (config.seed, number))
        )
        self._in_order = in_order(held_out.ends, config.seq)
        self.held_out_batches = -(-len(self._in_order.rows) // config.batch)

    def __str__(self) -> str:
        train, held_out, _ = self._corpus
        return (
            f"{len(train.tokens):,} tokens of {len(train.ends):,} documents to train on, "
            f"{len(held_out.tokens):,} of {len(held_out.ends):,} held out"
        )

    def batch(self, step: int) -> Batch:
        """The batch of one step, counted from 0."""
        numbers = step * self.config.batch + self._rows  # of the rows, over all epochs
        epochs, places = np.divmod(numbers, len(self._epoch(0).rows))
        parts = []
        for number in np.unique(epochs):
            epoch = self._epoch(int(number))
            parts.append(
                self._pack(self._corpus.train, epoch, epoch.rows[places[epochs == number]])
            )
        return Batch(*map(torch.cat, zip(*parts, strict=True)))

    def held_out(self, number: int) -> Batch:
        """One of the `held_out_batches`; rows of the last may be empty."""
        if not 0 <= number < self.held_out_batches:
            raise IndexError(f"no batch {number}: {self.held_out_batches} are held out")
        rows = number * self.config.batch + self._rows
        return self._pack(self._corpus.held_out, self._in_order, rows)

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint keeps to go on with the batch of `step`, as plain values for JSON."""
        return {
            "step": step,
            "text": self._corpus.fingerprint,
            "tokenizer": self.tokenizer.digest,
            "batch": self.config.batch,
            "seq": self.config.seq,
            "seed": self.config.seed,
        }

    def check(self, state: dict[str, Any]) -> None:
        """Raise an error if a run with this `state` had batches in another order."""
        now = self.state(state["step"])
        changed = [f"{k} was {state.get(k)}, is {now[k]}" for k in now if state.get(k) != now[k]]
        if changed:
            raise DataChangedError(
                f"the data is not that of the checkpoint: {'; '.join(changed)}. "
                f"Go on with the files and settings of the run, or begin another run"
            )

    def _pack(self, part: corpus.Part, epoch: Epoch, rows: Int[np.ndarray, " rows"]) -> Batch:
        packed = pack(part.tokens, epoch, rows, self.config.seq)
        return Batch(*map(torch.from_numpy, packed))


def prefetch(batch: Callable[[int], Batch], steps: range, ahead: int = 2) -> Generator[Batch]:
    """The batches of `steps`, computed in a thread while the caller uses those before.

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
