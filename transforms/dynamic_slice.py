"""`dynamic_slice` and `dynamic_update_slice`: parts of arrays that begin at traced positions."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from xfunc.core.avals import short
from xfunc.core.types import ArrayLike
from xfunc.errors import fail, short_repr
from xfunc.stages.checks import Tensor, as_tensor
from xfunc.torchlib.indexing import is_number, places_from
from xfunc.transforms.jit import jit


def dynamic_slice(
    operand: ArrayLike, start_indices: Tensor | Sequence[ArrayLike], slice_sizes: Sequence[int]
) -> Tensor:
    """The part of `operand` of the given sizes that begins at `start_indices`.

    Args:
        operand: an array of `n` dimensions.
        start_indices: `n` integers, or an integer array ``[n]``; they may be traced. Negative ones
            count from the end. They are then clamped, so that the part lies within the array.
        slice_sizes: `n` Python integers.

    Returns:
        An array of the shape `slice_sizes`.

    Raises:
        TypeError: there are not `n` starts and sizes, or a size is greater than the array's.

    Example::

        >>> xf.dynamic_slice(torch.arange(5), (9,), (2,)).tolist()
        [3, 4]

    Semantics: ``jax.lax.dynamic_slice``.
    """
    x: Tensor = as_tensor(operand)
    sizes = tuple(map(operator.index, slice_sizes))
    return _read(x, _starts("dynamic_slice", x, start_indices, sizes), sizes)


def dynamic_update_slice(
    operand: ArrayLike, update: ArrayLike, start_indices: Tensor | Sequence[ArrayLike]
) -> Tensor:
    """`operand` with the part that begins at `start_indices` replaced by `update`.

    Args:
        operand: an array of `n` dimensions.
        update: an array of `n` dimensions, of the dtype of `operand`, no larger in any dimension.
        start_indices: as in `dynamic_slice`.

    Returns:
        An array like `operand`.

    Raises:
        TypeError: `update` has another dtype or number of dimensions, or is larger.

    Example::

        >>> xf.dynamic_update_slice(torch.zeros(4), torch.ones(2), (1,)).tolist()
        [0.0, 1.0, 1.0, 0.0]

    Semantics: ``jax.lax.dynamic_update_slice``.
    """
    x: Tensor = as_tensor(operand)
    part: Tensor = as_tensor(update)
    name = "dynamic_update_slice"
    if part.dtype is not x.dtype:
        fail(
            TypeError,
            f"{name} was given an update of {short(part)} for {short(x)}",
            "convert the update: update.to(operand.dtype).",
        )
    return _write(x, part, _starts(name, x, start_indices, tuple(part.shape)))


def _starts(
    name: str, x: Tensor, starts: Tensor | Sequence[ArrayLike], sizes: tuple[int, ...]
) -> list[Tensor]:
    """The starts, as scalars."""
    result = list(starts.unbind()) if isinstance(starts, Tensor) else [as_tensor(s) for s in starts]
    if len(result) != x.ndim or len(sizes) != x.ndim:
        fail(
            TypeError,
            f"{name} was given {len(result)} starts and {len(sizes)} sizes for {short(x)}",
            "give one of each for every dimension.",
        )
    if any(n < 0 or n > d for n, d in zip(sizes, x.shape, strict=True)):
        fail(
            TypeError,
            f"{name} was given the sizes {short_repr(sizes)} for {short(x)}",
            "give sizes from 0 to those of the array.",
        )
    for s in result:
        if not is_number(s):
            fail(TypeError, f"{name} was given the start {short(s)}", "give integers.")
    return result


@jit(static_argnums=2)
def _read(x: Tensor, starts: Sequence[Tensor], sizes: tuple[int, ...]) -> Tensor:
    for dim, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if size != x.shape[dim]:
            x = x.index_select(dim, places_from(start.long(), size, x.shape[dim]))
    return x.clone()


@jit
def _write(x: Tensor, update: Tensor, starts: Sequence[Tensor]) -> Tensor:
    return _written(x, update, list(starts), 0)


def _written(x: Tensor, update: Tensor, starts: list[Tensor], dim: int) -> Tensor:
    if dim == x.ndim:
        return update.clone()
    n, size = x.shape[dim], update.shape[dim]
    if size == n:
        return _written(x, update, starts, dim + 1)
    places = places_from(starts[dim].long(), size, n)
    part = _written(x.index_select(dim, places), update, starts, dim + 1)
    return x.index_copy(dim, places, part)
