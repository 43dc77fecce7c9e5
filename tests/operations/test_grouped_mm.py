"""Products of groups of rows and columns: torch's kernels read where the groups end."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
grouped_mm: Callable[..., Tensor] = getattr(torch.nn.functional, "grouped_mm", torch._grouped_mm)
ENDS = [3, 3, 8]  # The second group is empty.
ROWS, MATRICES = (torch.arange(3.0 * 8 * n).cos().reshape(3, 8, n) for n in (8, 16))
COLUMNS = ROWS[1].mT.contiguous()


def as_offsets(ends: list[int] | None) -> Tensor | None:
    return None if ends is None else torch.tensor(ends, dtype=torch.int32)


# name -> (left, right, the ends of the groups)
CASES = {
    "rows": (ROWS[0], MATRICES, ENDS),
    "columns": (ROWS, COLUMNS, ENDS),
    "contracted": (COLUMNS, ROWS[0], ENDS),
    "batch": (ROWS, MATRICES, None),
}


def one_by_one(a: Tensor, b: Tensor, ends: list[int] | None) -> Tensor:
    if ends is None:
        return torch.stack([x @ y for x, y in zip(a, b, strict=True)])
    parts = [slice(i, j) for i, j in itertools.pairwise([0, *ends])]
    if a.ndim == b.ndim:
        return torch.stack([a[:, p] @ b[p] for p in parts])
    if a.ndim == 2:
        return torch.cat([a[p] @ y for p, y in zip(parts, b, strict=True)])
    return torch.cat([x @ b[:, p] for p, x in zip(parts, a, strict=True)], -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_values_equal_eager(name: str, dtype: torch.dtype) -> None:
    a, b, ends = CASES[name]
    a, b, offs = a.to(dtype), b.to(dtype), as_offsets(ends)
    got = xf.device_get(xf.jit(lambda a, b, offs: grouped_mm(a, b, offs=offs))(a, b, offs))
    torch.testing.assert_close(got, grouped_mm(a, b, offs=offs))


@pytest.mark.parametrize("name", CASES)
def test_derivatives_equal_those_of_single_products(name: str) -> None:
    *given, ends = CASES[name]
    offs = as_offsets(ends)

    def ours(a: Tensor, b: Tensor) -> Tensor:
        return grouped_mm(a, b, offs=offs).sin()

    a, b = (x.clone().requires_grad_() for x in given)
    want = one_by_one(a, b, ends).sin()
    slopes = torch.autograd.grad(want.square().sum(), (a, b))
    got = xf.jit(xf.grad(lambda a, b: ours(a, b).square().sum(), (0, 1)))(*given)
    torch.testing.assert_close(xf.device_get(got), slopes, rtol=1e-5, atol=1e-5)

    tangent = xf.jit(lambda a, b: xf.jvp(ours, (a, b), (a, b))[1])(*given)
    want = torch.func.jvp(lambda a, b: one_by_one(a, b, ends).sin(), (*given,), (*given,))[1]
    torch.testing.assert_close(xf.device_get(tangent), want, rtol=1e-5, atol=1e-5)


def test_batches_of_ends() -> None:
    ends = [ENDS, [0, 5, 8]]
    got = xf.vmap(lambda offs: grouped_mm(ROWS[0], MATRICES, offs=offs))(torch.tensor(ends))
    want = torch.stack([one_by_one(ROWS[0], MATRICES, e) for e in ends])
    torch.testing.assert_close(xf.device_get(got), want)


def test_rows_after_the_last_group_are_zero() -> None:
    offs = as_offsets(ENDS[:1])
    got = xf.jit(lambda a, b: grouped_mm(a, b, offs=offs))(ROWS[0], MATRICES[:1]).cpu()
    torch.testing.assert_close(got[:3], ROWS[0, :3] @ MATRICES[0])
    assert got[3:].count_nonzero() == 0


@pytest.mark.parametrize(
    ("a", "b", "ends", "said"),
    [
        (ROWS[0], MATRICES, None, "Have to provide offsets"),
        (ROWS, MATRICES, ENDS, "no offset if both matrices are 3d"),
        (ROWS[0], MATRICES[:2], ENDS, "matrix batch sizes have to match"),
        (ROWS[0, :, :4], MATRICES, ENDS, "contraction dimension of mat_a and mat_b must match"),
        (ROWS[0, 0], MATRICES, ENDS, "mat_a has to be 2 or 3d"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_as_by_torch(
    a: Tensor, b: Tensor, ends: list[int] | None, said: str
) -> None:
    offs = as_offsets(ends)
    with pytest.raises(RuntimeError, match=said):
        grouped_mm(a, b, offs=offs)
    with pytest.raises(RuntimeError, match=said):
        xf.jit(lambda a, b: grouped_mm(a, b, offs=offs))(a, b)
