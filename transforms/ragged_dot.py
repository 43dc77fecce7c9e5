"""`ragged_dot`: products of consecutive groups of rows, each with a matrix of its own."""

from __future__ import annotations

import torch

from xfunc.core.avals import short
from xfunc.core.types import ArrayLike
from xfunc.errors import fail
from xfunc.stages.checks import Tensor, as_tensor
from xfunc.transforms.jit import jit


def ragged_dot(lhs: ArrayLike, rhs: ArrayLike, group_sizes: ArrayLike) -> Tensor:
    """The rows of `lhs`, in consecutive groups, times the matrix of their group.

    It multiplies all rows by the matrix of each group and selects: g times the work of the result.

    Args:
        lhs: ``[m, k]``.
        rhs: ``[g, k, n]``: a matrix for each group.
        group_sizes: ``[g]``, integers: how many rows each group has.

    Returns:
        ``[m, n]``; 0 in rows after the last group.

    Raises:
        TypeError: the shapes do not fit, or `group_sizes` are not integers.

    Example::

        >>> rhs = torch.tensor([[[1.0]], [[10.0]]])
        >>> xf.ragged_dot(torch.ones(4, 1), rhs, torch.tensor([1, 2])).flatten().tolist()
        [1.0, 10.0, 10.0, 0.0]

    Semantics: ``jax.lax.ragged_dot``.
    """
    x: Tensor = as_tensor(lhs)
    y: Tensor = as_tensor(rhs)
    sizes: Tensor = as_tensor(group_sizes)
    fits = x.ndim == 2 and y.ndim == 3 and x.shape[1] == y.shape[1]
    if not fits or tuple(sizes.shape) != (y.shape[0],):
        fail(
            TypeError,
            f"ragged_dot was given {short(x)}, {short(y)} and group_sizes of {short(sizes)}",
            "give [m, k], [g, k, n] and [g].",
        )
    if sizes.dtype.is_floating_point or sizes.dtype.is_complex:
        fail(TypeError, f"ragged_dot was given group_sizes of {short(sizes)}", "give integers.")
    return _ragged(x, y, sizes)


@jit
def _ragged(lhs: Tensor, rhs: Tensor, sizes: Tensor) -> Tensor:
    ends = sizes.long().cumsum(0)
    rows = torch.arange(lhs.shape[0])
    inside = (rows >= (ends - sizes)[:, None]) & (rows < ends[:, None])
    masked = torch.where(inside[..., None], lhs, torch.zeros((), dtype=lhs.dtype))
    return torch.einsum("gmk,gkn->mn", masked, rhs)
