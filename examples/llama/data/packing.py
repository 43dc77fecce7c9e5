"""Rows of packed documents, found from the order of an epoch without the rows before.

All documents follow each other in one circular stream, which is cut into rows of `seq` tokens. A
document that does not fit continues in another row. Segment ids keep those of a row apart.

NOTE [blocks of documents]
More than `BLOCK` documents are such a stream for each `BLOCK` of them, in the order of the files:
documents are put in order within their block, when a row of it is asked for, and rows among all
blocks, by a permutation that is computed one by one. So an epoch takes neither memory nor time in
proportion to the number of documents.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Int32, UInt, UInt64

from ..model import IGNORE
from .corpus import Part

BLOCK = 1 << 14
_ROUNDS = 8  # of a permutation
_KEPT = 256  # blocks in order, of 256 KiB each


class Epoch(NamedTuple):
    """The stream of one pass over the documents."""

    sources: Int[np.ndarray, " documents"]  # where in the file each ends, in the stream's order
    ends: Int[np.ndarray, " documents"]  # where in the stream each ends
    shift: int  # where in the stream the first row begins
    rows: Int[np.ndarray, " rows"]  # the order in which the rows are used


def in_order(ends: Int[np.ndarray, " documents"], seq: int) -> Epoch:
    """Documents in the order of the file, where they end at `ends`, and rows from first to last."""
    return Epoch(ends, ends, 0, np.arange(-(-int(ends[-1]) // seq)))


def shuffled(ends: Int[np.ndarray, " documents"], seq: int, seed: Sequence[int]) -> Epoch:
    """Documents and rows in an order drawn from the seed, as is the start of the first row."""
    # numpy guarantees the raw bits of a generator across releases, but not permutations.
    draw = np.random.PCG64(seed).random_raw
    _, _, _, rows = in_order(ends, seq)
    order = np.argsort(draw(len(ends)), kind="stable")
    sizes = np.diff(ends, prepend=0)
    shift = int(draw() % int(ends[-1]))
    rows = np.argsort(draw(len(rows)), kind="stable")
    return Epoch(ends[order], np.cumsum(sizes[order]), shift, rows)


def pack(
    tokens: UInt[np.ndarray, " tokens"], epoch: Epoch, rows: Int[np.ndarray, " rows"], seq: int
) -> tuple[Int32[np.ndarray, "rows seq"], ...]:
    """Tokens, targets and segment ids of some rows of the stream; those past its end are empty."""
    total = int(epoch.ends[-1])
    place = rows[:, None] * seq + np.arange(seq)
    real = place < total
    place = (place + epoch.shift) % total
    document = np.searchsorted(epoch.ends, place, side="right")
    left = epoch.ends[document] - place  # tokens of the document from here on
    source = epoch.sources[document] - left
    last = left == 1
    next_source = np.where(last, source, source + 1)  # within the document, even in another row
    segments = 1 + np.cumsum(last, axis=1) - last
    return (
        np.where(real, tokens[source].astype(np.int32), 0),
        np.where(real & ~last, tokens[next_source].astype(np.int32), IGNORE),
        np.where(real, segments, 0).astype(np.int32),
    )


class Stream:
    """The rows of a part of the data, in an order that the seed determines.

    Attributes:
        rows: how many rows an epoch has.
        blocks: how many streams they are rows of; see NOTE [blocks of documents].
    """

    def __init__(self, part: Part, seq: int, seed: int):
        self._part, self._seq, self._seed = part, seq, seed
        self.blocks = -(-len(part.ends) // BLOCK)
        lasts = np.minimum(np.arange(1, self.blocks + 1) * BLOCK, len(part.ends)) - 1
        self._begins = np.concatenate([[0], part.ends[lasts]])
        self._rows = np.cumsum(-(-np.diff(self._begins) // seq))
        self.rows = int(self._rows[-1])
        self._epoch = functools.lru_cache(_KEPT)(self._drawn)

    def batch(
        self, epoch: int | None, rows: Int[np.ndarray, " rows"]
    ) -> tuple[Int32[np.ndarray, "rows seq"], ...]:
        """Tokens, targets and segment ids, see `mixture.Source`; rows past the end are empty."""
        if self.blocks == 1:
            return self._pack(epoch, 0, rows)
        if epoch is not None:
            rows = Permutation(self.rows, (self._seed, epoch))(rows)
        blocks = np.minimum(np.searchsorted(self._rows, rows, side="right"), self.blocks - 1)
        places = rows - np.concatenate([[0], self._rows])[blocks]
        found = np.zeros((3, len(rows), self._seq), np.int32)
        for block in np.unique(blocks):
            found[:, blocks == block] = self._pack(epoch, int(block), places[blocks == block])
        return tuple(found)

    def _pack(
        self, epoch: int | None, block: int, rows: Int[np.ndarray, " rows"]
    ) -> tuple[Int32[np.ndarray, "rows seq"], ...]:
        tokens = self._part.tokens[self._begins[block] : self._begins[block + 1]]
        drawn = self._epoch(epoch, block)
        chosen = rows if epoch is None or self.blocks > 1 else drawn.rows[rows]
        return pack(tokens, drawn, chosen, self._seq)

    def _drawn(self, epoch: int | None, block: int) -> Epoch:
        ends = self._part.ends[block * BLOCK : (block + 1) * BLOCK] - self._begins[block]
        if epoch is None:
            return in_order(ends, self._seq)
        more = () if self.blocks == 1 else (block,)
        return shuffled(ends, self._seq, (self._seed, epoch, *more))


class Permutation:
    """A permutation of `range(size)`, drawn from a seed, each place of it computed by itself.

    It is a Feistel network over the numbers of an even number of bits, with cycle walking: what
    comes out too large is put in again (Black and Rogaway, Ciphers with Arbitrary Finite Domains,
    2002).
    """

    def __init__(self, size: int, seed: Sequence[int]):
        self._size = size
        self._half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))  # bits
        self._keys = np.random.PCG64(seed).random_raw(_ROUNDS)

    def __call__(self, places: Int[np.ndarray, " places"]) -> Int[np.ndarray, " places"]:
        """The items at some places of the order."""
        found = self._network(places.astype(np.uint64))
        while (outside := found >= self._size).any():
            found[outside] = self._network(found[outside])
        return found.astype(np.int64)

    def _network(self, numbers: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
        mask = (np.uint64(1) << self._half) - np.uint64(1)
        left, right = numbers >> self._half, numbers & mask
        for key in self._keys:
            # The last step of SplitMix64 (Steele et al., 2014): all bits depend on all bits.
            mixed = right + key
            for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
                mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
            left, right = right, left ^ ((mixed ^ mixed >> np.uint64(31)) & mask)
        return left << self._half | right
