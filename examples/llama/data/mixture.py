"""Rows of several sources in turns, each in proportion to its weight.

Which source a row comes from, and how many rows that source had before, follow from the row's
number alone. After any number of rows, each source had its share of them but for one row for each
source before it in the list.
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Protocol

import numpy as np
from jaxtyping import Int, Int32

from .length_batches import joined


class Source(Protocol):
    """The rows of a part of the data, such as a `Stream`."""

    rows: int

    def batch(
        self, epoch: int | None, rows: Int[np.ndarray, " rows"]
    ) -> tuple[Int32[np.ndarray, "rows seq"], ...]:
        """Some rows of an epoch; None is the one in the order of the file."""
        ...


class Mixture:
    """The rows of one source or of several, each of which begins its epochs by itself.

    Of each `sum(weights)` rows a source has as many as its weight.
    """

    def __init__(self, sources: Sequence[Source], weights: Sequence[int]):
        self.sources, self._weights = sources, weights

    def batch(
        self, numbers: Int[np.ndarray, " rows"], *, shuffled: bool = True
    ) -> list[Int32[np.ndarray, "rows seq"]]:
        """The rows with these numbers, counted over all sources and epochs.

        If not `shuffled`, there is one epoch, in the order of the files.
        """
        turns = [turn(number, self._weights) for number in numbers.tolist()]
        found: dict[tuple[int, int | None], list[tuple[int, int]]] = {}
        for i, (source, row) in enumerate(turns):
            epoch, place = divmod(row, self.sources[source].rows) if shuffled else (None, row)
            found.setdefault((source, epoch), []).append((i, place))
        parts = [
            self.sources[source].batch(epoch, np.array([place for _, place in rows]))
            for (source, epoch), rows in found.items()
        ]
        back = np.argsort([i for rows in found.values() for i, _ in rows])
        return [array[back] for array in joined(parts)]


def turn(number: int, weights: Sequence[int]) -> tuple[int, int]:
    """The source of a row, counted from 0, and how many rows that source had before it."""
    left = sum(weights)
    for source, weight in enumerate(weights):
        before, after = (n * weight // left for n in (number, number + 1))
        if after > before:
            return source, before
        number, left = number - before, left - weight
    raise ValueError(f"no weight of {weights} is above 0")


def whole(weights: Iterable[float]) -> list[int]:
    """The smallest whole numbers with the same ratios: 7 and 3 of 0.7 and 0.3."""
    fractions = [Fraction(str(weight)) for weight in weights]
    unit = math.lcm(*(f.denominator for f in fractions))
    numbers = [int(f * unit) for f in fractions]
    return [n // math.gcd(*numbers) for n in numbers]
