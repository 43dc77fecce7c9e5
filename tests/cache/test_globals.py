"""Rebinding a global that a function names makes a new program; nothing else does."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

SOURCE = """
import torch
import xfunc as xf

scale = 2.0
table = {"power": 2}
data = torch.ones(3)
counted = []

def helper(x):
    return x ** table["power"]

def f(x):
    counted.append(1)
    return (helper(x) * scale + data).sum()
"""
X = torch.tensor([1.0, 2.0, 3.0])


def _notebook() -> Any:
    """A fresh namespace, as of a notebook."""
    module = types.ModuleType("notebook")
    exec(compile(SOURCE, __file__, "exec"), module.__dict__)
    return module


def test_jit_global_rebound() -> None:
    m = _notebook()
    for transformed in (xf.jit(m.f), xf.jit(lambda x: xf.jit(m.f)(x))):
        m.scale, m.table["power"], m.data = 2.0, 2, torch.ones(3)
        want = 2 * 14 + 3
        assert transformed(X).item() == want
        m.scale = 3.0
        assert transformed(X).item() == 3 * 14 + 3
        m.table["power"] = 1
        assert transformed(X).item() == 3 * 6 + 3
        m.data = torch.zeros(3)
        assert transformed(X).item() == 3 * 6


def test_grad_global_rebound() -> None:
    m = _notebook()
    assert xf.grad(m.f)(X).tolist() == [4, 8, 12]
    m.scale = 1
    assert xf.grad(m.f)(X).tolist() == [2, 4, 6]
    exec("def helper(x):\n    return 10 * x", m.__dict__)
    assert xf.grad(m.f)(X).tolist() == [10, 10, 10]


def test_jit_global_mutated_by_function_traces_once() -> None:
    """A global that the function changes itself is no reason to trace it again."""
    m = _notebook()
    f = xf.jit(m.f)
    for x in (X, X[:1], X, X[:1], X + 1):
        f(x)
    first = len(m.counted)
    for x in (X, X[:1], X, X[:1], X + 1):
        f(x)
    assert len(m.counted) == first <= 3


def test_jit_global_restored_finds_old_program() -> None:
    m = _notebook()
    f = xf.jit(m.f)
    f(X)
    m.scale = 3.0
    f(X)
    m.scale = 2.0
    assert f(X).item() == 31
    assert f.cache_info().traces == 2
    m.scale = 5.0
    f(X)
    assert "a global changed: 3.0 -> 5.0 in scale" in f.explain()


def test_jit_global_bound_to_library_function() -> None:
    """Under a name of the user's own, a function of a library may be another one later."""
    m = _notebook()
    exec("import torch, xfunc as xf\nchoice = torch.sin\ndef g(x): return choice(x).sum()", vars(m))
    f = xf.grad(m.g)
    assert f(torch.zeros(())).item() == 1
    m.choice = torch.cos
    assert f(torch.zeros(())).item() == 0
    exec("Kind = type('A', (), {'n': 1})\ndef h(x): return x * Kind.n", vars(m))
    h = xf.jit(m.h)
    assert h(2.0).item() == 2
    m.Kind = type("B", (), {"n": 5})
    assert h(2.0).item() == 10
    m.keep = xf.checkpoint_policies.everything_saveable
    exec(
        "def k(x): return xf.checkpoint(lambda y: torch.tanh(torch.tanh(y)), policy=keep)(x)",
        vars(m),
    )
    hlo = xf.jit(xf.value_and_grad(m.k))
    assert hlo.lower(1.0).as_text().count(" tanh(") == 2
    m.keep = xf.checkpoint_policies.nothing_saveable
    assert hlo.lower(1.0).as_text().count(" tanh(") == 4
