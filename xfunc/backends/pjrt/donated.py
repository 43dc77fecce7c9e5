"""Donated tensors, and their reuse.

NOTE [tensors used again]: for a small array, torch takes longer to make and free a tensor than XLA
to compute it. But a step that donates its state has spare tensors: those donated to the previous
step and dropped by the caller since. They become the results of this step, unless they could be
distinguished from new ones.
"""

from __future__ import annotations

import collections
import operator
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from xfunc.backends.donated import mark_donated
from xfunc.backends.pjrt.array import Array, makers
from xfunc.core.avals import AvalKey

if TYPE_CHECKING:
    import jax


class Results:
    """The results of a program, as tensors.

    Args:
        avals: of the results.

    Attributes:
        tensors: a function that returns tensors of this data.
    """

    def __init__(self, avals: Sequence[AvalKey]):
        self._avals, self._makers = tuple(avals), makers(avals)
        self.tensors = self._only if len(self._avals) == 1 else self._all
        # The tensors donated to the last call (one call at most), and the one reused for each
        # result.
        self._spare: list[tuple[list[Array], list[int | None]]] = []
        self._given: tuple[tuple[AvalKey, ...], list[int | None]] = (), []

    def mark_donated(self, tensors: Sequence[Any]) -> None:
        """Make donated tensors unusable."""
        try:
            for t in tensors:
                del t._jax_array
        except AttributeError:  # Some have been looked at: see NOTE [untouched].
            for t in tensors:
                if type(t) is Array:
                    t.mark_donated()
            mark_donated(tensors)
            return
        if _are_noted(
            tensors
        ):  # Their holders, and the objects that they hold, must end with them.
            return
        avals = tuple([t._jax_aval for t in tensors])
        given = self._given  # Other threads may change it.
        if avals != given[0]:
            given = self._given = avals, _places(avals, self._avals)
        self._spare[:] = [([*tensors], given[1])]

    def _only(self, arrays: Sequence[jax.Array]) -> list[torch.Tensor]:
        if self._spare:
            return self._all(arrays)
        return [self._makers[0](arrays[0])]

    def _all(self, arrays: Sequence[jax.Array]) -> list[torch.Tensor]:
        spare, places = _taken(self._spare)
        if not spare or not _are_forgotten(spare):
            return [make(array) for make, array in zip(self._makers, arrays, strict=True)]
        result: list[torch.Tensor] = []
        for place, array, make in zip(places, arrays, self._makers, strict=True):
            if place is None:
                result.append(make(array))
                continue
            tensor = spare[place]
            tensor._jax_array = array
            result.append(tensor)
        return result


def _taken(spare: list[tuple[list[Array], list[int | None]]]) -> Any:
    try:
        return spare.pop()
    except IndexError:  # Another thread was faster.
        return [], []


def _places(given: Sequence[AvalKey], wanted: Sequence[AvalKey]) -> list[int | None]:
    """For each wanted aval the place of one that is given; each is used once."""
    free = collections.defaultdict[AvalKey, list[int]](list)
    for place, aval in reversed(list(enumerate(given))):
        free[aval].append(place)
    return [free[aval].pop() if free[aval] else None for aval in wanted]


_ATTRIBUTES: Callable[[Any], Any] = operator.attrgetter("__dict__")
_USE_COUNT: Callable[[torch.Tensor], int] = torch.Tensor._use_count  # type: ignore[attr-defined]
_ALONE = next(map(sys.getrefcount, [object()]))
"""The value of ``getrefcount`` for the entry of a list without other references."""


def _are_noted(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether tensors have attributes of their own, or others watch them."""
    return any(map(weakref.getweakrefcount, tensors)) or any(map(_ATTRIBUTES, tensors))


def _are_forgotten(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the list holds the only references to the tensors, in Python and in C++."""
    return (
        set(map(sys.getrefcount, tensors)) <= {_ALONE}
        and set(map(_USE_COUNT, tensors)) <= {1}
        and not _are_noted(tensors)
    )
