"""Rows of packed documents, found from the order of an epoch without the rows before.

All documents follow each other in one circular stream, which is cut into rows of `seq` tokens. So
no token is lost or seen twice in an epoch, and only its last row may have padding. A document that
does not fit continues in another row. Segment ids keep the documents of a row apart.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Int32, UInt

from ..model import IGNORE
from .corpus import Part


class Epoch(NamedTuple):
    """The stream of one pass over the documents.

    Attributes:
        sources: where in the flat file of tokens each document ends, in the order of the stream.
        ends: where in the stream each document ends.
        shift: where in the stream the first row begins.
        rows: the order in which the rows are used.
    """

    sources: Int[np.ndarray, " documents"]
    ends: Int[np.ndarray, " documents"]
    shift: int
    rows: Int[np.ndarray, " rows"]


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
    """The rows of a part of the data.

    Args:
        part: the documents.
        seq: tokens per row.
        seed: determines the order of documents and rows.

    Attributes:
        rows: how many rows an epoch has.
    """

    def __init__(self, part: Part, seq: int, seed: int):
        self._part, self._seq = part, seq
        self._in_order = in_order(part.ends, seq)
        self._shuffled = functools.lru_cache(2)(  # A batch may span two.
            lambda number: shuffled(part.ends, seq, (seed, number))
        )
        self.rows = len(self._in_order.rows)

    def batch(
        self, epoch: int | None, rows: Int[np.ndarray, " rows"]
    ) -> tuple[Int32[np.ndarray, "rows seq"], ...]:
        """Tokens, targets and segment ids of some rows of an epoch; those past its end are empty.

        Epoch None is the one that is not shuffled.
        """
        if epoch is None:
            return pack(self._part.tokens, self._in_order, rows, self._seq)
        found = self._shuffled(epoch)
        return pack(self._part.tokens, found, found.rows[rows], self._seq)
