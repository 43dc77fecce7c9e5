"""How the tests in `test_stale*` try programs of functions whose meaning changes between calls.

Each case is Python source: what is defined (with a function ``f`` of one tensor), a change, and
what takes the change back.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import torch

import xfunc as xf


@dataclasses.dataclass(frozen=True)
class Case:
    """Source of a module, of a change to it, and of what takes it back."""

    define: str
    change: str
    back: str


PREAMBLE = """
import collections, contextvars, dataclasses, enum, functools, os, threading, types, weakref
import numpy as np
import torch
import xfunc as xf
"""


def case(define: str, change: str, back: str) -> Case:
    return Case(PREAMBLE + define, change, back)


X = torch.tensor([1.0, 2.0, 3.0])


def module(source: str) -> Any:
    """A fresh module of the user's."""
    module = types.ModuleType("of_the_user")
    exec(compile(source, __file__, "exec"), vars(module))
    return module


def _nesting(m: Any) -> Callable[[Any], Any]:
    return lambda x: xf.jit(m.f)(x) + 1


def _calling(m: Any) -> Callable[[Any], Any]:
    return lambda x: m.f(x)


def _holding(f: Any) -> Callable[[Any], Any]:
    return lambda x: f(x)


def _nested(m: Any) -> Callable[[Any], Any]:
    outer = xf.jit(_nesting(m))
    return lambda x: outer(x) - 1


WAYS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "jit": lambda m: xf.jit(m.f),
    "vmap": lambda m: lambda x: xf.vmap(m.f)(torch.stack([x, x]))[1],
    "nested": _nested,
    "fresh closure": lambda m: lambda x: xf.jit(_calling(m))(x),
    "held": lambda m: xf.jit(_holding(m.f)),
}


def traces(m: Any) -> int:
    """How often the function of a module was traced, with those that `WAYS` put around it."""
    return sum(xf.trace_count(f) for f in (m.f, _nesting(m), _calling(m), _holding(m.f)))


def assert_change_is_seen(case: Case, way: str) -> None:
    """A change makes a new program, and what takes it back finds the old one."""
    m = module(case.define)
    f = WAYS[way](m)

    def check() -> Any:
        want = m.f(X)
        # The third time, what the function holds is being watched; see also NOTE [calls like the
        # last one] in `xfunc.stages.fast_path`.
        for x in (X, X, X, *[xf.device_put(X)] * 3):
            torch.testing.assert_close(xf.device_get(f(x)), want, rtol=1e-5, atol=1e-6)
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
    before = traces(m)
    assert before > 0
    check()
    assert traces(m) == before, "the first program was not found again"
