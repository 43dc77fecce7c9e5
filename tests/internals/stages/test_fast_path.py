"""A call like the last one takes the short way: no program is looked up."""

from __future__ import annotations

import contextlib
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.cache import programs

factor = 2.0


ON_EACH = [pytest.param("torch_xla", marks=pytest.mark.torch_xla), "pjrt"]


@pytest.fixture(params=ON_EACH, autouse=True)
def _on_both(request: pytest.FixtureRequest) -> Iterator[None]:
    xf.config.set_backend(request.param)
    yield
    xf.config.set_backend(os.environ.get("XFUNC_BACKEND", "torch_xla"))


X = torch.tensor([1.1, 2.3])  # rounded in bfloat16


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


@pytest.mark.one_device
@pytest.mark.parametrize("name", REPEATED)
def test_repeated_call_skips_cache_lookup(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.one_device
@pytest.mark.sample(2, seed=0)
def test_clear_cache_frees_latest_executable() -> None:
    fun, x = xf.jit(lambda x: x + 5), xf.device_put(X)
    for clear in (fun.clear_cache, xf.clear_caches):
        for _ in range(5):
            fun(x)
        executable = weakref.ref(fun.staged.cache.latest.fast_path.executable)
        clear()
        gc.collect()
        assert executable() is None
        fun(x)
        assert fun.cache_info().misses == 1
