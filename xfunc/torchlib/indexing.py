"""Indexing with a traced number: ``x[i]``, ``x[i, 1:] = y``, ``torch.narrow(x, 0, i, n)``.

torch reads a 0-d integer tensor as a Python int, which a traced value can't be. Here it becomes a
gather or a scatter of one element. As in JAX, an index out of bounds is clamped when reading and
dropped when writing, and the start of a `narrow` is clamped.

NOTE [parts that are written to]: in torch ``x[i]`` is a view, and ``x[i].zero_()`` changes `x`. The
gather is not a view. So we record which tensor it is a part of, and writes to it are repeated
there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np
import torch

from xfunc.core.device import TYPE
from xfunc.errors import UnsupportedOpError, fail
from xfunc.rules.operands import is_integer
from xfunc.torchlib import functorch

Tensor = torch.Tensor


def is_number(entry: object) -> TypeGuard[Tensor]:
    """Whether an entry of an index is a traced number."""
    return isinstance(entry, Tensor) and not entry.ndim and is_integer(entry.dtype)


def _take_apart(x: Tensor, index: object) -> tuple[list[tuple[int, Tensor]], tuple[Any, ...]]:
    """The numbers in an index, each with the dimension of `x` it selects from, and the rest."""
    entries = index if isinstance(index, tuple) else (index,)
    used = [dimensions(e) for e in entries]
    numbers, rest, dim = [], [], 0
    for entry, n in zip(entries, used, strict=True):
        if is_number(entry):
            numbers.append((dim, entry))
        else:
            rest.append(entry)
        dim += x.ndim - sum(used) if entry is ... else n
    return numbers, tuple(rest)


def dimensions(entry: object) -> int:
    """How many dimensions an entry of an index uses up."""
    if entry is None or entry is ... or isinstance(entry, bool):
        return 0
    return entry.ndim if isinstance(entry, Tensor) and entry.dtype is torch.bool else 1


def _traced_numbers(index: object) -> bool:
    return any(map(is_number, index)) if isinstance(index, tuple) else is_number(index)


def _plain(index: Any) -> Any:
    """An index without what torch would read: lists of numbers, NumPy's 0-d arrays."""
    if type(index) is tuple:
        return tuple(stacked(e).long() if _are_numbers(e) else _plain(e) for e in index)
    if isinstance(index, np.ndarray) and not index.ndim and index.dtype.kind in "biufc":
        # As torch does: bytes are a mask, and what is no whole number is cut off.
        return bool(index) if index.dtype in (np.bool_, np.uint8) else int(index.real)
    return index


def _are_numbers(entry: object) -> TypeGuard[Sequence[Tensor | int]]:
    """Whether an entry of an index is a sequence of numbers, some of them traced."""
    if not isinstance(entry, (list, tuple)) or not any(map(is_number, entry)):
        return False
    return all(type(e) is int or is_number(e) for e in entry)


def stacked(data: Any) -> Tensor:
    """A tensor of nested sequences of numbers, some of them traced, in the dtype that holds all."""
    if not isinstance(data, (tuple, list)):
        return torch.as_tensor(data, device=TYPE)
    parts = [stacked(part) for part in data]
    dtype = functools.reduce(torch.promote_types, (part.dtype for part in parts))
    return torch.stack([part.to(dtype) for part in parts])


def getitem(x: Tensor, index: Any) -> Tensor:
    """``x[index]``."""
    index = _plain(index)
    if not _traced_numbers(index):
        return x[index]
    numbers, rest = _take_apart(x, index)
    found = x
    for dim, i in reversed(numbers):
        found = found[(*(slice(None) for _ in range(dim)), i.reshape(1))].squeeze(dim)
    if not all(isinstance(e, (int, slice)) or e in (None, ...) for e in rest):
        return found[rest]  # a copy in torch as well
    found = (found[rest] if rest else found).clone()  # not a view: it is the base of its views
    vars(found)[_PART] = x, index
    if functorch.is_wrapped(found):
        vars(functorch.innermost(found))[_PART] = None
    return found


_PART = "xfunc_part"


def part_of(t: object) -> tuple[Tensor, object, Tensor] | None:
    """The tensor that `t`, or its base, is a part of, and at which index; see the note above."""
    if not isinstance(t, Tensor):
        return None
    for part in (t, t._base):
        if part is not None and _PART in vars(part):
            return (*vars(part)[_PART], part)
    base = functorch.innermost(t)._base
    if base is not None and _PART in vars(base):
        fail(
            UnsupportedOpError,
            "a view x[i] with a traced index is changed in place under a transform",
            "write to x itself: x[i, 1:] = y instead of x[i][1:] = y.",
        )
    return None


def _is_one(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.numel() == 1


def _is_mask(entry: object) -> bool:
    if isinstance(entry, Tensor):
        return entry.dtype is torch.bool
    return isinstance(entry, list) and bool(entry) and all(type(v) is bool for v in entry)


def put_by_mask(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor | None:
    """``x.index_put(indices, values)`` if all places of a mask get the same; else None.

    The places need not be known, and derivatives and batches follow.
    """
    at = [k for k, i in enumerate(indices) if i is not None]
    mask = indices[at[0]]
    assert mask is not None
    if mask.dtype is not torch.bool or len(at) > 1 or not mask.ndim or values.dtype != x.dtype:
        return None
    end = at[0] + mask.ndim
    if tuple(x.shape[at[0] : end]) != tuple(mask.shape):
        return None
    after = x.ndim - end
    if values.ndim > after:
        *before, places = values.shape[: values.ndim - after]
        while len(before) > at[0] and before[0] == 1:
            del before[0]
        if places != 1 or len(before) > at[0]:
            return None
        ones = (1,) * mask.ndim
        values = values.reshape(*before, *ones, *values.shape[values.ndim - after :])
    values = x + values if accumulate else values
    return torch.where(mask.reshape(*mask.shape, *(1,) * after), values, x)


def _as_indices(x: Tensor, index: object) -> list[Tensor | None] | None:
    """An index of one mask and whole dimensions, as ``torch.index_put`` takes it; else None."""
    entries = list(index) if isinstance(index, tuple) else [index]
    masks = [e for e in entries if isinstance(e, Tensor) and e.dtype is torch.bool and e.ndim]
    if len(masks) != 1 or any(e is None for e in entries):
        return None
    if any(e is ... for e in entries):
        k = next(k for k, e in enumerate(entries) if e is ...)
        entries[k : k + 1] = [slice(None)] * (x.ndim - sum(map(dimensions, entries)))
    if any(e is not masks[0] and not _is_whole(e) for e in entries):
        return None
    return [e if isinstance(e, Tensor) else None for e in entries]


def _is_whole(entry: object) -> bool:
    return isinstance(entry, slice) and entry == slice(None)


def setitem(x: Tensor, index: Any, value: Tensor | float) -> None:
    """``x[index] = value``."""
    index = _plain(index)
    if isinstance(index, Tensor) and index.dtype is torch.bool and not index.ndim:
        x.copy_(torch.where(index, value, x))  # torch reads such a mask as a bool.
        return
    if _is_one(value) and any(map(_is_mask, index if isinstance(index, tuple) else (index,))):
        value = value.to(x.dtype)  # as torch does; below, examples of a batch would be many values
    if not _traced_numbers(index):
        indices = _as_indices(x, index)
        if isinstance(value, Tensor) and indices is not None:
            put = put_by_mask(x, indices, value)
            if put is not None:
                x.copy_(put)
                return
        x[index] = value
        return
    numbers, rest = _take_apart(x, index)
    dims = [dim for dim, _ in numbers]
    front = x.movedim(dims, list(range(len(dims))))  # a view
    places = tuple(i.reshape(1) for _, i in numbers)
    part = front[places].squeeze(0)
    part[rest if rest else ...] = value
    front[places] = part.unsqueeze(0)


def narrow(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``x.narrow(dim, start, length)``."""

    def call(x: Tensor, dim: int, start: Tensor | int, length: int) -> Tensor:
        if not is_number(start) or not isinstance(length, int):
            return func(x, dim, start, length)
        size = x.shape[dim]
        if not 0 <= length <= size:
            return func(x, dim, 0, length)  # torch's error
        return torch.index_select(x, dim, places_from(start, length, size, x.device))

    return call


def places_from(
    start: Tensor, length: int, size: int, device: torch.device | None = None
) -> Tensor:
    """The positions of a part along a dimension of a size; its traced start is clamped."""
    start = torch.where(start < 0, start + size, start).clamp(0, size - length)
    return start + torch.arange(length, device=device)


INDEXING: dict[object, Callable[..., object]] = {
    Tensor.__getitem__: getitem,
    Tensor.__setitem__: setitem,
    torch.narrow: narrow(torch.narrow),
    Tensor.narrow: narrow(Tensor.narrow),
}
"""For each torch function that indexes, a version that also takes traced numbers."""
