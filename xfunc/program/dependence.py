"""Which outputs depend on which inputs, through the steps of a loop or a call."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

T = TypeVar("T")


def reached(reads: Sequence[Collection[int]], carries: int, given: Collection[int]) -> set[int]:
    """The given inputs of a loop, and the carries that its steps compute from them.

    Args:
        reads: for each output of a step, the inputs that it is computed from.
        carries: how many of the first outputs become the first inputs of the next step.
        given: the inputs to start from.
    """
    result = set(given)
    while new := {i for i in range(carries) if i not in result and not result.isdisjoint(reads[i])}:
        result |= new
    return result


def read_by(
    reads: Sequence[Collection[int]], carries: int, wanted: Sequence[object | None]
) -> set[int]:
    """The inputs that the steps of a loop compute some outputs from, with those outputs' carries.

    Args:
        reads: for each output of a step, the inputs that it is computed from.
        carries: how many of the first outputs become the first inputs of the next step.
        wanted: for each output, None if it is not wanted.
    """
    outputs = {i for i, w in enumerate(wanted) if w is not None}
    while new := {k for i in outputs for k in reads[i] if k < carries} - outputs:
        outputs |= new
    return {i for i in outputs if i < carries}.union(*(reads[i] for i in outputs))


def where_reached(
    tangents: Sequence[T | None], reads: Sequence[Collection[int]], given: Collection[int]
) -> list[T | None]:
    """Tangents of outputs; None for outputs that are computed from none of the given inputs.

    Those tangents would be zeros, which become NaN when multiplied by infinity.
    """
    known = set(given)
    return [None if known.isdisjoint(r) else t for t, r in zip(tangents, reads, strict=True)]
