"""`explain` names what made a function trace again, and why a program is not kept on disk."""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.functions import vector

pytestmark = [pytest.mark.usefixtures("cleared"), pytest.mark.quick]


def _first(x, *rest, **named):
    return xf.tree.leaves(x)[0] * 2


_X = vector()
_one_shape, _many = torch.ones(3), {f"w{i}": torch.ones(2) for i in range(40)}
_OF_ARGUMENTS: dict[str, tuple[Any, Any, str]] = {
    "shape": ({"w": _one_shape}, {"w": torch.ones(4)}, "x['w'] changed from float32[3] to "),
    "dtype": (_one_shape, _one_shape.double(), "x changed from float32[3] to float64[3]"),
    "number": (_one_shape, 2, "x changed from float32[3] to int64[]"),
    "new": ({"w": _one_shape}, {"w": _one_shape, "b": _one_shape}, "x['b'] is new: float32[3]"),
    "gone": ([_one_shape] * 2, [_one_shape], "x[1] is gone: float32[3]"),
    "nested": ([_one_shape], [[_one_shape]], "x[0][0] is new: float32[3]\nx[0] is gone"),
    "container": ([_one_shape], (_one_shape,), "x changed from list to tuple"),
    "inner": ({"a": [_one_shape]}, {"a": (_one_shape,)}, "x['a'] changed from list to tuple"),
    "None": ({"a": _X, "b": None}, {"a": _X, "b": ()}, "x['b'] changed from NoneType"),
    "many": (
        _many,
        {k: v.double() for k, v in _many.items()},
        "x['w0'] changed from float32[2] to float64[2]\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _OF_ARGUMENTS)
def test_explain_names_argument_path(name: str) -> None:
    before, after, says = _OF_ARGUMENTS[name]
    f = xf.jit(functools.partial(_first))
    f.clear_cache()
    f(before)
    assert "first call" in f.explain()
    f(after)
    assert f"last miss: {says}" in f.explain()
    assert len(f.explain()) < 500
    if name == "many":
        assert f.explain().endswith("... and 35 more")


def test_explain_names_static_arguments_and_closures() -> None:
    f = xf.jit(lambda x, n, mode="a": x * n, static_argnames=("n", "mode"))
    f.clear_cache()
    f(vector(), 2)
    f(vector(), 3)
    assert "the static argument n went from 2 to 3" in f.explain()
    f(vector(), 3, mode="b")
    assert "the static argument mode went from not given to 'b'" in f.explain()
    f(vector(1), 3)
    assert "x changed from float32[3] to float32[1]" in f.explain()

    def held(k: Any) -> Any:
        factor = k
        return xf.jit(lambda x: x * factor)

    held(5)(vector())
    held(6)(vector())
    assert "a value that the function holds changed: 5 -> 6 in factor" in held(6).explain()


def test_explain_names_class_with_static_fields() -> None:
    def f(x):
        return x.x * 2

    tag = dataclasses.make_dataclass("Tag", ["x", "tag"])
    xf.tree.register_dataclass(tag, meta_fields=("tag",))
    jitted = xf.jit(f)
    jitted(tag(vector(), "a"))
    jitted(tag(vector(), "b"))
    assert "x (Tag) changed in what its class keeps beside its leaves" in jitted.explain()


def test_log_of_traces_and_compilations(caplog: pytest.LogCaptureFixture) -> None:
    def logged(x):
        return xf.jit(_first)(x)

    outer = xf.jit(logged)
    with caplog.at_level(logging.INFO, logger="xfunc"):
        for x in (_X, _X, _X.double()):
            outer(x)
    name = "test_log_of_traces_and_compilations.<locals>.logged"
    changed = "changed from float32[3] to float64[3]"
    assert caplog.messages == [
        f"tracing {name}: first call",
        "tracing _first: first call",
        f"compiled {name}",
        f"tracing {name}: x {changed}",
        f"tracing _first: x {changed}",
        f"compiled {name}",
    ]
    caplog.clear()
    outer(_X.half())
    assert not caplog.messages
