"""Tensors several elements of which are one, as `expand` makes them: they cannot be written to.

torch refuses most changes of such a tensor in place. torch_xla 2.9 does not: it adds what each of
the elements has changed by to the one that they are, so that ``x.expand(2, 3).zero_()`` gives
``-x``. And what copies such a tensor on the CPU (`contiguous`, `reshape`) is a view of it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xfunc.core.avals import short
from xfunc.core.weak import WeakTable
from xfunc.errors import UnsupportedOpError, fail
from xfunc.torchlib.torch_functions import operation_name

_EXPANDING = frozenset(
    {
        torch.Tensor.expand,
        torch.Tensor.expand_as,
        torch.Tensor.broadcast_to,
        torch.broadcast_to,
        torch.broadcast_tensors,
        torch.functional.broadcast_tensors,
        torch.meshgrid,
        torch.functional.meshgrid,
    }
)


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


class Overlaps:
    """Those of the tensors of a trace that have elements in common with themselves."""

    def __init__(self) -> None:
        self._known: WeakTable[bool] = WeakTable()

    def note(self, func: Any, args: tuple[Any, ...], outs: Sequence[Any]) -> None:
        """What a call returned: views with more elements than there are, and views of these."""
        expanding = func in _EXPANDING
        for out in outs:
            if not isinstance(out, torch.Tensor):
                continue
            base = out._base if out._is_view() else None
            if base is not None:
                made = _bytes(out) > _bytes(base) or any(a in self._known for a in args)
            else:  # vmap's wrappers do not tell.
                made = expanding and out.numel() > _smallest(args)
            if made:
                self._known[out] = True

    def separate(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a call that copies such a tensor in eager torch: with a copy of it."""
        if self._known and func in _COPYING and args and args[0] in self._known:
            return (args[0].clone(), *args[1:])
        return args

    def check(self, func: Any, written: Any, name: str) -> None:
        """Refuse to write to one of them, or to several tensors of which one is."""
        if not self._known:
            return
        for x in written if isinstance(written, (list, tuple)) else (written,):
            if x in self._known:
                fail(
                    UnsupportedOpError,
                    f"{operation_name(func)} writes to an expanded tensor ({short(x)}), several "
                    "elements of which are one",
                    "write to a copy: x = x.clone().",
                    function=name,
                )


def _bytes(x: torch.Tensor) -> int:
    return x.numel() * x.element_size()  # Of a view as real numbers there are twice as many.


def _smallest(args: Sequence[Any]) -> int:
    flat = [x for a in args for x in (a if isinstance(a, (list, tuple)) else (a,))]
    return min((x.numel() for x in flat if isinstance(x, torch.Tensor)), default=0)
