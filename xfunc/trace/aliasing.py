"""Tensors with elements that share memory, such as results of `expand`; they are read-only.

torch refuses most changes of such a tensor in place. Its functionalisation does not: it adds the
changes of all the elements to the one they share, so that ``x.expand(2, 3).zero_()`` gives ``-x``.
And operations that copy such a tensor on the CPU (`contiguous`, `reshape`) return a view of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from xfunc.core.avals import short
from xfunc.core.weak import WeakTable
from xfunc.errors import UnsupportedOpError, fail
from xfunc.torchlib.expand import EXPANDING, ONE_FOR_EACH, has_rest
from xfunc.torchlib.torch_functions import operation_name
from xfunc.torchlib.values import tensors_in

_STRIDED = frozenset({torch.as_strided, torch.Tensor.as_strided})

_VIEWS = frozenset((*EXPANDING, torch.Tensor.unfold))  # noted even if wrapped

_COPYING = frozenset(
    {
        torch.Tensor.contiguous,
        torch.Tensor.reshape,
        torch.Tensor.reshape_as,
        torch.Tensor.flatten,
        torch.Tensor.ravel,
        torch.reshape,
        torch.flatten,
        torch.ravel,
    }
)


class Aliasing:
    """The tensors of a trace with elements that share memory."""

    def __init__(self) -> None:
        self._known: WeakTable[bool] = WeakTable()
        self._windows: WeakTable[bool] = WeakTable()

    def note(
        self, func: object, args: Sequence[Any], kwargs: Mapping[str, Any], outs: object
    ) -> None:
        """Note a call's results: views with more elements than their base, and views of these."""
        if isinstance(outs, torch.Tensor) and func not in _VIEWS and not outs._is_view():
            return  # as for most calls
        sources = list(tensors_in(args[:1], {})) if func not in ONE_FOR_EACH else []
        sources = sources or list(tensors_in(args, kwargs))
        for i, out in enumerate(outs if isinstance(outs, (tuple, list)) else (outs,)):
            if not isinstance(out, torch.Tensor) or not sources:
                continue
            source = sources[i if func in ONE_FOR_EACH else 0]
            if func in EXPANDING:
                made = out.numel() > source.numel() or source in self._known
            else:
                base = out._base if out._is_view() else None  # vmap's wrappers do not show it.
                made = base is not None and (
                    _bytes(out) > _bytes(base)
                    or any(a in self._known for a in args)
                    or (func is torch.Tensor.unfold and _windows_overlap(out, *args, **kwargs))
                    or (func in _STRIDED and _strides_overlap(*args, **kwargs))
                )
                if func is torch.Tensor.unfold and _has_rest(*args, **kwargs):
                    self._windows[out] = True
            if made:
                self._known[out] = True

    def separate(self, func: object, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a call that copies such a tensor in eager torch, with a copy of it."""
        if self._known and func in _COPYING and args and args[0] in self._known:
            return (args[0].clone(), *args[1:])
        return args

    def check(self, func: object, written: Any, name: str) -> None:
        """Refuse to write to such a tensor, alone or among others."""
        if not self._known and not self._windows:
            return
        for x in written if isinstance(written, (list, tuple)) else (written,):
            if x in self._known:
                fail(
                    UnsupportedOpError,
                    f"{operation_name(func)} writes to an expanded tensor ({short(x)}), whose "
                    "elements share memory",
                    "write to a copy: x = x.clone().",
                    function=name,
                )
            if x in self._windows:
                fail(
                    UnsupportedOpError,
                    f"{operation_name(func)} writes to windows ({short(x)}) with a rest behind "
                    "the last, which cannot be done",
                    "write to slices of the tensor: x[start : start + size] = y.",
                    function=name,
                )


def _bytes(x: torch.Tensor) -> int:
    return x.numel() * x.element_size()  # A view as real numbers has twice as many.


def _windows_overlap(
    out: torch.Tensor, x: torch.Tensor, dimension: int, size: int, step: int
) -> bool:
    return step < size and bool(x.ndim) and out.shape[:-1][dimension % x.ndim] > 1


def _has_rest(x: torch.Tensor, dimension: int, size: int, step: int) -> bool:
    return bool(x.ndim) and has_rest(x.shape[dimension], size, step)


def _strides_overlap(
    x: object, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> bool:
    """Whether steps along some dimensions together reach the next element of another."""
    reach = 0
    for step, n in sorted(zip(stride, size, strict=True)):
        if n > 1 and step <= reach:
            return 0 not in size
        reach += step * (n - 1)
    return False
