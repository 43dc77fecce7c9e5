"""A function that clears a flag of its own in its first run is traced again for the second."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

X = torch.tensor([1.0, 2.0])

FLAGS = {
    "variable": """
def make():
    first = True
    def f(x):
        nonlocal first
        factor, first = 2.0 if first else 3.0, False
        return x * factor
    return f
f = make()
""",
    "global": """
first = True
def f(x):
    global first
    factor, first = 2.0 if first else 3.0, False
    return x * factor
""",
    "attribute": """
class Layer:
    def __init__(self):
        self.first = True
    def __call__(self, x):
        factor, self.first = 2.0 if self.first else 3.0, False
        return x * factor
f = Layer().__call__
""",
    "attribute of a class": """
class Layer:
    ready = False
def f(x):
    factor, Layer.ready = 3.0 if Layer.ready else 2.0, True
    return x * factor
""",
    "entry": """
def make():
    state = {"first": True, "runs": "some"}
    def f(x):
        factor, state["first"] = 2.0 if state["first"] else 3.0, False
        return x * factor
    return f
f = make()
""",
    "beside a count": """
def make():
    runs, first = 0, True
    def f(x):
        nonlocal runs, first
        runs += 1
        factor, first = 2.0 if first else 3.0, False
        return x * factor
    return f
f = make()
""",
    "global beside a count": """
runs, first = 0, True
def f(x):
    global runs, first
    runs += 1
    factor, first = 2.0 if first else 3.0, False
    return x * factor
""",
}

WAYS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "plain": lambda f: f,
    "jit": xf.jit,
    "nested": lambda f: xf.jit(lambda x: xf.jit(f)(x) + 0),
    "grad": lambda f: lambda x: xf.grad(lambda x: (f(x) * x.detach()).sum())(x),
    "vmap": lambda f: lambda x: xf.vmap(f)(x[None])[0],
}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("way", WAYS)
def test_transforms_first_run_flag_cleared_by_function(name: str, way: str) -> None:
    module: Any = types.ModuleType("of_the_user")
    exec(compile(FLAGS[name], __file__, "exec"), vars(module))
    run = WAYS[way](module.f)
    before = xf.trace_count(module.f)
    found = [(run(X) / X).tolist() for _ in range(4)]
    assert found == [[2.0, 2.0], *[[3.0, 3.0]] * 3]
    assert xf.trace_count(module.f) - before <= 2 * (way != "plain")
