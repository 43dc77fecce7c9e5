"""The cache of programs: functions that share one, and its bounds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.functions import Model, double, power, vector
from xfunc.cache import mutated, programs
from xfunc.core import locations
from xfunc.program.program import TracedProgram
from xfunc.trace import scopes

pytestmark = [pytest.mark.usefixtures("cleared"), pytest.mark.quick]


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
def test_recreated_function_traces_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    trace, joint = TracedProgram.trace, TracedProgram.joint
    monkeypatch.setattr(TracedProgram, "trace", lambda s: (runs.append("trace"), trace(s))[1])
    monkeypatch.setattr(
        TracedProgram, "joint", lambda s, *a: (runs.append("joint"), joint(s, *a))[1]
    )
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


def test_volatile_objects_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutated, "MOST", 3)
    logs: list[list[int]] = [[] for _ in range(5)]
    for log in logs:

        def f(x: torch.Tensor, log: list[int] = log) -> torch.Tensor:
            log.append(1)
            return x * 2

        xf.jit(lambda x, f=f: f(x))(vector())
    assert 0 < mutated.count() <= 3


def test_clear_caches_forgets_source_lines() -> None:
    lowered = xf.jit(double).lower(vector())
    assert "functions.py" in lowered.as_text()
    xf.clear_caches()
    tables = (locations._lines, scopes._stamps, scopes._origins, scopes._kept)
    assert [len(t) for t in tables] == [0] * 4
    assert "multiply" in lowered.as_text()  # without its lines
    assert "functions.py" in xf.jit(double).lower(vector()).as_text()


def test_max_entries_evicts_least_recently_used_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MAX_ENTRIES", 2)
    f = xf.jit(lambda x: x * 2)
    for n, traces, size in [(1, 1, 1), (2, 2, 2), (1, 2, 2), (3, 3, 2), (1, 3, 2), (2, 4, 2)]:
        assert f(torch.ones(n)).tolist() == [2.0] * n
        assert (f.cache_info().traces, f.cache_info().size) == (traces, size)


def test_max_functions_bounds_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MAX_FUNCTIONS", 3)
    made = [eval(f"lambda x: x * {k}") for k in range(6)]
    for k, f in [*enumerate(made), *enumerate(made)]:
        assert xf.jit(f)(vector()).tolist() == [k, 2 * k, 3 * k]
    assert len(programs._functions) <= 3


def test_max_functions_spares_functions_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MAX_FUNCTIONS", 3)
    used = xf.jit(double)
    for k in range(6):
        assert used(vector()).tolist() == [2.0, 4.0, 6.0]
        xf.jit(eval(f"lambda x: x * {k}"))(vector())
    assert xf.trace_count(used) == xf.trace_count(double) == used.cache_info().traces == 1
    assert xf.jit(double)(vector()).tolist() == [2.0, 4.0, 6.0]  # They share the program.
    assert xf.trace_count(used) == 1
    for k in range(6):
        xf.jit(eval(f"lambda x: x + {k}"))(vector())
    xf.clear_caches()
    assert xf.trace_count(used) == 0
    assert used.cache_info().size == 0
