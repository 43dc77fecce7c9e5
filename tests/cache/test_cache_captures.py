"""Tensors and traced values that functions hold: they are inputs, read at each call."""

# Misuse is the subject here.
# pyright: reportFunctionMemberAccess=false, reportReturnType=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.functions import vector

pytestmark = pytest.mark.usefixtures("cleared")


# ----------------------------------------------------------------------------- captured tensors


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_jit_captured_tensor_is_an_input(where: str) -> None:
    move = xf.device_put if where == "device" else lambda t: t
    weight = move(vector())

    @xf.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * weight

    for k in range(4):
        assert f(vector()).tolist() == xf.device_get(vector() * weight.cpu()).tolist(), k
        weight.add_(1)  # In place.
        assert f(vector()).tolist() == xf.device_get(vector() * weight.cpu()).tolist(), k
        weight[0] = 9.0
        assert f(vector()).tolist() == xf.device_get(vector() * weight.cpu()).tolist(), k
        weight = move(vector() * k)  # Another tensor.
    assert f.cache_info().traces == 1
    weight.data = move(vector(7, 7, 7))  # By the back door.
    assert f(vector()).tolist() == [7.0, 14.0, 21.0]


@pytest.mark.parametrize(
    "write",
    [lambda t: t.numpy().fill(1.0), lambda t: t.data.fill_(1.0), lambda t: t.detach().fill_(1.0)],
    ids=["numpy", "data", "detach"],
)
def test_jit_captured_cpu_tensor_changed_through_alias(write: Callable[[Any], Any]) -> None:
    weight = vector()
    f = xf.jit(lambda x: x * weight)
    assert f(vector()).tolist() == [1.0, 4.0, 9.0]
    write(weight)
    assert f(vector()).tolist() == [1.0, 2.0, 3.0]


def test_jit_captured_parameters_follow_optimizer() -> None:
    module = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    f = xf.jit(lambda x: module(x).sum())
    for _ in range(3):
        y = f(vector())
        torch.testing.assert_close(xf.device_get(y), module(vector()).sum().detach())
        optimizer.zero_grad()
        y.backward()
        optimizer.step()
    assert f.cache_info().traces <= 2


def test_jit_global_tensor_changed_in_place() -> None:
    """As in JAX; a tensor is an input all the same, so a changed one is seen."""
    f = xf.jit(lambda x: x * GLOBAL)
    assert f(vector()).tolist() == [1.0, 4.0, 9.0]
    GLOBAL.mul_(2)
    try:
        assert f(vector()).tolist() == [2.0, 8.0, 18.0]
    finally:
        GLOBAL.div_(2)


GLOBAL = vector()


def test_jit_dead_captured_tensor_is_not_mistaken() -> None:
    """A new tensor at the address of a dead one is not taken for it."""
    for k in range(50):
        w = torch.full((3,), float(k))
        assert xf.jit(lambda x, w=w: x + w)(torch.zeros(3)).tolist() == [k] * 3
        del w


def test_jit_nested_captures_outer_traced_value() -> None:
    def outer(x: torch.Tensor, n: int) -> torch.Tensor:
        inner = xf.jit(lambda y: y * x)
        return sum(inner(x + i) for i in range(n))

    f = xf.jit(outer, static_argnums=1)
    for n in (1, 2, 3, 2):
        for x in (vector(), vector(4, 5, 6)):
            want = sum((x + i) * x for i in range(n))
            torch.testing.assert_close(xf.device_get(f(x, n)), want)


def _asks_a_shape(x: torch.Tensor) -> torch.Tensor:
    """The functions inside hold a traced value of which they never compute with the data."""
    k = x * 2

    def outer(c: torch.Tensor, _: None) -> Any:
        def inner(d: torch.Tensor) -> torch.Tensor:
            return d * k.shape[0] + torch.zeros(k.shape, dtype=k.dtype, device=k.device)

        return xf.scan(lambda d, _: (xf.jit(inner)(d), None), c, None, length=2)[0], None

    return xf.scan(outer, x, None, length=2)[0]


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("first", ["jit", "jacrev", "jvp", "vmap"])
@pytest.mark.parametrize("second", ["jit", "jacrev", "jvp", "vmap"])
def test_jit_nested_uses_only_shape_of_outer_value(first: str, second: str) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    ways: dict[str, Any] = {
        "jit": lambda f: f(x),
        "jacrev": lambda f: xf.jacrev(f)(x).sum(0),
        "jvp": lambda f: xf.jvp(f, (x,), (x,))[1],
        "vmap": lambda f: xf.vmap(f)(torch.stack([x, x]))[1],
    }
    want = {k: torch.full((3,), 81.0) if k == "jacrev" else 81 * x for k in ways}
    for name in (first, second):
        torch.testing.assert_close(ways[name](xf.jit(_asks_a_shape)).cpu(), want[name])


def _rebinds(x: torch.Tensor) -> torch.Tensor:
    """Cached functions close over variables that get other values before the trace ends."""
    y = x * 2
    a = xf.jit(lambda z: z * y)(x)
    y = xf.cond(a.sum() > 0, lambda: y + 1, lambda: y)
    y, total = xf.scan(lambda c, v: (c * v + y.sum(), v), y, torch.ones(2, 3))
    kept = {"y": y}
    y = xf.checkpoint(lambda z: z * y + kept["y"])(y)
    kept["y"] = total
    return (y * a).sum()


def test_jit_variables_rebound_after_inner_call() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])

    def plain(x: torch.Tensor) -> torch.Tensor:
        a = 2 * x * x
        y = 2 * x + 1
        s = y.sum()
        y = y + s
        y = y + s
        return ((y * y + y) * a).sum()

    ways: list[Any] = [
        lambda t, f: f(x),
        lambda t, f: t.grad(f)(x),
        lambda t, f: t.jvp(f, (x,), (x,))[1],
        lambda t, f: t.hessian(f)(x),
        lambda t, f: t.vmap(t.grad(f))(torch.stack([x, x + 1])),
    ]
    for way in ways:
        want = way(torch.func, plain)
        torch.testing.assert_close(way(xf, xf.jit(_rebinds)).cpu(), want)


NESTED: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "jit": lambda f, x: xf.jit(f)(x),
    "checkpoint": lambda f, x: xf.checkpoint(f)(x),
    "scan": lambda f, x: xf.scan(lambda c, _: (f(c), None), x, length=1)[0],
    "fori_loop": lambda f, x: xf.fori_loop(0, 1, lambda _, c: f(c), x),
    "cond": lambda f, x: xf.cond(x.sum() > -99, f, lambda c: c, x),
    "map": lambda f, x: xf.map(f, x[None])[0],
}


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("nested", NESTED)
def test_nested_functions_traced_again_inside_a_cached_one(nested: str) -> None:
    """At the second call the outer program is found, and those inside it are traced for the first
    time without a gradient by the weight that they close over."""

    def ours(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        def f(v: torch.Tensor) -> torch.Tensor:
            inner = xf.jit(lambda v: torch.tanh(v @ w))
            return xf.checkpoint(lambda v: inner(v).sum() * v)(v)

        return NESTED[nested](f, x).pow(2).sum()

    def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(x @ w).sum() * x).pow(2).sum()

    def third(transforms: Any, f: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        second = transforms.grad(lambda x, w: transforms.grad(f)(x, w).pow(2).sum())
        return transforms.grad(lambda x, w: second(x, w).sin().sum(), 1)

    x = torch.linspace(-1, 1, 3, dtype=torch.float64)
    w = torch.linspace(-1, 0.5, 9, dtype=torch.float64).reshape(3, 3)
    first = xf.grad(ours, argnums=(0, 1))(x, w)
    torch.testing.assert_close(xf.device_get(first), torch.func.grad(plain, (0, 1))(x, w))
    got = xf.device_get(third(xf, ours)(x, w))
    torch.testing.assert_close(got, third(torch.func, plain)(x, w))
