"""Rows of whole documents, for conversations and pairs: no document continues in another row.

Which documents share a row is the same in all epochs; the order of the rows is drawn anew for each.
Documents share rows within blocks of them, see NOTE [blocks of documents] in `packing`.
"""

import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Int32

from ..model import IGNORE
from . import packing
from .corpus import Part
from .packing import Permutation

_KEPT = 64  # blocks whose rows are known


class Whole:
    """The rows of a part of the data.

    Args:
        part: the documents, and which of their tokens are learned.
        seq: tokens in a row; no group of documents has more.
        group: how many consecutive documents belong in one row: 2 for pairs.
        seed: of the order of the rows.
        labelled: whether groups have labels, see `preference`: in place of whether the first token
            of the first document is learned.
    """

    def __init__(self, part: Part, seq: int, group: int, seed: int, *, labelled: bool = False):
        self._part, self._seq, self._group, self._seed = part, seq, group, seed
        self._labelled = labelled
        self._block = packing.BLOCK * group  # documents
        self._bins = functools.lru_cache(_KEPT)(self._bins_of)
        blocks = range(-(-len(part.ends) // self._block))
        self._ends = np.cumsum([len(self._bins_of(block)) for block in blocks])  # of their rows
        self.rows = int(self._ends[-1]) if len(blocks) else 0

    def batch(
        self, epoch: int | None, rows: Int[np.ndarray, " rows"]
    ) -> tuple[Int32[np.ndarray, "rows seq"], ...]:
        """Tokens, targets and segment ids, see `mixture.Source`; rows past the end are empty."""
        if epoch is not None:
            rows = Permutation(self.rows, (self._seed, epoch))(rows)
        shape = len(rows), self._seq
        tokens, segments = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        targets = np.full(shape, IGNORE, np.int32)
        for i, row in enumerate(rows.tolist()):
            if row < self.rows:
                block = int(np.searchsorted(self._ends, row, side="right"))
                place = row - int(self._ends[block - 1] if block else 0)
                self._fill(self._bins(block)[place], tokens[i], targets[i], segments[i])
        return tokens, targets, segments

    def _bins_of(self, block: int) -> list[list[int]]:
        """The first documents of the groups in each row of a block."""
        first = block * self._block
        lasts = self._part.ends[first : first + self._block][self._group - 1 :: self._group]
        sizes = np.diff(lasts, prepend=self._begin(first))
        return [
            [first + self._group * number for number in each]
            for each in best_fit(sizes.tolist(), self._seq)
        ]

    def _begin(self, document: int) -> int:
        return int(self._part.ends[document - 1]) if document else 0

    def _fill(
        self,
        groups: Sequence[int],
        tokens: Int32[np.ndarray, " seq"],
        targets: Int32[np.ndarray, " seq"],
        segments: Int32[np.ndarray, " seq"],
    ) -> None:
        part, at, number = self._part, 0, 0
        assert part.learned is not None
        for first in groups:
            if self._labelled:
                number = -(-number // 4) * 4 + (0 if part.learned[self._begin(first)] else 2)
            for document in range(first, first + self._group):
                begin, end = self._begin(document), self._begin(document + 1)
                found, learned = part.tokens[begin:end].astype(np.int32), part.learned[begin:end]
                size, number = len(found), number + 1
                tokens[at : at + size] = found
                targets[at : at + size - 1] = np.where(learned[1:], found[1:], IGNORE)
                segments[at : at + size] = number
                at += size


def best_fit(sizes: Sequence[int], room: int) -> list[list[int]]:
    """The numbers of the items in each bin: the largest go first, each where it fits tightest."""
    bins: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(room + 1)]  # bins, by the room in them
    there = 0  # a bit for each room that some bin has
    for item in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        size = sizes[item]
        enough = there >> size
        if enough:
            left = size + (enough & -enough).bit_length() - 1
            found = with_room[left].pop()
            if not with_room[left]:
                there &= ~(1 << left)
        else:
            left, found = room, len(bins)
            bins.append([])
        bins[found].append(item)
        with_room[left - size].append(found)
        there |= 1 << (left - size)
    return bins
