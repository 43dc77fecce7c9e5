"""Changes in place that neither a name nor Python's version numbers show make a new program."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
X = torch.ones(2)
held: Any = torch.ones(3)  # a global that the tests change

READ: dict[str, Callable[[Any], Tensor]] = {
    "from_numpy": torch.from_numpy,
    "frombuffer": lambda a: torch.frombuffer(a, dtype=torch.float32),
    "from_dlpack": torch.from_dlpack,
    "tensor": torch.tensor,
}
NEST: dict[str, Callable[..., Any]] = {
    "jit": lambda f: xf.jit(f),
    "jit in a jit": lambda f: xf.jit(lambda x: xf.jit(f)(x) + 0),
    "jit in a grad": lambda f: xf.grad(lambda x: (xf.jit(f)(x) * x).sum() / 2),
    "vmap": lambda f: lambda x: xf.vmap(f)(x[None])[0],
}


@pytest.mark.parametrize("nest", NEST)
@pytest.mark.parametrize("read", READ)
def test_equal_array_after_the_first_was_changed(read: str, nest: str) -> None:
    def call(a: Any) -> list[float]:
        return NEST[nest](lambda x: x * READ[read](a))(X).tolist()

    first = np.array([2, 3], np.float32)
    assert call(first) == [2, 3]
    first[:] = 50
    assert call(np.array([2, 3], np.float32)) == [2, 3]
    assert call(first) == [50, 50]


@pytest.mark.parametrize("read", READ)
def test_derivative_for_equal_array_after_the_first_was_changed(read: str) -> None:
    def make(a: Any) -> Any:
        return xf.jit(lambda x: x * READ[read](a))

    first = np.array([2, 3], np.float32)
    make(first)(X)
    first[:] = 50
    f = make(np.array([2, 3], np.float32))
    assert xf.grad(lambda x: f(x).sum())(X).tolist() == [2, 3]
    assert xf.jvp(lambda x: f(x), (X,), (X,))[1].tolist() == [2, 3]
    assert xf.vmap(lambda x: f(x))(X[None]).tolist() == [[2, 3]]


def test_tensor_of_an_array_that_the_function_holds_shows_changes() -> None:
    array = np.array([2, 3], np.float32)
    tensor = torch.from_numpy(array)
    f = xf.jit(lambda x: x * tensor)
    assert f(X).tolist() == [2, 3]
    array[:] = 50
    assert f(X).tolist() == [50, 50]


CHANGES: dict[str, tuple[Any, Callable[[Any], object], Callable[[Any], float]]] = {
    "order of an OrderedDict": (
        collections.OrderedDict(a=1.0, b=2.0),
        lambda d: d.move_to_end("a"),
        lambda d: float("".join(str(int(v)) for v in d.values())),
    ),
    "order of an OrderedDict with other keys": (
        collections.OrderedDict({1: 1.0, 2: 2.0}),
        lambda d: d.move_to_end(1),
        lambda d: float("".join(map(str, d))),
    ),
    "shape of an array": (
        np.arange(4.0),
        lambda a: setattr(a, "shape", (2, 2)),
        lambda a: float(a.shape[0]),
    ),
    "dtype of an array": (
        np.arange(4, dtype=np.float32),
        lambda a: setattr(a, "dtype", np.int32),
        lambda a: 1.0 if a.dtype == np.float32 else 2.0,
    ),
    "shape of an array of objects": (
        np.array([1, "a", None, ()], dtype=object),
        lambda a: setattr(a, "shape", (2, 2)),
        lambda a: float(a.ndim),
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("where", ["closure", "attribute", "global"])
def test_change_in_place(name: str, where: str) -> None:
    thing, change, read = CHANGES[name]
    thing = copy.deepcopy(thing)
    if where == "closure":
        f = xf.jit(lambda x: x * read(thing))
    elif where == "attribute":
        box: Any = type("Box", (), {})()
        box.thing = thing
        f = xf.jit(lambda x: x * read(box.thing))
    else:
        global held
        held = thing
        f = xf.jit(lambda x: x * read(held))
    for _ in range(3):
        assert f(X).tolist() == [read(thing)] * 2
    change(thing)
    for _ in range(3):
        assert f(X).tolist() == [read(thing)] * 2


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.unsqueeze_(0),
        lambda t: t.resize_(1),
        lambda t: setattr(t, "data", torch.full((2, 3), 2.0)),
        lambda t: setattr(t, "data", torch.ones(3, dtype=torch.float64)),
    ],
    ids=["unsqueeze_", "resize_", "data of another shape", "data of another dtype"],
)
def test_global_tensor_of_another_shape_or_dtype(change: Callable[[Tensor], object]) -> None:
    global held
    held = torch.ones(3)
    x = torch.ones(3)
    f = xf.jit(lambda x: x + held)
    for _ in range(3):
        f(x)
    change(held)
    for _ in range(2):
        torch.testing.assert_close(f(x).cpu(), x + held)


@pytest.fixture
def linear() -> Any:
    module = torch.nn.Linear(2, 2).requires_grad_(False)
    f = xf.jit(lambda x: module(x))
    for _ in range(3):
        f(X)
    return f, module(X)


@pytest.mark.parametrize("pre", [False, True])
def test_hook_of_all_modules(linear: Any, pre: bool) -> None:
    f, want = linear
    scale = 0.0
    modules: Any = torch.nn.modules.module
    if pre:
        hook = modules.register_module_forward_pre_hook(lambda m, args: (args[0] * scale,))
    else:
        hook = modules.register_module_forward_hook(lambda m, args, out: out * scale)
    try:
        for scale in (0.0, 0.0, 2.0):
            hooked = f(X)
            if not pre:
                torch.testing.assert_close(hooked.cpu(), want * scale)
            else:
                assert not torch.allclose(hooked.cpu(), want)
    finally:
        hook.remove()
    for _ in range(2):
        torch.testing.assert_close(f(X).cpu(), want)


def test_hook_of_all_modules_that_holds_a_tensor(linear: Any) -> None:
    f, want = linear
    before = xf.trace_count(f)

    def scaling(scale: Tensor) -> Any:
        return lambda module, args, out: out * scale

    for k in (2.0, 3.0):
        hook = torch.nn.modules.module.register_module_forward_hook(scaling(torch.tensor(k)))
        torch.testing.assert_close(f(X).cpu(), want * k)
        hook.remove()
    assert xf.trace_count(f) == before + 1
