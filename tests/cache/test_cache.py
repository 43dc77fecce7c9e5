"""What makes a function trace again, and what must not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.functions import Model, double, power, vector

pytestmark = pytest.mark.usefixtures("cleared")


# ----------------------------------------------------------------------------------- traced once


def test_a_training_step_traces_once() -> None:
    traced: list[str] = []

    def block(c: torch.Tensor, w: torch.Tensor) -> Any:
        traced.append("block")
        return torch.tanh(c @ w), None

    def loss(params: Any, x: torch.Tensor) -> torch.Tensor:
        traced.append("loss")
        return (xf.scan(block, x, params["w"])[0] @ params["head"]).square().mean()

    @functools.partial(xf.jit, donate_argnums=(0, 1))
    def step(params: Any, momentum: Any, x: torch.Tensor, rate: float) -> Any:
        traced.append("step")
        value, grads = xf.value_and_grad(loss)(params, x)
        momentum = xf.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return xf.tree.map(lambda p, m: p - rate * m, params, momentum), momentum, value

    generator = torch.Generator().manual_seed(0)
    params = {
        "w": torch.randn(4, 3, 3, generator=generator),
        "head": torch.randn(3, 1, generator=generator),
    }
    x = torch.randn(2, 3, generator=generator)
    ours, momentum = xf.device_put(params), xf.device_put(xf.tree.map(torch.zeros_like, params))
    values = []
    for i in range(100):
        ours, momentum, value = step(ours, momentum, x, 0.1 / (1 + i))
        values.append(value)
    info = step.cache_info()
    assert traced.count("step") == 1
    assert traced.count("loss") == 1
    assert traced.count("block") == 1
    assert xf.trace_count(step) == 1
    assert (info.hits, info.misses, info.traces, info.compiles, info.size) == (99, 1, 1, 1, 1)

    plain = {k: v.clone().requires_grad_() for k, v in params.items()}
    velocity = {k: torch.zeros_like(v) for k, v in params.items()}
    for i in range(100):
        y = x
        for w in plain["w"]:
            y = torch.tanh(y @ w)
        want = (y @ plain["head"]).square().mean()
        grads = torch.autograd.grad(want, list(plain.values()))
        torch.testing.assert_close(xf.device_get(values[i]), want.detach(), rtol=2e-3, atol=1e-5)
        with torch.no_grad():
            for (k, p), g in zip(plain.items(), grads, strict=True):
                velocity[k] = 0.9 * velocity[k] + g
                p -= 0.1 / (1 + i) * velocity[k]


_model = Model()
_module = torch.nn.Linear(3, 2)


def _nested() -> Callable[..., Any]:
    factor = 3

    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return lambda x: inner(x) + 1


# What is made anew for each call, and still counts as the same function.
REMADE: dict[str, Callable[[], Callable[..., Any]]] = {
    "lambda": lambda: xf.jit(lambda x: x * 2),
    "lambda with default": lambda: xf.jit(lambda x, k=2: x * k),
    "partial": lambda: xf.jit(functools.partial(power, n=3)),
    "partial with a tensor": lambda: xf.jit(functools.partial(torch.mul, vector())),
    "bound method": lambda: xf.jit(_model.apply),
    "callable object": lambda: xf.jit(_model),
    "method of an equal object": lambda: xf.jit(Model().apply),
    "closure": lambda: xf.jit(_nested()),
    "closure over a new tensor": lambda: (lambda w: xf.jit(lambda x: x * w))(vector()),
    "closure over a new tree": lambda: (lambda p: xf.jit(lambda x: x * p["w"][0]))(
        {"w": [vector(), 1.0]}
    ),
    "nan": lambda: (lambda n: xf.jit(lambda x: x * n))(float("nan")),
    "module": lambda: xf.jit(lambda x: _module(x)),
    "grad": lambda: xf.grad(lambda x: x.sin().sum()),
    "jit of grad": lambda: xf.jit(xf.grad(lambda x: x.sin().sum())),
    "jit of vmap of grad": lambda: xf.jit(xf.vmap(xf.grad(lambda x: x.sin()))),
    "hessian": lambda: xf.jit(xf.hessian(lambda x: x.sin().sum())),
    "checkpoint": lambda: xf.jit(xf.grad(xf.checkpoint(lambda x: x.sin().sum()))),
    "jit of jit": lambda: xf.jit(xf.jit(double)),
    "scan": lambda: lambda x: xf.scan(lambda c, y: (c + y, c * y), torch.zeros(()), x),
    "scan in jit": lambda: xf.jit(
        lambda x: xf.scan(lambda c, y: (c + y, c * y), torch.zeros(()), x)
    ),
    "options": lambda: xf.jit(lambda x, k: x * k, static_argnames="k", donate_argnums=()),
}


@pytest.mark.parametrize("name", REMADE)
def test_a_function_made_anew_traces_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from xfunc.program.program import Program

    runs: list[str] = []
    trace, joint = Program.trace, Program.joint
    monkeypatch.setattr(Program, "trace", lambda s: (runs.append("trace"), trace(s))[1])
    monkeypatch.setattr(Program, "joint", lambda s, *a: (runs.append("joint"), joint(s, *a))[1])
    arguments = (vector(), 2) if name == "options" else (vector(),)
    with torch.no_grad():
        first = REMADE[name]()(*arguments)
        made = len(runs)
        for _ in range(5):
            torch.testing.assert_close(
                xf.device_get(REMADE[name]()(*arguments)), xf.device_get(first), equal_nan=True
            )
    assert made > 0
    assert len(runs) == made


def test_trace_count_and_assert_max_traces() -> None:
    """Counting the runs by what a closure holds does not itself cause runs."""
    number, numbers, table = 0, [], {"n": 0}

    def fun(x: torch.Tensor) -> torch.Tensor:
        nonlocal number
        number += 1
        numbers.append(1)
        table["n"] += 1
        return x + 1

    f = xf.jit(fun)
    for n in (2, 2, 3, 2, 3):
        f(torch.zeros(n))
    assert number == len(numbers) == table["n"] == 2
    assert xf.trace_count(f) == xf.trace_count(fun) == 2
    xf.debug.assert_max_traces(f, 2)
    with pytest.raises(AssertionError, match=r"fun was traced 2 times, not at most 1"):
        xf.debug.assert_max_traces(f, 1)


def test_a_counter_of_runs_counts_traces_once() -> None:
    runs = 0

    def f(x: torch.Tensor) -> torch.Tensor:
        nonlocal runs
        runs += 1
        return x.sin().sum()

    x = torch.ones(3)
    for _ in range(3):
        xf.jit(f)(x)
    assert runs == 1
