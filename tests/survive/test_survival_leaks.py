"""Traced values that outlive their traces: each is found, and harmless."""

# Misuse is the subject here.
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportUnusedExpression=false, reportGeneralTypeIssues=false
from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.functions import vector
from tests.survive.hostile_functions import assert_alive
from xfunc.errors import LeakError

pytestmark = pytest.mark.usefixtures("alive_afterwards")


HERE = "test_survival_leaks.py"


_kept: list[Any] = []


class _Holder:
    value: Any = None


class _CarriesTensor(Exception):
    pass


def _leak_list(x: torch.Tensor) -> Any:
    _kept.append(x * 2)  # bad
    return x


def _leak_argument(x: torch.Tensor) -> Any:
    _kept.append(x)
    return x * 1


def _leak_view(x: torch.Tensor) -> Any:
    _kept.append((x * 2)[1:].t())  # bad
    return x


def _leak_closure(x: torch.Tensor) -> Any:
    y = x * 2  # bad
    _kept.append(lambda: y + 1)
    return x


def _leak_attribute(x: torch.Tensor) -> Any:
    _kept.append(_Holder())
    _kept[-1].value = {"deep": [x * 2]}  # bad
    return x


def _leak_generator(x: torch.Tensor) -> Any:
    def numbers() -> Iterator[torch.Tensor]:
        y = x * 2  # bad
        yield y
        yield y + 1

    g = numbers()
    next(g)
    _kept.append(g)
    return x


def _default(x: torch.Tensor, memory: list[Any] = _kept) -> Any:
    memory.append(x.sin())  # bad
    return x


@functools.lru_cache
def _remembered(n: int) -> torch.Tensor:
    return torch.zeros(n) + 1  # bad


def _leak_lru_cache(x: torch.Tensor) -> Any:
    _kept.append(_remembered)
    return x + _remembered(5_000)[:3]


def _leak_func_vjp(x: torch.Tensor) -> Any:
    out, pullback = torch.func.vjp(torch.sin, x)  # bad
    _kept.append(pullback)
    return out


def _leak_vjp(x: torch.Tensor) -> Any:
    out, pullback = xf.vjp(torch.sin, x)  # bad
    _kept.append(pullback)
    return out


def _leak_from_grad(x: torch.Tensor) -> Any:
    def inner(y: torch.Tensor) -> torch.Tensor:
        _kept.append(y * 2)  # bad
        return y.sum()

    return xf.grad(inner)(x)


def _leak_from_vmap(x: torch.Tensor) -> Any:
    return xf.vmap(lambda y: (_kept.append(y * 2), y)[1])(x)


def _leak_from_scan(x: torch.Tensor) -> Any:
    def body(c: torch.Tensor, y: torch.Tensor) -> Any:
        _kept.append(c + y)  # bad
        return c, y

    return xf.scan(body, x[0], x)


USES: dict[str, Callable[[Any], Any]] = {
    "_leak_list": lambda k: k + 1,
    "_leak_argument": lambda k: k.tolist(),
    "_leak_view": lambda k: k.sum(),
    "_leak_closure": lambda k: k(),
    "_leak_attribute": lambda k: float(k.value["deep"][0].sum()),
    "_leak_generator": lambda k: next(k),
    "_default": lambda k: torch.stack([k, k]),
    "_leak_lru_cache": lambda k: k(5_000) + 1,
    "_leak_func_vjp": lambda k: k(torch.ones(3)),
    "_leak_vjp": lambda k: k(torch.ones(3)),
    "_leak_from_grad": lambda k: k + 1,
    "_leak_from_vmap": lambda k: k + 1,
    "_leak_from_scan": lambda k: xf.jit(lambda x: x + k)(torch.ones(())),
}


@pytest.mark.sample(9, seed=0)
@pytest.mark.parametrize("name", USES)
def test_leak_is_detected_and_harmless(name: str) -> None:
    fun, use = globals()[name], USES[name]
    _kept.clear()
    try:
        with pytest.raises(LeakError, match="outlived") as caught:
            xf.jit(fun)(vector())
        assert re.search(rf"{HERE}:\d+(.|\n)*Hint: ", str(caught.value))
        assert_alive()
        with pytest.raises((LeakError, RuntimeError), match=r"outlived|outside|traced"):
            use(_kept[-1])
        assert_alive()
        if name != "_leak_generator":  # The error above has ended it.
            with pytest.raises((LeakError, RuntimeError), match=r"outlived|outside|traced"):
                xf.jit(lambda x: (use(_kept[-1]), x)[1])(vector())
        repr(_kept[-1])
    finally:
        _kept.clear()
        _remembered.cache_clear()


def test_leak_in_an_exception() -> None:
    def fun(x: torch.Tensor) -> torch.Tensor:
        raise _CarriesTensor(x * 2)

    with pytest.raises(_CarriesTensor, match=r"traced|Traced|outlived") as caught:
        xf.jit(fun)(vector())
    assert_alive()
    with pytest.raises(LeakError, match="outlived"):
        caught.value.args[0] + 1


def test_leak_between_traces() -> None:
    """A value of one trace used in the next, while an outer one is open."""
    kept: list[torch.Tensor] = []

    def outer(x: torch.Tensor) -> torch.Tensor:
        xf.jit(lambda y: (kept.append(y * 2), y)[1])(x)
        return x + kept[0]

    with pytest.raises(LeakError, match="outlived"):
        xf.jit(outer)(vector())
