"""`explain` names what made a function trace again, and why a program is not kept on disk."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
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


# ------------------------------------------------------------------------- not kept on disk


LOCK, TENSOR, COUNTS = threading.Lock(), torch.ones(2), [0]
NAMES, KINDS = {"a", "b"}, [frozenset("ab")]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    xf.clear_caches()
    xf.config.set_trace_cache_dir(tmp_path)
    yield tmp_path
    xf.config.set_trace_cache_dir(None)


def counts(x: torch.Tensor) -> torch.Tensor:
    COUNTS.append(0)
    return x * len(COUNTS)


def prints(x: torch.Tensor) -> torch.Tensor:
    xf.debug.print("{}", x)
    return x * 2


def locks(x: torch.Tensor) -> torch.Tensor:
    return x * (not LOCK.locked())


def names(x: torch.Tensor) -> torch.Tensor:
    return x * list(NAMES).index("a")


def constant(x: torch.Tensor) -> torch.Tensor:
    for name in {"a", "b"}:
        x = x * len(name)
    return x


WHY: dict[str, tuple[Callable[..., Any], str]] = {
    "a name": (lambda x: x * hasattr(x, "shape"), "it uses hasattr"),
    "a hash": (lambda x: x * (hash("text") % 7), "hash was called"),
    "the seed": (lambda x: x * (torch.initial_seed() % 7), "torch.random.initial_seed was called"),
    "a lock": (locks, "it depends on a _thread.lock"),
    "the order of a set": (names, "it uses NAMES: the order of a set is another in each process"),
    "the order of a constant": (constant, "it uses a set: the order of a set is another in each"),
    "a set in a list": (lambda x: x * len(KINDS[0]), "it depends on a frozenset whose order is"),
    "the process": (lambda x: x * xf.process_index(), "xfunc.backends.devices.process_index was"),
    "a global tensor": (lambda x: x * TENSOR, "it depends on the tensor TENSOR"),
    "a change": (counts, "the function changes what it depends on"),
    "a callback": (prints, "it calls back to Python, or computes nothing"),
    "a result": (lambda x: (x, {len: x}), "it depends on what its results are made of: "),
}


@pytest.mark.parametrize(("fun", "why"), WHY.values(), ids=WHY)
def test_explain_why_program_is_not_kept_on_disk(
    folder: Path, fun: Callable[..., Any], why: str
) -> None:
    jitted = xf.jit(fun)
    jitted(torch.ones(2))
    assert f"\nnot kept on disk: {why}" in jitted.explain()
    assert not list(folder.iterdir())


def test_explain_not_kept_for_argument_requiring_grad(folder: Path) -> None:
    jitted = xf.jit(lambda x: x * 2)
    jitted(torch.ones(2, requires_grad=True))
    assert jitted.explain().endswith("\nnot kept on disk: autograd watches an argument")
    jitted.clear_cache()
    assert "disk" not in jitted.explain()


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"memory_limit": 2**30}, "what a memory_limit has chosen"),
        ({"dynamic_shapes": ((xf.Dim("N"),),)}, "a program for a range of shapes"),
    ],
)
def test_explain_not_kept_for_option_of_jit(folder: Path, option: dict[str, Any], why: str) -> None:
    jitted = xf.jit(lambda x: torch.tanh(x) * 2, **option)
    jitted(torch.ones(7))
    assert f"\nnot kept on disk: {why}\n" in jitted.explain()
    assert not list(folder.iterdir())
    xf.config.set_trace_cache_dir(None)
    assert "disk" not in jitted.explain()


def test_explain_silent_about_kept_program(folder: Path) -> None:
    def fun(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    for traces in (1, 0):
        xf.clear_caches()
        jitted = xf.jit(fun)
        jitted(torch.ones(2))
        assert xf.trace_count(jitted) == traces
        assert "disk" not in jitted.explain()
    xf.config.set_trace_cache_dir(None)
    jitted = xf.jit(lambda x: x * hasattr(x, "shape"))
    jitted(torch.ones(2))
    assert "disk" not in jitted.explain()
