"""An equal object finds the program of another one that has changed since, and derives from it."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
X = torch.ones(2)


class Model:
    def __init__(self, k: Any):
        self.k = k

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.k


class Slots:
    __slots__ = ("k",)

    def __init__(self, k: float):
        self.k = k

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.k


class Nested:
    """A cycle of objects, a reference to one of them, and a set that finds it."""

    def __init__(self, k: float):
        self.inner = Model(k)
        self.owner = self
        self.all = {self.inner}
        self.named = {self.inner: "inner"}

    def __call__(self, x: Tensor) -> Tensor:
        assert self.owner is self
        assert self.inner in self.all
        assert self.named[self.inner] == "inner"
        return self.inner(x)


class Module(torch.nn.Module):
    def __init__(self, k: float):
        super().__init__()
        layer = torch.nn.Linear(2, 2, bias=False).requires_grad_(False)
        torch.nn.init.eye_(layer.weight)
        self.layers = torch.nn.ModuleList([layer])
        self.k = k

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[0](x) * self.k


class Items(list):  # type: ignore[type-arg]
    scale = 1.0


def _with(held: Any, read: Callable[[Any], Any]) -> Callable[[Tensor], Tensor]:
    return lambda x: x * read(held)


def _scaled(held: Model, x: Tensor) -> Tensor:
    return held(x)


def _default(k: float) -> Any:
    def f(x: Tensor, held: Model = Model(k)) -> Tensor:  # noqa: B008
        return held(x)

    return f, lambda: setattr(f.__defaults__[0], "k", 50.0)  # type: ignore[index]


def _of(make: Callable[[float], Any], change: Callable[[Any], object], fun: Any = None) -> Any:
    def pair(k: float) -> Any:
        held = make(k)
        return (held if fun is None else fun(held)), lambda: change(held)

    return pair


def _set(held: Any) -> None:
    held.k = 50.0


def _method(held: Any) -> Any:
    return held.__call__


def _in_jit(held: Any) -> Any:
    inner = xf.jit(held.__call__)
    return lambda x: inner(x) + 0


HOLD: dict[str, Callable[[float], tuple[Any, Callable[[], object]]]] = {
    "bound method": _of(Model, _set, _method),
    "callable object": _of(Model, _set),
    "object with slots": _of(Slots, _set, _method),
    "object within": _of(Nested, lambda m: _set(m.inner), _method),
    "closure": _of(Model, _set, lambda m: _with(m, lambda m: m.k)),
    "partial": _of(Model, _set, lambda m: functools.partial(_scaled, m)),
    "default": _default,
    "module": _of(Module, _set),
    "namespace": _of(lambda k: types.SimpleNamespace(k=k), _set, lambda m: _with(m, vars_k)),
    "list in an object": _of(
        lambda k: Model([k]),
        lambda m: m.k.append(m.k.pop() + 9),
        lambda m: _with(m, lambda m: m.k[0]),
    ),
    "dict in an object": _of(
        lambda k: Model({"k": k}),
        lambda m: m.k.update(k=50.0),
        lambda m: _with(m, lambda m: m.k["k"]),
    ),
    "array in an object": _of(
        lambda k: Model(np.array([k, k], np.float32)),
        lambda m: m.k.fill(50),
        lambda m: _with(m, lambda m: torch.from_numpy(m.k)),
    ),
    "tensor in an object": _of(
        lambda k: Model(torch.tensor(k)),
        lambda m: setattr(m, "k", torch.tensor(50.0)),
        _method,
    ),
    "method of a list": _of(
        lambda k: [k], lambda m: m.append(m.pop() + 9), lambda m: _with(m.index, found)
    ),
    "OrderedDict": _of(
        lambda k: collections.OrderedDict(k=k),
        lambda m: m.update(k=50.0),
        lambda m: _with(m, lambda m: m["k"]),
    ),
    "defaultdict": _of(
        lambda k: collections.defaultdict(lambda: k, a=0.0),
        lambda m: m.update(k=50.0),
        lambda m: _with(m, lambda m: m["k"] if "k" in m else m.default_factory()),
    ),
    "deque": _of(
        lambda k: collections.deque([k], 1),
        lambda m: m.append(50.0),
        lambda m: _with(m, lambda m: m[0]),
    ),
    "set": _of(lambda k: {k}, lambda m: m.add(50.0), lambda m: _with(m, sum)),
    "list of its own class": _of(
        lambda k: Items([k]),
        lambda m: setattr(m, "scale", 9.0),
        lambda m: _with(m, lambda m: m[0] * m.scale),
    ),
    "jitted function": _of(Model, _set, _in_jit),
}


def vars_k(m: Any) -> Any:
    return m.k


def found(index: Callable[[float], int]) -> float:
    try:
        return 2.0 + index(2.0)
    except ValueError:
        return 50.0


def _scan(f: Any) -> Any:
    return lambda x: xf.scan(lambda c, _: (f(c), None), x, None, length=1)[0]


def _backward(f: Any) -> Tensor:
    x = X.clone().requires_grad_()
    f(x).sum().backward()
    assert x.grad is not None
    return x.grad


DERIVE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Tensor]]] = {
    "grad": (xf.jit, lambda f: xf.grad(lambda x: f(x).sum())(X)),
    "jvp": (xf.jit, lambda f: xf.jvp(f, (X,), (X,))[1]),
    "vmap": (xf.jit, lambda f: xf.vmap(f)(X[None])[0]),
    "backward": (xf.jit, _backward),
    "vmap(grad)": (xf.jit, lambda f: xf.vmap(xf.grad(lambda x: f(x).sum()))(X[None])[0]),
    "grad of checkpoint": (xf.checkpoint, lambda f: xf.grad(lambda x: f(x).sum())(X)),
    "grad of vmap": (xf.vmap, lambda f: xf.grad(lambda x: f(x).sum())(X)),
    "grad of scan": (_scan, lambda f: xf.grad(lambda x: f(x).sum())(X)),
}


def _check(hold: str, derive: str) -> None:
    transform, derivative = DERIVE[derive]
    first, change = HOLD[hold](2.0)
    f = transform(first)
    assert f(X).tolist() == [2, 2]
    change()
    same, _ = HOLD[hold](2.0)
    assert derivative(transform(same)).tolist() == [2, 2]
    assert derivative(f)[0] != 2


@pytest.mark.parametrize("hold", HOLD)
def test_grad_for_an_equal_one_after_the_first_was_changed(hold: str) -> None:
    _check(hold, "grad")


@pytest.mark.parametrize("derive", [d for d in DERIVE if d != "grad"])
def test_derivative_for_an_equal_object_after_the_first_was_changed(derive: str) -> None:
    _check("bound method", derive)


def test_unchanged_objects_are_themselves_in_derived_programs() -> None:
    held = Model(2.0)
    known = {id(held): 3.0}
    f = xf.jit(lambda x: held(x) * known.get(id(held), 0.0))
    f(X)
    assert xf.grad(lambda x: f(x).sum())(X).tolist() == [6, 6]


def test_changed_object_that_cannot_be_copied() -> None:
    class Hashed(Model):
        def __hash__(self) -> int:
            return hash(self.k)  # It has none before its attributes are copied.

        def __eq__(self, other: object) -> bool:
            return self is other

    def make() -> Hashed:
        held = Hashed(2.0)
        within = {held}
        vars(held).clear()
        vars(held).update(within=within, k=2.0)
        return held

    first = make()
    xf.jit(first.__call__)(X)
    first.k = 3.0
    with pytest.raises(RuntimeError, match=r"(?s)has changed.*cannot be copied.*new objects"):
        xf.grad(lambda x: xf.jit(make().__call__)(x).sum())(X)


def _fail(self: object) -> NoReturn:
    raise RuntimeError("not loaded")


def _lazy(base: type) -> Any:
    """A class derived from a container, whose own methods need what isn't there."""
    names = "__len__ __iter__ keys values items".split()
    return type(f"Lazy{base.__name__}", (base,), {n: _fail for n in names if hasattr(base, n)})


CONTAINERS: dict[type, tuple[Any, Callable[[Any], float], Callable[[Any], object]]] = {
    # The contents, what is read of them, and how they are changed.
    list: ([2.0], lambda v: v[0], lambda v: v.append(v.pop() + 1)),
    dict: ({"a": 2.0}, lambda v: v["a"], lambda v: v.update({"a": 3.0})),
    set: ([2.0], lambda v: 2.0 + (3.0 in v), lambda v: v.add(3.0)),
    collections.deque: ([2.0], lambda v: v[0], lambda v: v.append(v.popleft() + 1)),
    tuple: ([2.0, 1.0], lambda v: v[0], lambda v: None),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_containers_whose_own_methods_fail(kind: type) -> None:
    contents, read, change = CONTAINERS[kind]
    lazy = _lazy(kind)
    first, equal = lazy(contents), lazy(contents)
    traces: list[None] = []

    def of(v: Any) -> Callable[[Tensor], Tensor]:
        def f(x: Tensor) -> Tensor:
            traces.append(None)
            return x * read(v)

        return f

    x = torch.ones(2)
    for v in (first, equal, first):
        assert xf.jit(of(v))(x).tolist() == [2.0, 2.0]
    assert len(traces) == 1
    f = xf.jit(of(first))
    for _ in range(3):
        assert f(x).tolist() == [2.0, 2.0]
    change(first)
    assert f(x).tolist() == [read(first)] * 2
    assert xf.vmap(of(first))(x).tolist() == [read(first)] * 2
