"""From the files of a run to a tokenizer and tokens on disk, each made once."""

import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from . import conversations, corpus, documents, tokenizer
from .conversations import Encoder
from .corpus import Corpus, Example
from .data_config import DataConfig
from .disk_cache import Cached, cached
from .documents import PYTHON_DOCS, DataError, Map
from .tokenizer import Tokenizer
from .workers import map_in_processes

Say = Callable[[str], object]

_EVERY = 10.0  # seconds between lines about progress
_LEFT_OUT = "left_out.txt"  # beside the tokens: records that could not be read, one per line
_NOTE = "note.txt"  # beside the tokens: messages about them, one per line
_LITTLE = 1 << 26  # bytes
_SHOWN = 5  # of the records left out


def prepare(
    config: DataConfig, folder: Path, vocab: int | None, say: Say
) -> tuple[Tokenizer, list[Corpus], list[Cached]]:
    """The tokenizer, and the tokens of each source and their folder, for a `Reader`."""
    if not config.files:
        raise DataError("data.files is empty: give files, folders or patterns")
    if (size := config.vocab or vocab) is None:
        raise DataError("data.vocab is null, and there is no model: set the size of the vocabulary")
    cache = folder / "data" if config.cache is None else Path(config.cache).expanduser()
    sources = _sources(config, say)
    files = [file for source in sources for file in source.files]

    def train_tokenizer(folder: Path) -> None:
        say(f"training a tokenizer of {size} tokens on {len(files)} files")
        pieces = itertools.chain.from_iterable(source.pieces() for source in sources)
        trained_on = (text for text, held_out in pieces if not held_out)
        tokenizer.train(_told(trained_on, say), size, folder)

    if config.kind != "text" and config.tokenizer is None:
        raise DataError(
            f"data.kind is {config.kind}, and data.tokenizer is null: give the model's "
            "tokenizer; one trained here cannot replace it"
        )
    sizes = [len(source.files) for source in sources[1:]]
    settings = [*sources[0].settings, *sizes, size]
    given = config.tokenizer
    known = tokenizer.load(given or cached(cache, files, settings, train_tokenizer, say).folder)
    if vocab is not None:  # Before everything is encoded, which takes long.
        known.check_fits(vocab)
    found = [source.tokens(known, cache) for source in sources]
    return known, [tokens for tokens, _ in found], [folder for _, folder in found]


def _sources(config: DataConfig, say: Say) -> list["_Source"]:
    """What a run reads: all files together, or with weights each entry of `data.files`."""
    entries = [[entry] for entry in config.files] if config.weights else [config.files]
    train, validation = [documents.find(e) for e in entries], documents.find(config.validation)
    every = {file for files in train for file in files}
    if both := sorted(every & {*validation}):
        raise DataError(
            f"{', '.join(both)}: both in data.files and in data.validation. Data used for "
            "training cannot be used for validation: remove it from one of them"
        )
    if config.kind != "text" and PYTHON_DOCS in every | {*validation}:
        raise DataError(
            f"data.kind is {config.kind}, and {PYTHON_DOCS} has no such records: give JSON "
            "lines, JSON or parquet in data.files"
        )
    return [
        _Source(config, files, validation if number == 0 else [], say)
        for number, files in enumerate(train)
    ]


class _Source:
    """Files that are read together: to train on, and to evaluate on if the settings name some.

    Attributes:
        files: all of them.
        settings: what determines the documents, besides the files.
    """

    def __init__(
        self, config: DataConfig, train: Sequence[str], validation: Sequence[str], say: Say
    ):
        self._config, self._say = config, say
        self._train, self._validation = train, validation
        self.files = [*train, *validation]
        held_out = None if config.validation and not validation else config.held_out
        self.settings = config.field, held_out, len(validation), config.skip_bad

    def tokens(self, known: Tokenizer, cache: Path) -> tuple[Corpus, Cached]:
        """The tokens of the files, and their folder in `cache`."""
        encoder = None if self._config.kind == "text" else Encoder(known, self._config)
        settings = [*self.settings, known.digest, *(encoder.settings if encoder else ())]
        write = functools.partial(self._write, known, encoder)
        stored = cached(cache, self.files, settings, write, self._say)
        found = corpus.load(stored.folder)
        _tell(stored.folder, found, self._say)
        return found, stored

    def _write(self, known: Tokenizer, encoder: Encoder | None, folder: Path) -> None:
        kind = "documents" if encoder is None else f"{self._config.kind} records"
        self._say(f"encoding the {kind} of {len(self.files)} files")
        left_out: list[str] = []
        seldom = _Seldom(self._say)

        def tell(documents: int, tokens: int) -> None:
            seldom(f"{documents:,} documents, {tokens:,} tokens so far")

        count = self._config.processes or _processes(self.files)
        mapped = map if count == 1 else functools.partial(map_in_processes, count)
        if encoder is None:
            corpus.write(self.pieces(left_out.append), known, folder, tell, mapped)
        else:
            found = self.examples(encoder, left_out.append, mapped)
            corpus.write_examples(found, known, folder, tell)
            (folder / _NOTE).write_text("\n".join(encoder.notes()), "utf-8")
        (folder / _LEFT_OUT).write_text("".join(f"{line}\n" for line in left_out), "utf-8")

    def pieces(
        self, leave_out: Callable[[str], object] = lambda text: None
    ) -> Iterator[tuple[str, bool]]:
        """Each document, and whether it is held out."""
        told = leave_out if self._config.skip_bad else None
        train, validation = (
            documents.read(files, self._config.field, told)
            for files in (self._train, self._validation)
        )
        if not self._config.validation:
            yield from documents.split(train, self._config.held_out)
            return
        yield from ((text, False) for text in train)
        yield from ((text, True) for text in validation)

    def examples(
        self, encoder: Encoder, leave_out: Callable[[str], object], mapped: Map
    ) -> Iterator[tuple[Example, bool]]:
        """Each conversation or answer, and whether it is held out."""
        told = leave_out if self._config.skip_bad else None
        train, validation = (
            filter(
                encoder.count,
                documents.records(files, conversations.FIELDS, encoder.examples, told, mapped),
            )
            for files in (self._train, self._validation)
        )
        if self._config.validation:
            divided = itertools.chain(
                zip(train, itertools.repeat(False)), zip(validation, itertools.repeat(True))
            )
        else:
            divided = conversations.split(train, self._config.held_out)
        if self._config.kind == "unpaired":
            divided = conversations.with_others(divided, self._config.seq)
        return ((example, held) for record, held in divided for example in record)


def _processes(files: Sequence[str]) -> int:
    """One for little data: starting others takes a second."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if documents.size(files) < _LITTLE else cpus


class _Seldom:
    """Prints a line if the last one is long enough ago."""

    def __init__(self, say: Say):
        self._say, self._last = say, time.monotonic()

    def __call__(self, text: str) -> None:
        if time.monotonic() - self._last >= _EVERY:
            self._say(text)
            self._last = time.monotonic()


def _told(texts: Iterator[str], say: Say) -> Iterator[str]:
    """The same texts, reporting now and then how many there were."""
    tell, characters = _Seldom(say), 0
    for number, text in enumerate(texts, 1):
        yield text
        characters += len(text)
        tell(f"{number:,} documents, {characters:,} characters so far")


def _tell(folder: Path, found: Corpus, say: Say) -> None:
    """Say what became of the records; raise an error if none is left."""
    left_out, notes = (
        (folder / name).read_text("utf-8").splitlines() if (folder / name).exists() else []
        for name in (_LEFT_OUT, _NOTE)
    )
    shown = "; ".join(left_out[:_SHOWN])
    if not len(found.train.ends) + len(found.held_out.ends):
        if left_out:
            raise DataError(f"all {len(left_out)} records are skipped: {shown}")
        if notes[1:]:
            raise DataError(f"{notes[-1]}, and no others are left: raise data.seq")
    for note in notes:
        say(note)
    if left_out:
        rest = f"; and others, see {folder / _LEFT_OUT}" if len(left_out) > _SHOWN else ""
        say(f"{len(left_out)} records are skipped: {shown}{rest}")
