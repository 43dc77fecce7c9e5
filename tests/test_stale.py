"""A program is not used when its function means something else now, and found when it is back."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stale_cases import CASES, EQUAL, EQUAL_PREAMBLE

import xfunc as xf

X = torch.tensor([1.0, 2.0, 3.0])


def _module(source: str) -> Any:
    """A fresh module of the user's."""
    module = types.ModuleType("of_the_user")
    exec(compile(source, __file__, "exec"), vars(module))
    return module


def _nested(m: Any) -> Callable[[Any], Any]:
    outer = xf.jit(lambda x: xf.jit(m.f)(x) + 1)
    return lambda x: outer(x) - 1


WAYS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "jit": lambda m: xf.jit(m.f),
    "vmap": lambda m: lambda x: xf.vmap(m.f)(torch.stack([x, x]))[1],
    "nested": _nested,
    "fresh closure": lambda m: lambda x: xf.jit(lambda y: m.f(y))(x),
}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dataclasses look their module up."""
    monkeypatch.setitem(sys.modules, "of_the_user", types.ModuleType("of_the_user"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_a_change_is_seen_and_taken_back(name: str, way: str) -> None:
    case = CASES[name]
    m = _module(case.define)
    f = WAYS[way](m)

    def check() -> Any:
        want = m.f(X)
        for _ in range(2):
            torch.testing.assert_close(xf.device_get(f(X)), want, rtol=1e-5, atol=1e-6)
        return want

    first = check()
    exec(case.change, vars(m))
    try:
        assert not torch.equal(check(), first), "the change changes nothing"
    finally:
        exec(case.back, vars(m))
    xf.clear_caches()
    assert torch.equal(check(), first)
    exec(case.change, vars(m))
    try:
        check()
    finally:
        exec(case.back, vars(m))
    before = _entries()
    check()
    assert _entries() == before, "the first program was not found again"


def _entries() -> int:
    """How many programs were traced, of all functions together."""
    from xfunc import cache

    return sum(c.traces for c in cache._functions.values())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", EQUAL)
def test_values_that_compare_equal(name: str, way: str) -> None:
    a, b, compute = EQUAL[name]
    m = _module(f"{EQUAL_PREAMBLE}\ndef make(v):\n    def f(x): return {compute}\n    return f")
    values = [eval(a, vars(m)), eval(b, vars(m))]
    wants = []
    for v in (*values, *values):
        m.f = m.make(v)
        want = m.f(X)
        torch.testing.assert_close(xf.device_get(WAYS[way](m)(X)), want, rtol=1e-5, atol=1e-6)
        wants.append(want)
    assert not torch.equal(wants[0], wants[1]), "the values compute the same"
    m.g = types.SimpleNamespace(v=values[0])
    exec(f"def f(x):\n    v = g.v\n    return {compute}", vars(m))
    for v in (*values, *values):
        m.g.v = v
        want = m.f(X)
        torch.testing.assert_close(xf.device_get(WAYS[way](m)(X)), want, rtol=1e-5, atol=1e-6)
