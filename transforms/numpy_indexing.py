"""Indices with NumPy's meaning, split into a static part and arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import EllipsisType
from typing import TypeAlias, TypeGuard, cast

import numpy as np
import torch

from xfunc.core.avals import short
from xfunc.errors import fail, kind_of, short_repr
from xfunc.stages.checks import Tensor, as_tensor, broadcast_shapes, is_integer
from xfunc.torchlib.arrays import from_numpy
from xfunc.trace import tracing

Entry: TypeAlias = int | slice | Tensor | None


@dataclasses.dataclass(frozen=True)
class IndexPlan:
    """The static part of an index into an array.

    Attributes:
        slices: the dimensions that are cut: ``(dim, start, length, step)``; a single static
            position is cut to length 1. The other attributes describe the array after the cuts.
        arrays: the dimensions that an index array selects from, one for each array.
        batch: the shape of the index arrays together.
        dims: the shape of the result, by NumPy's rules.
        axes: the origin of each dimension of the result: ("batch", k), ("dim", d) or ("new", 0).
        flipped: dimensions of the result that run backwards.
        mask: whether the index is one traced mask, of the leading dimensions.
    """

    slices: tuple[tuple[int, int, int, int], ...] = ()
    arrays: tuple[int, ...] = ()
    batch: tuple[int, ...] = ()
    dims: tuple[int, ...] = ()
    axes: tuple[tuple[str, int], ...] = ()
    flipped: tuple[int, ...] = ()
    mask: bool = False


def positions(
    index: object, shape: tuple[int, ...], find_mask: bool
) -> tuple[IndexPlan, list[Tensor]]:
    """The static part of an index into an array of a shape, and its arrays.

    A lone mask stays a mask, unless its positions are needed.
    """
    given = [_entry(e) for e in _entries(index)]
    if len(given) == 1 and _is_mask(given[0]):
        _check_mask(given[0], shape)
        if not find_mask:
            return IndexPlan(mask=True), [given[0]]
    entries = _expanded(given, shape)
    slices: list[tuple[int, int, int, int]] = []
    arrays: list[int] = []
    found: list[Tensor] = []
    axes: list[tuple[str, int]] = []
    dims: list[int] = []
    flipped: list[int] = []
    advanced = [k for k, e in enumerate(entries) if isinstance(e, (int, Tensor))]
    together = not advanced or advanced[-1] - advanced[0] == len(advanced) - 1
    tensors = [e for e in entries if isinstance(e, Tensor)]
    try:
        batch = broadcast_shapes(t.shape for t in tensors)
    except RuntimeError:
        fail(
            IndexError,
            f"index arrays of the shapes {[tuple(t.shape) for t in tensors]} do not broadcast",
            "give index arrays that broadcast against each other.",
        )

    def place_batch() -> None:
        axes.extend(("batch", k) for k in range(len(batch)))
        dims.extend(batch)

    if not together:
        place_batch()
    dim = 0
    for k, e in enumerate(entries):
        if together and advanced and k == advanced[0]:
            place_batch()
        if e is None:
            axes.append(("new", 0))
            dims.append(1)
            continue
        n = shape[dim]
        if isinstance(e, slice):
            start, length, step = _cut(e, n)
            if length != n:
                slices.append((dim, start, length, abs(step)))
            if step < 0:
                flipped.append(len(dims))
            axes.append(("dim", dim))
            dims.append(length)
        elif isinstance(e, int) and -n <= e < n:
            slices.append((dim, e % n, 1, 1))
        else:
            arrays.append(dim)
            found.append(torch.tensor(e) if isinstance(e, int) else e)
        dim += 1
    return IndexPlan(
        tuple(slices), tuple(arrays), batch, tuple(dims), tuple(axes), tuple(flipped)
    ), found


def _entries(index: object) -> Sequence[object]:
    return cast("tuple[object, ...]", index) if isinstance(index, tuple) else (index,)


def _is_slice(e: object) -> TypeGuard[slice]:
    return isinstance(e, slice)


def _entry(e: object) -> Entry | EllipsisType:
    """One entry of an index: None, Ellipsis, an int, a slice or a tensor."""
    if e is None or e is ... or _is_slice(e) or type(e) is int:
        return e
    if is_integer(e):
        return int(e)
    if isinstance(e, np.ndarray):
        e = from_numpy(e)
    if isinstance(e, Tensor) and not (e.dtype.is_floating_point or e.dtype.is_complex):
        return e
    what = short(e) if isinstance(e, Tensor) else f"{short_repr(e)} ({kind_of(e)})"
    fail(
        TypeError,
        f"at was given the index {what}",
        "index with integers, slices, None, ..., integer tensors or a boolean mask; make a tensor "
        "of a list, with torch.tensor.",
    )


def _is_mask(e: object) -> TypeGuard[Tensor]:
    return isinstance(e, Tensor) and e.dtype is torch.bool


def _check_mask(mask: Tensor, shape: tuple[int, ...]) -> None:
    if not mask.ndim or tuple(mask.shape) != shape[: mask.ndim]:
        fail(
            IndexError,
            f"at was given a mask {short(mask)} for an array of the shape {shape}",
            "give a mask of the shape of the array, or of its leading dimensions.",
        )


def _expanded(entries: list[Entry | EllipsisType], shape: tuple[int, ...]) -> list[Entry]:
    """Entries with masks as index arrays, and one for each dimension."""
    entries = [part for e in entries for part in (_places(e) if _is_mask(e) else [e])]
    used = sum(e is not None and e is not ... for e in entries)
    if used > len(shape) or sum(e is ... for e in entries) > 1:
        fail(
            IndexError,
            f"at was given {used} indices for an array of the shape {shape}"
            if used > len(shape)
            else "at was given more than one `...`",
            "index each dimension once.",
        )
    rest: list[Entry] = [slice(None)] * (len(shape) - used)
    k = next((k for k, e in enumerate(entries) if e is ...), len(entries))
    kept = [e for e in entries if e is not ...]
    return kept[:k] + rest + kept[k:]


def _places(mask: Tensor) -> list[Tensor]:
    if tracing.current() is not None:
        fail(
            IndexError,
            f"at was given a traced mask ({short(mask)}) beside other indices",
            "index with the mask alone, or choose with torch.where.",
        )
    return list(mask.nonzero(as_tuple=True))


def _cut(e: slice, n: int) -> tuple[int, int, int]:
    """``(start, length, step)`` of a slice; for one that runs backwards, of its reverse."""
    bounds = [e.start, e.stop, e.step]
    for b in bounds:
        if isinstance(b, Tensor):
            fail(
                IndexError,
                f"at was given a slice with a bound that is a tensor ({short(b)})",
                "slice with Python integers: the shape of a result is static; for a window of "
                "fixed length, index with start + torch.arange(length).",
            )
    start, stop, step = e.indices(n)
    length = len(range(start, stop, step))
    if step < 0 and length:
        start += (length - 1) * step
    return start, length, step


def as_index(t: Tensor) -> Tensor:
    """An index array on the device; torch reads those of uint8 as masks."""
    return as_tensor(t).long()
