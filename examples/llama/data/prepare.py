"""From the files of a run to a tokenizer and tokens on disk, each made once."""

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from . import conversations, corpus, documents, tokenizer
from .corpus import Corpus, Example
from .data_config import DataConfig
from .disk_cache import cached
from .documents import PYTHON_DOCS, DataError
from .tokenizer import Tokenizer

Say = Callable[[str], object]

_EVERY = 10.0  # seconds between lines about progress
_LEFT_OUT = "left_out.txt"  # beside the tokens: records that could not be read, one per line
_NOTE = "note.txt"  # beside the tokens: messages about them, one per line
_SHOWN = 5  # of the records left out


def prepare(
    config: DataConfig, folder: Path, vocab: int | None, say: Say
) -> tuple[Tokenizer, Corpus]:
    """The tokenizer and the tokens for a `Reader`, which explains the arguments."""
    if not config.files:
        raise DataError("data.files is empty: give files, folders or patterns")
    if (size := config.vocab or vocab) is None:
        raise DataError("data.vocab is null, and there is no model: set the size of the vocabulary")
    cache = folder / "data" if config.cache is None else Path(config.cache).expanduser()
    source = _Source(config, say)

    def train_tokenizer(folder: Path) -> None:
        say(f"training a tokenizer of {size} tokens on {source}")
        trained_on = (text for text, held_out in source.pieces() if not held_out)
        tokenizer.train(_told(trained_on, say), size, folder)

    def write_corpus(folder: Path) -> None:
        say(f"encoding the documents of {source}")
        left_out: list[str] = []
        tell = _Seldom(say)
        corpus.write(
            source.pieces(left_out.append),
            known,
            folder,
            lambda documents, tokens: tell(f"{documents:,} documents, {tokens:,} tokens so far"),
        )
        (folder / _LEFT_OUT).write_text("".join(f"{line}\n" for line in left_out), "utf-8")

    def made(settings: list[object], write: Callable[[Path], None]) -> Path:
        return cached(cache, source.files, [*source.settings, *settings], write, say)

    def write_examples(folder: Path) -> None:
        say(f"encoding the {config.kind} records of {source}")
        left_out: list[str] = []
        tell = _Seldom(say)
        corpus.write_examples(
            source.examples(encoder, left_out.append),
            known,
            folder,
            lambda examples, tokens: tell(f"{examples:,} texts, {tokens:,} tokens so far"),
        )
        (folder / _NOTE).write_text("\n".join(encoder.notes()), "utf-8")
        (folder / _LEFT_OUT).write_text("".join(f"{line}\n" for line in left_out), "utf-8")

    if config.kind != "text" and config.tokenizer is None:
        raise DataError(
            f"data.kind is {config.kind}, and data.tokenizer is null: give the model's "
            "tokenizer; one trained here cannot replace it"
        )
    known = tokenizer.load(config.tokenizer or made([size], train_tokenizer))
    if vocab is not None:  # Before everything is encoded, which takes long.
        known.check_fits(vocab)
    if config.kind == "text":
        tokens = made([known.digest], write_corpus)
    else:
        encoder = conversations.Encoder(known, config)
        tokens = made([known.digest, *encoder.settings], write_examples)
    found = corpus.load(tokens)
    _tell(tokens, found, say)
    return known, found


class _Source:
    """The documents of a run.

    Attributes:
        files: all files they are read from.
        settings: what determines them, besides the files.
    """

    def __init__(self, config: DataConfig, say: Say):
        self._config, self._say = config, say
        self._train = documents.find(config.files)
        self._validation = documents.find(config.validation)
        if both := sorted({*self._train} & {*self._validation}):
            raise DataError(
                f"{', '.join(both)}: both in data.files and in data.validation. Data used for "
                "training cannot be used for validation: remove it from one of them"
            )
        if config.kind != "text" and PYTHON_DOCS in (*self._train, *self._validation):
            raise DataError(
                f"data.kind is {config.kind}, and {PYTHON_DOCS} has no such records: give JSON "
                "lines, JSON or parquet in data.files"
            )
        self.files = [*self._train, *self._validation]
        self.settings = config.field, config.held_out, len(self._validation), config.skip_bad

    def __str__(self) -> str:
        return f"{len(self.files)} files"

    def pieces(
        self, leave_out: Callable[[str], object] = lambda text: None
    ) -> Iterator[tuple[str, bool]]:
        """Each document, and whether it is held out."""
        told = leave_out if self._config.skip_bad else None
        train, validation = (
            documents.read(files, self._config.field, told)
            for files in (self._train, self._validation)
        )
        if not self._validation:
            yield from documents.split(train, self._config.held_out)
            return
        yield from ((text, False) for text in train)
        yield from ((text, True) for text in validation)

    def examples(
        self, encoder: conversations.Encoder, leave_out: Callable[[str], object]
    ) -> Iterator[tuple[Example, bool]]:
        """Each conversation or answer, and whether it is held out."""
        told = leave_out if self._config.skip_bad else None
        train, validation = (
            filter(None, documents.records(files, conversations.FIELDS, encoder.examples, told))
            for files in (self._train, self._validation)
        )
        if self._validation:
            divided = itertools.chain(
                zip(train, itertools.repeat(False)), zip(validation, itertools.repeat(True))
            )
        else:
            divided = conversations.split(train, self._config.held_out)
        return ((example, held) for record, held in divided for example in record)


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
