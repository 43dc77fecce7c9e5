"""Batches of rows of similar length, one document a row: the alternative to packing.

The documents of an epoch are shuffled. Within windows they are sorted by length and cut into
batches, which are shuffled in turn. So the rows of a batch have little padding, and come in nearly
any order. A batch is as wide as its longest row; what is shorter has no targets there.
"""

import functools

import numpy as np
from jaxtyping import Int, Int32

from ..model import IGNORE
from .corpus import Part

_WINDOW = 64  # batches that are sorted together


class ByLength:
    """The rows of a part of the data.

    Args:
        part: the documents; those that are longer than a row are cut into several.
        seq: tokens of the longest row.
        batch: rows of a batch.
        seed: of the order.

    Attributes:
        rows: how many rows an epoch has.
    """

    def __init__(self, part: Part, seq: int, batch: int, seed: int):
        self._part, self._batch, self._seed = part, batch, seed
        begins = np.concatenate([[0], part.ends[:-1]])
        pieces = [
            (at, min(at + seq, end), end)
            for begin, end in zip(begins.tolist(), part.ends.tolist(), strict=True)
            for at in range(begin, end, seq)
        ]
        kept = [p for p in pieces if p[2] - p[0] > 1]  # The last token has no target.
        self._pieces = np.array(kept, dtype=np.int64).reshape(-1, 3)
        self._sizes = self._pieces[:, 1] - self._pieces[:, 0]
        self.rows = len(self._pieces)
        self._ordered = functools.lru_cache(2)(self._order)

    def batch(
        self, epoch: int | None, rows: Int[np.ndarray, " rows"]
    ) -> tuple[Int32[np.ndarray, "rows longest"], ...]:
        """Tokens and targets of some rows of an epoch."""
        assert epoch is not None
        chosen = self._ordered(epoch)[rows]
        shape = len(rows), int(self._sizes[chosen].max(initial=1))
        tokens, targets = np.zeros(shape, np.int32), np.full(shape, IGNORE, np.int32)
        learned = self._part.learned
        for i, (begin, end, last) in enumerate(self._pieces[chosen].tolist()):
            tokens[i, : end - begin] = self._part.tokens[begin:end]
            after = slice(begin + 1, min(end + 1, last))  # It may be in another row.
            found = self._part.tokens[after].astype(np.int32)
            if learned is not None:
                found = np.where(learned[after], found, IGNORE)
            targets[i, : len(found)] = found
        return tokens, targets

    def widths(self) -> list[int]:
        """How wide the batches of the first epoch are."""
        sizes = self._sizes[self._ordered(0)]
        return [int(sizes[k : k + self._batch].max()) for k in range(0, self.rows, self._batch)]

    def _order(self, epoch: int) -> Int[np.ndarray, " rows"]:
        draw = np.random.PCG64((self._seed, epoch)).random_raw
        order = np.argsort(draw(self.rows), kind="stable")
        found = []
        for k in range(0, self.rows, _WINDOW * self._batch):
            window = order[k : k + _WINDOW * self._batch]
            window = window[np.argsort(self._sizes[window], kind="stable")]
            parts = np.split(window, range(self._batch, len(window), self._batch))
            found += [parts[p] for p in np.argsort(draw(len(parts)), kind="stable")]
        return np.concatenate(found)


def joined(parts: list[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    """Rows of several epochs as one batch, as wide as the widest."""
    fills = (0, IGNORE, 0)
    found = []
    for arrays, fill in zip(zip(*parts, strict=True), fills, strict=False):
        width = max(x.shape[1] for x in arrays)
        wide = [np.full((len(x), width), fill, x.dtype) for x in arrays]
        for w, x in zip(wide, arrays, strict=True):
            w[:, : x.shape[1]] = x
        found.append(np.concatenate(wide))
    return found
