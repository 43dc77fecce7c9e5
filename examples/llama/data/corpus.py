"""All documents as tokens, in flat files that are mapped into memory."""

import contextlib
import functools
import hashlib
import itertools
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt

from .documents import Map
from .tokenizer import Tokenizer, slices

_PARTS = ("train", "held_out")
_CHUNK = 1 << 22  # characters that are encoded at a time


class Part(NamedTuple):
    """Documents one after the other: their tokens, and where in these each document ends.

    For conversations it also knows which tokens are learned: those of the answers.
    """

    tokens: UInt[np.ndarray, " tokens"]
    ends: Int[np.ndarray, " documents"]
    learned: Bool[np.ndarray, " tokens"] | None = None


class Example(NamedTuple):
    """A document that consists of tokens already, and which of them are learned.

    It has so many answers, and from some of them, `rewritten`, nothing is learned: see
    `Template.answers`. It may be `truncated` to fit into a row.
    """

    tokens: Sequence[int]
    learned: Sequence[bool]
    answers: int = 1
    rewritten: int = 0
    truncated: bool = False


class Corpus(NamedTuple):
    """What there is to train on, what is held out, and a hash of the text of both."""

    train: Part
    held_out: Part
    fingerprint: str


def write(
    pieces: Iterable[tuple[str, bool]],
    tokenizer: Tokenizer,
    folder: Path,
    tell: Callable[[int, int], object] = lambda documents, tokens: None,
    mapped: Map = map,
) -> None:
    """Encode documents, given with whether each is held out, into the files of a corpus.

    `tell` is given the numbers of documents and of tokens so far; `mapped` is like the builtin.
    """
    dtype = np.uint16 if tokenizer.size <= 1 << 16 else np.uint32
    begin, end = tokenizer.ends
    fingerprint, ends, sizes = hashlib.sha256(), (array("q"), array("q")), [0, 0]
    with (
        open(folder / "train.tokens", "wb") as train,
        open(folder / "held_out.tokens", "wb") as held_out,
    ):
        chunks, same = itertools.tee(_chunks(pieces))
        texts = ([piece.text for piece in chunk] for chunk in chunks)
        encode = functools.partial(_encode, tokenizer)
        for encoded, chunk in zip(mapped(encode, texts), same, strict=True):
            for piece, tokens in zip(chunk, encoded, strict=True):
                tokens = np.concatenate([begin * piece.first, tokens, end * piece.last])
                (held_out if piece.held_out else train).write(tokens.astype(dtype).tobytes())
                sizes[piece.held_out] += len(tokens)
                fingerprint.update(piece.text.encode())
                if piece.last:
                    ends[piece.held_out].append(sizes[piece.held_out])
                    fingerprint.update(b"\xff%d" % piece.held_out)  # UTF-8 has no byte 255
            tell(sum(map(len, ends)), sum(sizes))
    _finish(folder, ends, fingerprint.hexdigest(), np.dtype(dtype).name)


def write_examples(
    examples: Iterable[tuple[Example, bool]],
    tokenizer: Tokenizer,
    folder: Path,
    tell: Callable[[int, int], object] = lambda examples, tokens: None,
) -> None:
    """Write documents that are tokens already, given with whether each is held out; see `write`."""
    dtype = np.uint16 if tokenizer.size <= 1 << 16 else np.uint32
    fingerprint, ends, sizes = hashlib.sha256(), (array("q"), array("q")), [0, 0]
    with contextlib.ExitStack() as stack:
        tokens, learned = (
            [stack.enter_context(open(folder / f"{part}.{kind}", "wb")) for part in _PARTS]
            for kind in ("tokens", "learned")
        )
        for example, held_out in examples:
            for file, values in (
                (tokens, np.array(example.tokens, dtype)),
                (learned, np.array(example.learned, np.bool_)),
            ):
                file[held_out].write(values.tobytes())
                fingerprint.update(values.tobytes())
            sizes[held_out] += len(example.tokens)
            ends[held_out].append(sizes[held_out])
            fingerprint.update(b"%d %d;" % (held_out, len(example.tokens)))
            tell(sum(map(len, ends)), sum(sizes))
    _finish(folder, ends, fingerprint.hexdigest(), np.dtype(dtype).name)


def _finish(folder: Path, ends: Sequence[Sequence[int]], fingerprint: str, dtype: str) -> None:
    for part, found in zip(_PARTS, ends, strict=True):
        np.save(folder / f"{part}.ends.npy", np.array(found, np.int64))
    about = {"fingerprint": fingerprint, "dtype": dtype}
    (folder / "about.json").write_text(json.dumps(about), "utf-8")


def load(folder: Path) -> Corpus:
    """The corpus that `write` put into `folder`."""
    about = json.loads((folder / "about.json").read_text("utf-8"))
    train, held_out = (_part(folder, name, about["dtype"]) for name in _PARTS)
    return Corpus(train, held_out, about["fingerprint"])


def fingerprint(parts: Sequence[Corpus]) -> str:
    """A hash of the text of several corpora; that of one is its own."""
    if len(parts) == 1:
        return parts[0].fingerprint
    return hashlib.sha256(" ".join(part.fingerprint for part in parts).encode()).hexdigest()


def _part(folder: Path, name: str, dtype: str) -> Part:
    ends = np.load(folder / f"{name}.ends.npy", mmap_mode="r")
    answers = folder / f"{name}.learned"
    if not len(ends) or not ends[-1]:  # An empty file cannot be mapped.
        return Part(np.empty(0, dtype), ends)
    learned = np.memmap(answers, np.bool_, mode="r") if answers.exists() else None
    return Part(np.memmap(folder / f"{name}.tokens", dtype, mode="r"), ends, learned)


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """The tokens of each text, in arrays, which are quickly pickled."""
    return [np.array(tokens, np.uint32) for tokens in tokenizer.encode(texts)]


class _Piece(NamedTuple):
    text: str
    held_out: bool
    first: bool  # of its document
    last: bool


def _chunks(pieces: Iterable[tuple[str, bool]]) -> Iterator[list[_Piece]]:
    """Slices of the documents that are not blank, as large as memory allows."""
    chunk, characters = [], 0
    for document, held_out in pieces:
        parts = [] if document.isspace() else list(slices(document))
        for i, text in enumerate(parts):
            chunk.append(_Piece(text, held_out, first=i == 0, last=i == len(parts) - 1))
            characters += len(text)
            if characters >= _CHUNK:
                yield chunk
                chunk, characters = [], 0
    if chunk:
        yield chunk
