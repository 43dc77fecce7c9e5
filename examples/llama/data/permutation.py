"""A pseudo-random order of any number of items, of which each place is computed by itself."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt64

_ROUNDS = 8


class Permutation:
    """A permutation of `range(size)`, drawn from a seed.

    It is a Feistel network over the numbers of an even number of bits, with cycle walking: what
    comes out too large is put in again (Black and Rogaway, Ciphers with Arbitrary Finite Domains,
    2002).

    Args:
        size: how many items there are.
        seed: numbers of 0 or more.
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
            left, right = right, left ^ (_mix(right + key) & mask)
        return left << self._half | right


def _mix(numbers: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """The last step of SplitMix64 (Steele et al., 2014): all bits depend on all bits."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ numbers >> np.uint64(shift)) * np.uint64(factor)
    return numbers ^ numbers >> np.uint64(31)
