"""A call like the last one is short; any other call is not taken for it."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import xfunc as xf

factor = 2.0


ON_EACH = [pytest.param("torch_xla", marks=pytest.mark.torch_xla), "pjrt"]


@pytest.fixture(params=ON_EACH, autouse=True)
def _on_both(request: pytest.FixtureRequest) -> Iterator[None]:
    xf.config.set_backend(request.param)
    yield
    xf.config.set_backend(os.environ.get("XFUNC_BACKEND", "torch_xla"))


def same(got: object, want: object) -> None:
    torch.testing.assert_close(xf.device_get(got), want)


def kind(x: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Depends on everything that `OTHERS` change."""
    leaf = xf.tree.leaves(x)[0]
    ordered = 10.0 * isinstance(x, collections.OrderedDict)
    return (leaf[:, None] @ leaf[None]) * factor + ordered, torch.ones(1)


X = torch.tensor([1.1, 2.3])  # rounded in bfloat16


@contextlib.contextmanager
def another_global() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "factor", 3.0)
        yield


@contextlib.contextmanager
def another_default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@contextlib.contextmanager
def autocast() -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("xla", torch.bfloat16):
        yield


AROUND: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "a global": another_global,
    "the default dtype": another_default_dtype,
    "autocast": autocast,
}


@pytest.mark.parametrize("name", AROUND)
def test_repeated_call_sees_ambient_state(name: str) -> None:
    x, fun = xf.device_put(X), xf.jit(kind)
    for _ in range(2):
        for _ in range(5):
            same(fun(x), kind(X))
        with AROUND[name]():
            want = kind(X)
            for _ in range(5):
                same(fun(x), want)
        assert [str(x) for x in want] != [str(x) for x in kind(X)], "it changes nothing"


def test_disable_jit_after_repeated_calls() -> None:
    runs = []
    fun, x = xf.jit(lambda x: [runs.append(1), x + 1][1]), xf.device_put(X)
    for _ in range(5):
        fun(x)
    assert len(runs) == 1
    with xf.disable_jit():
        fun(x)
        fun(x)
    assert len(runs) == 3
    fun(x)
    assert len(runs) == 3


@pytest.mark.parametrize(
    "others",
    [
        [collections.OrderedDict(a=X), collections.OrderedDict(a=X, b=X)],
        [{"b": X}, {"a": X, "b": X}, {}, {"a": [X]}, {"a": None, "b": X}, [X], (X,), X],
        [{"a": X.double()}, {"a": X.repeat(2)}, {"a": X.int()}],
    ],
    ids=["kinds", "structures", "avals"],
)
def test_repeated_call_with_other_arguments(others: list[Any]) -> None:
    fun, usual = xf.jit(kind), {"a": X}
    for other in others:
        for _ in range(5):
            same(fun(xf.device_put(usual)), kind(usual))
        if isinstance(other, dict) and not other:
            with pytest.raises(IndexError, match="list index out of range"):
                fun(other)
        else:
            same(fun(xf.device_put(other)), kind(other))
            same(fun(other), kind(other))
        same(fun(usual), kind(usual))
        same(fun(x=xf.device_put(usual)), kind(usual))


def test_repeated_call_under_transforms_and_autograd() -> None:
    fun, x = xf.jit(lambda x: x * x * 3), xf.device_put(X)
    for _ in range(5):
        same(fun(x), X * X * 3)
    same(torch.func.grad(lambda x: fun(x).sum())(x), 6 * X)
    same(torch.func.vmap(fun)(x), X * X * 3)
    same(xf.jit(lambda x: fun(x) + 1)(x), X * X * 3 + 1)
    y = xf.device_put(X).requires_grad_()
    fun(y).sum().backward()
    same(y.grad, 6 * X)
    z = xf.device_put(X)
    torch.Tensor.requires_grad_(z)
    fun(z).sum().backward()
    same(z.grad, 6 * X)
    with torch.no_grad():
        same(fun(y), X * X * 3)
    same(fun(x), X * X * 3)


def test_debug_nans_after_repeated_calls() -> None:
    fun, x = xf.jit(torch.log), xf.device_put(-X)
    for _ in range(5):
        assert fun(x).isnan().all()
    with xf.debug.nans(), pytest.raises(FloatingPointError, match="log"):
        fun(x)


def test_repeated_calls_of_functions_sharing_programs() -> None:
    def by(k: float) -> Any:
        return xf.jit(lambda x: x * k)

    x, funs = xf.device_put(X), {k: by(k) for k in (1.0, 2.0, 1.0)}
    for _ in range(3):
        for k, fun in funs.items():
            for _ in range(4):
                same(fun(x), X * k)


def test_repeated_call_with_donated_arguments() -> None:
    step = xf.jit(lambda s, x: {k: v + x for k, v in s.items()}, donate_argnums=0)
    state, x = xf.device_put({"a": X, "b": X + 1}), xf.device_put(X)
    for k in range(6):
        old, state = state, step(state, x)
        same(state, {"a": X * (k + 2), "b": X * (k + 2) + 1})
        with pytest.raises(RuntimeError, match="was donated to a jitted function"):
            _ = old["a"] + 1
        with pytest.raises(RuntimeError, match="was donated to a jitted function"):
            step(old, x)
    for args in ({"a": state["a"], "b": state["a"]}, x), (state, state["a"]):
        with pytest.raises(ValueError, match=r"given one tensor twice(.|\n)*clone"):
            step(*args)
    same(state["a"], X * 7)


def test_repeated_calls_in_threads() -> None:
    fun, x = xf.jit(lambda x: x * 2), xf.device_put(X)
    found: list[bool] = []

    def work() -> None:
        found.append(all(torch.equal(fun(x).cpu(), X * 2) for _ in range(50)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [True] * 4
