"""Batches of rows of similar length, one document a row: the alternative to packing.

The documents of an epoch are shuffled. Within windows they are sorted by length and cut into
batches, which are shuffled in turn. A batch is as wide as its longest row. Rows are found among
those of blocks of documents, see NOTE [blocks of documents] in `packing`.
"""

import functools

import numpy as np
from jaxtyping import Int, Int32

from ..model import IGNORE
from . import packing
from .corpus import Part
from .packing import Permutation

_WINDOW = 64  # batches that are sorted together
_WIDTHS = 64  # windows whose widths `widths` tells
_KEPT = 64  # blocks whose rows are known


class ByLength:
    """The rows of a part of the data; documents that are longer than `seq` are cut into several."""

    def __init__(self, part: Part, seq: int, batch: int, seed: int):
        self._part, self._seq, self._batch, self._seed = part, seq, batch, seed
        self._block = packing.BLOCK
        self._pieces = functools.lru_cache(_KEPT)(self._pieces_of)
        blocks = range(-(-len(part.ends) // self._block))
        self._ends = np.cumsum([len(self._pieces_of(block)) for block in blocks])  # of their rows
        self.rows = int(self._ends[-1]) if len(blocks) else 0
        self._window = functools.lru_cache(2)(self._sorted)

    def batch(
        self, epoch: int | None, rows: Int[np.ndarray, " rows"]
    ) -> tuple[Int32[np.ndarray, "rows longest"], ...]:
        """Tokens and targets of some rows of an epoch."""
        assert epoch is not None
        size = _WINDOW * self._batch
        chosen = np.stack([self._window(epoch, row // size)[row % size] for row in rows.tolist()])
        longest = int((chosen[:, 1] - chosen[:, 0]).max())
        tokens = np.zeros((len(rows), longest), np.int32)
        targets = np.full((len(rows), longest), IGNORE, np.int32)
        learned = self._part.learned
        for i, (begin, end, last) in enumerate(chosen.tolist()):
            tokens[i, : end - begin] = self._part.tokens[begin:end]
            after = slice(begin + 1, min(end + 1, last))  # It may be in another row.
            found = self._part.tokens[after].astype(np.int32)
            if learned is not None:
                found = np.where(learned[after], found, IGNORE)
            targets[i, : len(found)] = found
        return tokens, targets

    def widths(self) -> list[int]:
        """How wide batches are at the beginning of the first epoch."""
        windows = range(min(_WIDTHS, -(-self.rows // (_WINDOW * self._batch))))
        found = [self._window(0, window) for window in windows]
        sizes = np.concatenate([pieces[:, 1] - pieces[:, 0] for pieces in found])
        starts = range(0, len(sizes), self._batch)
        return [int(sizes[k : k + self._batch].max()) for k in starts]

    def _sorted(self, epoch: int, window: int) -> Int[np.ndarray, "rows 3"]:
        """The pieces of a window, in the order of its rows."""
        size, batch = _WINDOW * self._batch, self._batch
        places = np.arange(window * size, min((window + 1) * size, self.rows))
        rows = Permutation(self.rows, (self._seed, epoch))(places)
        blocks = np.searchsorted(self._ends, rows, side="right")
        pieces = np.empty((len(rows), 3), np.int64)
        for block in np.unique(blocks):
            own, before = blocks == block, self._ends[block - 1] if block else 0
            pieces[own] = self._pieces(int(block))[rows[own] - before]
        pieces = pieces[np.argsort(pieces[:, 1] - pieces[:, 0], kind="stable")]
        parts = np.split(pieces, range(batch, len(pieces), batch))
        draw = np.random.PCG64((self._seed, epoch, window)).random_raw
        return np.concatenate([parts[p] for p in np.argsort(draw(len(parts)), kind="stable")])

    def _pieces_of(self, block: int) -> Int[np.ndarray, "rows 3"]:
        """Where each row of a block of documents begins and ends, and where its document ends."""
        first = block * self._block
        ends = self._part.ends[first : first + self._block]
        begins = np.concatenate([[self._part.ends[first - 1] if first else 0], ends[:-1]])
        counts = np.maximum(
            -(-(ends - begins - 1) // self._seq), 0
        )  # The last token has no target.
        document = np.repeat(np.arange(len(ends)), counts)
        number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
        at, last = begins[document] + number * self._seq, ends[document]
        return np.stack([at, np.minimum(at + self._seq, last), last], 1)


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
