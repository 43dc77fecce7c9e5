"""Numbers and results in place that a dtype does not hold are refused, where torch refuses them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

F = torch.nn.functional
Compute = Callable[[torch.Tensor, Any], Any]


def put(x: torch.Tensor, n: Any) -> torch.Tensor:
    x = x.clone()
    x[1] = n
    return x


def put_by_mask(x: torch.Tensor, n: Any) -> torch.Tensor:
    x = x.clone()
    x[x > 3] = n
    return x


def put_by_masks(x: torch.Tensor, n: Any) -> torch.Tensor:
    rows = x.clone().reshape(1, 3)
    rows[0, [True, False, False]] = n
    rows[:, x > 5] = n
    return rows


def put_by_mask_and_place(x: torch.Tensor, n: Any) -> torch.Tensor:
    rows = x.clone().reshape(1, 3)
    rows[torch.tensor([True], device=x.device), torch.tensor([1], device=x.device)] = n
    return rows


NUMBERS = (300, -1, 70000, 2**40, 2**63, 1e300, math.inf, 1.5)
DTYPES = (torch.uint8, torch.int64, torch.float16)
OPERATIONS: dict[str, Compute] = {
    "fill_": lambda x, n: x.clone().fill_(n),
    "full_like": lambda x, n: torch.full_like(x, n),
    "new_full": lambda x, n: x.new_full((2,), n),
    "full": lambda x, n: torch.full((2,), n, dtype=x.dtype),
    "masked_fill": lambda x, n: x.masked_fill(x > 3, n),
    "masked_fill_": lambda x, n: x.clone().masked_fill_(x > 3, n),
    "index_fill": lambda x, n: x.index_fill(0, torch.tensor([0], device=x.device), n),
    "scatter": lambda x, n: x.scatter(0, torch.tensor([0], device=x.device), n),
    "pad": lambda x, n: F.pad(x, (1, 1), value=n),
    "setitem": put,
    "setitem by a mask": put_by_mask,
    "setitem by masks": put_by_masks,
    "setitem by a mask and a place": put_by_mask_and_place,
    "where": lambda x, n: torch.where(x > 3, x, n),
    "threshold": lambda x, n: F.threshold(x, 2, n),
    "clamp": lambda x, n: x.clamp(max=n),
    "clip": lambda x, n: torch.clip(x, 0, n),
    "clamp_min": lambda x, n: x.clamp_min(n),
    "clamp_": lambda x, n: x.clone().clamp_(n),
    "hardtanh": lambda x, n: F.hardtanh(x, -1, n),
    "pow": lambda x, n: x**n,
    "add": lambda x, n: torch.add(x, x, alpha=n),
    "sub": lambda x, n: torch.sub(x, x, alpha=n),
    "add_": lambda x, n: x.clone().add_(x, alpha=n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "addcdiv": lambda x, n: torch.addcdiv(x, x, x, value=n),
    "addmm": lambda x, n: torch.addmm(x, x[:, None], x[None], alpha=n),
    "baddbmm": lambda x, n: torch.baddbmm(x, x[None, :, None], x[None, None], beta=n),
    "addmv": lambda x, n: torch.addmv(x, x[:, None], x[:1], alpha=n),
    "addr": lambda x, n: torch.addr(x[:, None], x, x[:1], beta=n),
    "remainder": lambda x, n: x % n,
    "floor_divide": lambda x, n: x // n,
    "fmod": lambda x, n: torch.fmod(x, n),
    "div": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
    "copy_": lambda x, n: x.clone().copy_(n),
    "eq": lambda x, n: x == n,
    "lt": lambda x, n: x < n,
    "iadd": lambda x, n: x.clone().__iadd__(n),
    "imul": lambda x, n: x.clone().__imul__(n),
    "idiv": lambda x, n: x.clone().__itruediv__(n),
}


def outcome(compute: Compute, x: torch.Tensor, n: Any) -> torch.Tensor | None:
    """What eager torch gives; None where it refuses."""
    try:
        return compute(x, n)
    except (RuntimeError, OverflowError, ValueError):
        return None


@pytest.mark.sample(16, seed=0)
@pytest.mark.parametrize("name", OPERATIONS)
def test_scalar_out_of_dtype_range_as_in_torch_or_refused(name: str) -> None:
    compute = OPERATIONS[name]
    for dtype in DTYPES:
        x = torch.tensor([5, 3, 7], dtype=dtype)
        for n in NUMBERS:
            if n == 2**63 and (not dtype.is_floating_point or name.startswith("setitem")):
                continue  # torch_xla has no such integer, and torch does not put it into a tensor
            want = outcome(compute, x, n)
            program = xf.jit(lambda x, n=n: compute(x, n))
            if want is None:
                with pytest.raises((RuntimeError, OverflowError), match=r"\w"):
                    program(x)
                continue
            got = xf.device_get(program(x))
            assert got.dtype == want.dtype, (dtype, n)
            torch.testing.assert_close(
                got, want, equal_nan=True, msg=lambda m, d=dtype, n=n: f"{d}, {n}: {m}"
            )
    xf.clear_caches()


X = torch.tensor([5, 3, 200], dtype=torch.uint8)
I = torch.tensor([5, 3, -7])  # noqa: E741
REFUSED: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor, str]] = {
    "fill_": (lambda x: x.clone().fill_(300), X, "number 300, which uint8 does not hold"),
    "full": (lambda x: torch.full((2,), 300, dtype=x.dtype), X, "a number cannot be written"),
    "masked_fill": (
        lambda x: x.masked_fill(x > 1, 1e5),
        torch.ones(2, dtype=torch.float16),
        "number 100000.0, which float16 does not hold",
    ),
    "linspace": (
        lambda x: torch.linspace(0, 300, 3, dtype=x.dtype),
        X,
        "linspace was given the number 300",
    ),
    "clamp": (lambda x: x.clamp(min=300), X, "clamp was given the number 300"),
    "fill_diagonal_": (
        lambda x: (x[:, None] * x).fill_diagonal_(300),
        X,
        "number 300, which uint8 does not hold",
    ),
    "floor_divide": (lambda x: x // 0, I, r"divides integers \(int64\[3\]\) by 0"),
    "remainder": (lambda x: x % 256, X, "by 256, which is 0 in torch.uint8"),
    "addr": (lambda x: torch.addr(x[:, None] * x, x, x, beta=1.5), I, "floating-point factor"),
    "addcdiv": (lambda x: torch.addcdiv(x, x, x), I, "divides integers, which torch refuses"),
    "mul_": (lambda x: x.clone().mul_(1.5), I, "result of torch.float32, which cannot be written"),
    "mul_ by a tensor": (lambda x: x.clone().mul_(x / 2), I, "cannot be written into int64"),
    "div_": (lambda x: x.clone().div_(2), I, "cannot be written into int64"),
    "add_": (lambda x: x.clone().add_(1j), I, "result of torch.complex64"),
    "addcmul_": (lambda x: x.clone().addcmul_(x / 2, x), I, "cannot be written into int64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unfit_scalar_or_result_error_messages(name: str) -> None:
    compute, x, says = REFUSED[name]
    refusal = r"cannot be converted|is outside the|Zero|must not|can't be|Integer"
    with pytest.raises(RuntimeError, match=refusal):
        compute(x)
    with pytest.raises(xf.errors.UnsupportedOpError, match=says):
        xf.jit(compute)(x)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x.max(7),
        lambda x: x.min(-2),
        lambda x: x.mode(7),
        lambda x: x.argmax(7),
        lambda x: torch.argmin(x, dim=-7),
        lambda x: x.gather(7, torch.zeros(1, dtype=torch.int64, device=x.device)),
    ],
)
def test_reduction_dim_out_of_range_raises(compute: Callable[[torch.Tensor], Any]) -> None:
    for program in (compute, xf.jit(compute)):
        with pytest.raises(IndexError, match="Dimension out of range"):
            program(torch.ones(3))


def test_scalar_infinity_and_division_of_empty_are_accepted() -> None:
    x = torch.tensor([5.0, 3.0], dtype=torch.float16)

    def compute(x: torch.Tensor) -> Any:
        return x.masked_fill(x > 4, -math.inf), x.clamp(max=math.inf), put(x, 7e4)

    for got, want in zip(xf.jit(compute)(x), compute(x), strict=True):
        assert torch.equal(got.cpu(), want)
    empty = torch.zeros(0, dtype=torch.int64)
    assert xf.jit(lambda x: x // 0)(empty).shape == (0,)
