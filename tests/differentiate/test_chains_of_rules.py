"""Higher derivatives of functions that call functions with rules one after another."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf


def _of_jvp() -> Callable[..., Any]:
    sine = xf.custom_jvp(torch.sin)
    sine.defjvp(lambda p, t: (sine(p[0]), p[0].cos() * t[0]))
    return sine


def _of_vjp() -> Callable[..., Any]:
    sine = xf.custom_vjp(torch.sin)
    sine.defvjp(lambda x: (x.sin(), x), lambda x, ct: (x.cos() * ct,))
    return sine


def _of_both() -> Callable[..., Any]:
    one, other = _of_jvp(), _of_vjp()
    return lambda x: other(one(x))


def _of_a_closure() -> Callable[..., Any]:
    """torch's own rule, in a class that closes over a traced value."""

    def sine(x: torch.Tensor) -> Any:
        class Sine(torch.autograd.Function):
            unused = x

            @staticmethod
            def forward(x: torch.Tensor) -> torch.Tensor:
                return x.sin()

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                ctx.save_for_backward(*inputs)

            @staticmethod
            def backward(ctx: Any, *cts: torch.Tensor) -> Any:
                return ctx.saved_tensors[0].cos() * cts[0]

        return Sine.apply(x)

    return sine


SINES = {"jvp": _of_jvp, "vjp": _of_vjp, "both": _of_both, "closure": _of_a_closure}

INSIDE: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda f: f,
    "jit": xf.jit,
    "checkpoint": xf.checkpoint,
    "nothing_saveable": lambda f: xf.checkpoint(f, policy=xf.checkpoint_policies.nothing_saveable),
    "scan": lambda f: lambda x: xf.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
    "cond": lambda f: lambda x: xf.cond(x > -9, f, lambda y: y, x),
    "fori_loop": lambda f: lambda x: xf.fori_loop(0, 1, lambda _, c: f(c), x),
    "map": lambda f: lambda x: xf.map(f, x[None])[0],
}

SECOND: dict[str, Callable[[Any], Any]] = {
    "grad(grad)": lambda f: xf.grad(xf.grad(f)),
    "jacrev(jacrev)": lambda f: xf.jacrev(xf.jacrev(f)),
    "jvp(grad)": lambda f: lambda x: xf.jvp(xf.grad(f), (x,), (torch.ones_like(x),))[1],
    "hessian": xf.hessian,
    "vmap(grad(grad))": lambda f: lambda x: xf.vmap(xf.grad(xf.grad(f)))(x[None])[0],
}


def _eager(n: int, order: int) -> float:
    x = torch.tensor(3.0, requires_grad=True)
    y = x
    for _ in range(n):
        y = y.sin()
    for _ in range(order):
        (y,) = torch.autograd.grad(y, x, create_graph=True)
    return y.item()


def _chain(kind: str, n: int) -> Callable[..., Any]:
    # A new function each time: what a process has traced once does not leak any more.
    sine = SINES[kind]()

    def f(x: torch.Tensor) -> Any:
        for _ in range(n):
            x = sine(x)
        return x

    return f


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_grad_of_grad_of_chained_rules(kind: str, inside: str) -> None:
    f = xf.grad(xf.grad(INSIDE[inside](_chain(kind, 3))))
    assert f(torch.tensor(3.0)).item() == pytest.approx(_eager(3, 2), rel=1e-4)


@pytest.mark.parametrize("kind", ["both", "closure"])
def test_grad_of_grad_of_other_chains(kind: str) -> None:
    f = xf.grad(xf.grad(_chain(kind, 4)))
    assert f(torch.tensor(3.0)).item() == pytest.approx(
        _eager(8 if kind == "both" else 4, 2), rel=1e-4
    )


@pytest.mark.sample(16, seed=0)
@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize(
    ("kind", "second"),
    # custom_vjp functions have no forward mode, which hessian uses.
    [(k, s) for k in ("jvp", "vjp", "both") for s in SECOND if k == "jvp" or s != "hessian"],
)
def test_second_derivatives_of_chained_rules(kind: str, second: str, inside: str) -> None:
    n = 4
    f = INSIDE[inside](_chain(kind, n // 2 if kind == "both" else n))
    assert SECOND[second](f)(torch.tensor(3.0)).item() == pytest.approx(_eager(n, 2), rel=1e-4)


def test_grad_of_grad_of_a_forward_rule_that_calls_its_function() -> None:
    h = xf.custom_vjp(torch.sin)
    h.defvjp(lambda x: (h(x), torch.cos(x)), lambda c, ct: (2 * c * ct,))
    x = torch.tensor(2.0, dtype=torch.float64)
    # The gradient is 2 cos(h(x)) 2 cos(x), in which h'(x) counts as 2 cos(x).
    second = -4 * x.sin().sin() * 2 * x.cos() * x.cos() - 4 * x.sin().cos() * x.sin()
    f = xf.grad(xf.grad(xf.checkpoint(lambda x: h(h(x)))))
    assert f(torch.tensor(2.0)).item() == pytest.approx(second.item(), rel=1e-5)


def _jvp(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: xf.jvp(f, (x,), (torch.ones_like(x),))[1]


@pytest.mark.parametrize("inside", ["jit", "scan", "cond"])
def test_second_derivatives_see_the_operations_of_a_forward_rule(inside: str) -> None:
    h = xf.custom_jvp(torch.sin)
    h.defjvp(lambda p, t: (p[0].sin(), 2 * p[0].cos() * t[0]))
    within = INSIDE[inside](h)
    x = torch.tensor(2.0, dtype=torch.float64)
    # The derivative of the square is 2 sin(x) 2 cos(x); the next one does not know the rule.
    want = pytest.approx(4 * (2 * x).cos().item())
    for outer, inner in itertools.product((xf.grad, _jvp), repeat=2):
        assert outer(inner(lambda x: within(x).square()))(x).item() == want


@pytest.mark.parametrize("inside", ["jit", "scan", "cond"])
@pytest.mark.parametrize("inner", [_jvp, xf.grad])
def test_jvp_of_derivative_by_a_rule_with_a_while_loop(inner: Any, inside: str) -> None:
    def cube(x: Any) -> Any:
        start = (torch.zeros(()), torch.ones_like(x))
        return xf.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * x), start)[1]

    h = xf.custom_jvp(torch.sin)
    h.defjvp(lambda p, t: (p[0].sin(), cube(p[0]) * t[0]))
    x = torch.tensor(2.0, dtype=torch.float64)
    assert _jvp(inner(INSIDE[inside](h)))(x).item() == pytest.approx(3 * x.item() ** 2)


def test_third_derivative_of_chained_rules() -> None:
    f = xf.grad(xf.grad(xf.grad(xf.jit(_chain("jvp", 4)))))
    assert f(torch.tensor(3.0)).item() == pytest.approx(_eager(4, 3), rel=1e-4)
