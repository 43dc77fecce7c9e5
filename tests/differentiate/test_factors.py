"""Factors that torch takes as numbers, as traced tensors: `alpha` of sums, `value` of products."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

X, Y, Z = torch.tensor([1.5, -2.0]), torch.tensor([0.3, 4.1]), torch.tensor([2.5, -0.7])
FACTOR = 0.3

OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y, z, k: torch.add(x, y, alpha=k),
    "sub": lambda x, y, z, k: x.sub(y, alpha=k),
    "rsub": lambda x, y, z, k: torch.rsub(x, y, alpha=k),
    "a number": lambda x, y, z, k: torch.add(x, 3, alpha=k),
    "add_": lambda x, y, z, k: x.clone().add_(y, alpha=k),
    "sub_": lambda x, y, z, k: x.clone().sub_(y, alpha=k),
    "itself": lambda x, y, z, k: (w := x * 1).add_(w, alpha=k),
    "addcmul": lambda x, y, z, k: torch.addcmul(x, y, z, value=k),
    "addcmul_": lambda x, y, z, k: x.clone().addcmul_(y, z, value=k),
    "addcdiv": lambda x, y, z, k: x.addcdiv(y, z, value=k),
    "addcdiv_": lambda x, y, z, k: x.clone().addcdiv_(y, z, value=k),
}
HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
@pytest.mark.parametrize("name", OPERATIONS)
def test_alpha_traced_equals_number(name: str, dtype: torch.dtype) -> None:
    function, given = OPERATIONS[name], [v.to(dtype) for v in (X, Y, Z)]
    want = function(*given, FACTOR)
    got = xf.jit(function)(*given, FACTOR).cpu()
    assert got.dtype == dtype
    exact = function(*(v.double() for v in given), torch.tensor(FACTOR).to(dtype).item())
    if dtype in HALVES:  # No further from the exact value than torch is, but for one rounding.
        slack = torch.finfo(dtype).eps * exact.abs()
        assert ((got - exact).abs() <= (want - exact).abs() + slack).all()
    else:
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", OPERATIONS)
def test_alpha_batched(name: str) -> None:
    function = OPERATIONS[name]
    x, y, z = (v.double() for v in (X, Y, Z))
    k = torch.tensor([FACTOR, -1.5], dtype=torch.float64)
    want = torch.stack([function(x, y, z, f) for f in k.tolist()])
    torch.testing.assert_close(
        xf.vmap(function, in_axes=(None, None, None, 0))(x, y, z, k).cpu(), want
    )


def test_alpha_differentiated_is_refused() -> None:
    def f(k: Any) -> torch.Tensor:
        return torch.add(X.to(k.device), X.to(k.device), alpha=k).sum()

    for grad in (torch.func.grad, xf.grad):
        with pytest.raises(TypeError, match="'alpha' must be Number, not Tensor"):
            grad(f)(torch.tensor(FACTOR))


def test_alpha_of_integers() -> None:
    n = torch.tensor([1, 2])
    assert xf.jit(lambda n, k: n.add(n, alpha=k))(n, 3).tolist() == [4, 8]
    with pytest.raises(RuntimeError, match="alpha"):
        torch.add(n, n, alpha=0.5)
    with pytest.raises(RuntimeError, match="argument alpha must not be a floating point"):
        xf.jit(lambda n, k: n.add(n, alpha=k))(n, 0.5)


def test_number_options_traced_are_refused() -> None:
    wants: dict[str, Callable[..., Any]] = {
        r"torch\.nn\.functional\.elu": torch.nn.functional.elu,
        r"torch\.nn\.functional\.softplus": torch.nn.functional.softplus,
        r"torch\.addmm": lambda x, k: torch.addmm(x, x[:, None], x[None], alpha=k),
    }
    for name, function in wants.items():
        with pytest.raises(xf.errors.ConcretizationError, match=f"{name} reads a traced value"):
            xf.jit(function)(X, 0.5)
