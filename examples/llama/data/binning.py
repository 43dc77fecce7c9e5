"""Rows of whole documents, for conversations and pairs: no document continues in another row.

Which documents share a row is the same in all epochs, and of no meaning, for they do not see each
other; the order of the rows is drawn anew for each.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Int32

from ..model import IGNORE
from .corpus import Part


class Whole:
    """The rows of a part of the data.

    Args:
        part: the documents, and which of their tokens are learned.
        seq: tokens in a row; no group of documents has more.
        group: how many consecutive documents belong in one row: 2 for pairs.
        seed: of the order of the rows.
        labelled: whether groups have labels, see `preference`: in place of whether the first token
            of the first document is learned.

    Attributes:
        rows: how many rows an epoch has.
    """

    def __init__(self, part: Part, seq: int, group: int, seed: int, *, labelled: bool = False):
        self._part, self._seq, self._group, self._seed = part, seq, group, seed
        self._labelled = labelled
        self._begins = np.concatenate([[0], part.ends])
        sizes = np.diff(self._begins[::group])
        self._bins = best_fit(sizes.tolist(), seq)
        self.rows = len(self._bins)

    def batch(
        self, epoch: int | None, rows: Int[np.ndarray, " rows"]
    ) -> tuple[Int32[np.ndarray, "rows seq"], ...]:
        """Tokens, targets and segment ids, see `mixture.Source`; rows past the end are empty."""
        order = np.arange(self.rows)
        if epoch is not None:
            draw = np.random.PCG64((self._seed, epoch)).random_raw
            order = np.argsort(draw(self.rows), kind="stable")
        shape = len(rows), self._seq
        tokens, segments = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        targets = np.full(shape, IGNORE, np.int32)
        for i, row in enumerate(rows):
            if row < self.rows:
                self._fill(self._bins[order[row]], tokens[i], targets[i], segments[i])
        return tokens, targets, segments

    def _fill(
        self,
        groups: Sequence[int],
        tokens: Int32[np.ndarray, " seq"],
        targets: Int32[np.ndarray, " seq"],
        segments: Int32[np.ndarray, " seq"],
    ) -> None:
        part, at, number = self._part, 0, 0
        assert part.learned is not None
        for group in groups:
            first = group * self._group
            if self._labelled:
                number = -(-number // 4) * 4 + (0 if part.learned[self._begins[first]] else 2)
            for document in range(first, first + self._group):
                begin, end = self._begins[document : document + 2]
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
