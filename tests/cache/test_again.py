"""A call like the last one takes the short way, and any other call does not."""

from __future__ import annotations

import collections
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.backends import active
from xfunc.cache import programs

factor = 2.0


@pytest.fixture(params=["torch_xla", "pjrt"], autouse=True)
def _on_both(request: pytest.FixtureRequest) -> Iterator[None]:
    before = active.runtime().name
    xf.config.set_backend(request.param)
    yield
    xf.config.set_backend(before)


def same(got: object, want: object) -> None:
    torch.testing.assert_close(xf.device_get(got), want)


@contextlib.contextmanager
def only_short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail if a call in the block takes the long way."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the long way")

    with monkeypatch.context() as patch:
        patch.setattr(programs.FunctionCache, "find", refuse)
        yield


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * factor


def of_tree(state: Any, *, by: torch.Tensor) -> Any:
    return {"new": {k: (v[0] * by, [v[1]]) for k, v in state.items()}, "none": None}


STATE = {"b": (torch.tensor([1.0]), torch.tensor([2.0, 3.0])), "a": (torch.ones(2),) * 2}
REPEATED: dict[str, tuple[Any, Callable[..., Any], Any, Any]] = {
    "jit": (xf.jit(lambda x: x + 1), lambda x: x + 1, (torch.ones(2),), {}),
    "a global": (xf.jit(scaled), lambda x: x * 2, (torch.ones(2),), {}),
    "grad": (xf.grad(lambda x: (x * x).sum()), lambda x: 2 * x, (torch.ones(2),), {}),
    "an unused argument": (xf.jit(lambda x, y: y), lambda x, y: y, (torch.ones(2), STATE), {}),
    "a tree": (xf.jit(of_tree), of_tree, (STATE,), {"by": torch.tensor(3.0)}),
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_call_like_the_last_one_takes_the_short_way(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fun, plain, args, kwargs = REPEATED[name]
    given, named = xf.device_put((args, kwargs))
    want = plain(*args, **kwargs)
    for _ in range(4):
        same(fun(*given, **named), want)
    hits = fun.staged.cache.info().hits
    with only_short(monkeypatch):
        same(fun(*given, **named), want)
        same(fun(*given, **named), want)
    assert fun.staged.cache.info().hits == hits + 2


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
def test_what_surrounds_a_call_counts(name: str) -> None:
    x, fun = xf.device_put(X), xf.jit(kind)
    for _ in range(2):
        for _ in range(5):
            same(fun(x), kind(X))
        with AROUND[name]():
            want = kind(X)
            for _ in range(5):
                same(fun(x), want)
        assert [str(x) for x in want] != [str(x) for x in kind(X)], "it changes nothing"


def test_disable_jit_disables_this_too() -> None:
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
def test_other_arguments_are_another_call(others: list[Any]) -> None:
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


def test_what_watches_the_arguments_sees_the_call() -> None:
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


def test_results_are_still_inspected() -> None:
    fun, x = xf.jit(torch.log), xf.device_put(-X)
    for _ in range(5):
        assert fun(x).isnan().all()
    with xf.debug.nans(), pytest.raises(FloatingPointError, match="log"):
        fun(x)


def test_functions_that_share_their_programs_take_turns() -> None:
    def by(k: float) -> Any:
        return xf.jit(lambda x: x * k)

    x, funs = xf.device_put(X), {k: by(k) for k in (1.0, 2.0, 1.0)}
    for _ in range(3):
        for k, fun in funs.items():
            for _ in range(4):
                same(fun(x), X * k)


def test_a_cleared_cache_is_empty() -> None:
    fun, x = xf.jit(lambda x: x + 5), xf.device_put(X)
    for clear in (fun.clear_cache, xf.clear_caches):
        for _ in range(5):
            fun(x)
        executable = weakref.ref(fun.staged.cache.latest.again.executable)
        clear()
        gc.collect()
        assert executable() is None
        fun(x)
        assert fun.cache_info().misses == 1


def test_donated_arguments_are_taken_over() -> None:
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


def test_threads_repeat_calls_at_once() -> None:
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
