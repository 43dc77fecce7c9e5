"""Transforms of torch.func in traced code, of tensors from outside, against eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

F = torch.func
close = torch.testing.assert_close

_generator = torch.Generator().manual_seed(0)
X = torch.randn(3, generator=_generator, dtype=torch.float64)
W = torch.randn(3, 3, generator=_generator, dtype=torch.float64)
LINEAR = torch.nn.Linear(3, 3, dtype=torch.float64)
PARAMS: Any = {name: p.detach() for name, p in LINEAR.named_parameters()}
STACKED: Any = {name: torch.stack([p, p + 1]) for name, p in PARAMS.items()}


def outer(x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda w: w.sin() * x


def summed(x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda w: (w.sin() * x).sum()


def of_module(params: Any, x: torch.Tensor) -> torch.Tensor:
    return F.functional_call(LINEAR, params, (x,))


# W, and the parameters, are tensors from outside. All results depend on X, the argument.
CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "vmap": lambda x: F.vmap(outer(x))(W),
    "vmap over columns": lambda x: F.vmap(outer(x), in_dims=1)(W),
    "vmap of two": lambda x: F.vmap(torch.mul)(W, x),
    "vmap in chunks": lambda x: F.vmap(outer(x), chunk_size=2)(W),
    "vmap of vmap": lambda x: F.vmap(F.vmap(outer(x.sum())))(W),
    "vmap and what is not mapped": lambda x: F.vmap(torch.sin)(W) + x,
    "grad": lambda x: F.grad(summed(x))(W),
    "grad that x does not reach": lambda x: F.grad(lambda w: w.sin().sum())(W) * x,
    "grad_and_value": lambda x: F.grad_and_value(summed(x))(W),
    "grad of grad": lambda x: F.grad(lambda w: F.grad(summed(x))(w)[0, 0])(W),
    "gradients per example": lambda x: F.vmap(F.grad(lambda w, r: (w.sin() * r).sum()))(
        W, torch.outer(x, x)
    ),
    "gradients of one for each": lambda x: F.vmap(
        F.grad(lambda a, r: (a.sin() * r).sum()), (None, 0)
    )(x, W),
    "vjp": lambda x: F.vjp(outer(x), W)[1](W),
    "jvp": lambda x: F.jvp(outer(x), (W,), (W,)),
    "jvp along a traced tangent": lambda x: F.jvp(outer(x), (W,), (x * W,)),
    "jvp of a traced primal": lambda x: F.jvp(lambda a: a.sin() * W, (x,), (W[0],)),
    "jacrev": lambda x: F.jacrev(outer(x))(W),
    "jacfwd": lambda x: F.jacfwd(outer(x))(W),
    "hessian": lambda x: F.hessian(summed(x))(W),
    "grad of a module": lambda x: F.grad(lambda p: of_module(p, x).square().sum())(PARAMS),
    "ensemble": lambda x: F.vmap(of_module, (0, None))(STACKED, x),
    "autograd.functional.jvp": lambda x: torch.autograd.functional.jvp(outer(x), W, W),
    "autograd.functional.vjp": lambda x: torch.autograd.functional.vjp(outer(x), W, W),
}


def as_sum(result: Any) -> torch.Tensor:
    leaves = [leaf for leaf in xf.tree.leaves(result) if isinstance(leaf, torch.Tensor)]
    return torch.stack([leaf.cos().sum() for leaf in leaves]).sum()


@pytest.mark.parametrize("case", CASES)
def test_a_transform_of_torch_func_takes_tensors_from_outside(case: str) -> None:
    fun = CASES[case]
    jitted = xf.jit(fun)
    for x in (X, X + 1):
        close(xf.tree.map(torch.Tensor.cpu, jitted(x)), fun(x))
    assert jitted.cache_info().traces == 1
    _, stacked = xf.scan(lambda c, x: (c, fun(x)), X.sum(), torch.stack([X, X + 1]))
    close(xf.tree.map(lambda y: y[1].cpu(), stacked), fun(X + 1))


@pytest.mark.parametrize("case", [c for c in CASES if not c.startswith("autograd")])
def test_the_gradient_of_a_transform_of_torch_func(case: str) -> None:
    fun = CASES[case]
    close(xf.grad(lambda x: as_sum(fun(x)))(X).cpu(), F.grad(lambda x: as_sum(fun(x)))(X))


def test_the_tensor_from_outside_may_change() -> None:
    w = W.clone()
    jitted = xf.jit(lambda x: F.grad(lambda w: (w.sin() * x).sum())(w))
    close(jitted(X).cpu(), W.cos() * X)
    w.mul_(2)
    close(jitted(X).cpu(), (2 * W).cos() * X)
    assert jitted.cache_info().traces == 1


@pytest.mark.parametrize("traced", ["w", "x"])
def test_torch_func_linearize_in_traced_code(traced: str) -> None:
    """Outside, torch folds the constants of its graph, which traced values are not."""

    def with_parts(x: torch.Tensor) -> tuple[Callable[[torch.Tensor], Any], torch.Tensor]:
        def inner(w: torch.Tensor) -> Any:
            return {"product": w.sin() * x, "two": (w + x, 2 * w)}

        return inner, W if traced == "w" else W * x

    def fun(x: torch.Tensor) -> Any:
        out, push = F.linearize(*with_parts(x))
        return out, push(W), push(x * W)

    inner, at = with_parts(X)
    dots = [F.jvp(inner, (at,), (dot,))[1] for dot in (W, X * W)]
    close(xf.tree.map(torch.Tensor.cpu, xf.jit(fun)(X)), (inner(at), *dots))

    def along(x: torch.Tensor) -> torch.Tensor:
        return F.linearize(lambda w: w.sin() * x, W)[1](W).sum()

    close(xf.grad(along)(X).cpu(), (W.cos() * W).sum(0))
