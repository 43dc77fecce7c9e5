"""Products of groups of rows, each with a matrix of its own, as layers of experts compute them.

torch's kernels read where the groups end.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensor = torch.Tensor


def grouped_mm(
    self: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """``torch.nn.functional.grouped_mm``; 0 in rows and columns after the last group.

    It computes all rows for each group and selects, as `xf.ragged_dot` does.
    """
    ndims = self.ndim, mat2.ndim
    torch._check(self.ndim in (2, 3), lambda: "mat_a has to be 2 or 3d")
    torch._check(mat2.ndim in (2, 3), lambda: "mat_b has to be 2 or 3d")
    torch._check(
        self.shape[-1] == mat2.shape[-2],
        lambda: "contraction dimension of mat_a and mat_b must match",
    )
    torch._check(
        (offs is None) == (ndims == (3, 3)),
        lambda: (
            "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d"
        ),
    )
    torch._check(bias is None, lambda: "Bias not supported yet")
    if offs is None:
        out = torch.bmm(self, mat2)
    else:
        groups = {(2, 3): mat2.shape[0], (3, 2): self.shape[0]}.get(ndims, *offs.shape[:1])
        torch._check(offs.shape == (groups,), lambda: "matrix batch sizes have to match")
        out = _grouped(self, mat2, offs)
    return out if out_dtype is None else out.to(out_dtype)


def _grouped(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    if a.ndim == 2 and b.ndim == 3:
        return torch.einsum("gmk,gkn->mn", _groups(a.mT, ends).mT, b)
    if a.ndim == 3:
        return torch.einsum("gmk,gkn->mn", a, _groups(b, ends))
    return torch.einsum("gmk,kn->gmn", _groups(a, ends), b)


def _groups(x: Tensor, ends: Tensor) -> Tensor:
    """A matrix for each group of columns, in which all others are 0."""
    ends, column = ends.long()[:, None], torch.arange(x.shape[-1], device=x.device)
    inside = (column < ends) & (column >= torch.cat([torch.zeros_like(ends[:1]), ends[:-1]]))
    return torch.where(inside[:, None, :], x, torch.zeros((), dtype=x.dtype, device=x.device))


GROUPED: dict[object, Callable[..., Tensor]] = {torch._grouped_mm: grouped_mm}
CUSTOM: dict[str, Callable[..., Tensor]] = {"transformers::grouped_mm_fallback": grouped_mm}
"""Replacements for operations of other packages, by name."""
