"""The search for leaked values at the end of a trace, interrupted."""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.functions import vector
from xfunc.errors import LeakError
from xfunc.trace import leaks

pytestmark = [pytest.mark.usefixtures("alive_afterwards"), pytest.mark.quick]

_kept: list[Any] = []


def _leak_list(x: torch.Tensor) -> Any:
    _kept.append(x * 2)
    return x


@pytest.mark.parametrize("leak", [False, True])
@pytest.mark.parametrize("where", ["end", "_empty_tokens", "_survivors"])
def test_trace_end_interrupted_restores_state(
    where: str, leak: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come while a trace is closed: everything is as before it."""
    whole = getattr(leaks.TracedValues, where)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(leaks.TracedValues, where, whole)
        raise KeyboardInterrupt

    monkeypatch.setattr(leaks.TracedValues, where, interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        xf.jit(_leak_list if leak else lambda x: x * 2)(vector())
    assert xf.jit(lambda x: x * 3)(vector()).tolist() == [3.0, 6.0, 9.0]
    if "torch_xla" in sys.modules:
        assert (vector().to("xla") * 2).tolist() == [2.0, 4.0, 6.0]
    with ThreadPoolExecutor(1) as pool:  # The lock is free.
        assert pool.submit(xf.jit(lambda x: x * 5), vector()).result().tolist() == [5.0, 10.0, 15.0]
    if leak:
        with pytest.raises(LeakError, match=r"made by Tensor\.mul, outlived its trace"):
            _ = _kept.pop() + 1


class _Holder:
    """With an attribute of the class, and of its own."""

    kept: Any = None


_holder, _names = _Holder(), collections.defaultdict[str, list[Any]](list)


def _keep_global(x: torch.Tensor) -> None:
    global _last
    _last = x


_last: Any = None
HOLDERS: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "list": (lambda x: _kept.append(x), "the list `_kept`"),
    "nested": (lambda x: _kept.append({"a": [(x,)]}), "the list `_kept`"),
    "closure": (lambda x: _kept.append(lambda: x), "the list `_kept`"),
    "other container": (lambda x: _names["a"].append(x), "the defaultdict `_names`"),
    "global": (_keep_global, "the global variable `_last`"),
    "attribute": (lambda x: setattr(_holder, "own", x), "the attribute `own` of a _Holder"),
    "list of one": (lambda x: setattr(_holder, "own", [x]), "the attribute `own` of a _Holder"),
    "class": (lambda x: setattr(_Holder, "kept", x), "the attribute `kept` of the class _Holder"),
}


@pytest.mark.parametrize("transform", [xf.jit, xf.grad], ids=["jit", "grad"])
@pytest.mark.parametrize("name", HOLDERS)
def test_leak_message_says_who_holds_the_value(name: str, transform: Any) -> None:
    keep, holder = HOLDERS[name]

    def fun(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        keep(y)
        return y.sum()

    try:
        with pytest.raises(
            LeakError, match=r"made by Tensor\.mul, outlived .*, held by "
        ) as caught:
            transform(fun)(vector())
        assert f"held by {holder} (while" in str(caught.value)
    finally:
        _kept.clear()
        _names.clear()
        vars(_holder).clear()
        _keep_global(None)  # type: ignore[arg-type]
        _Holder.kept = None


def test_leak_into_a_class_whose_variables_are_being_looked_at() -> None:
    looking = [vars(_Holder) for _ in range(3)]
    try:
        with pytest.raises(LeakError, match="held by the attribute `kept` of the class _Holder"):
            xf.jit(lambda x: setattr(_Holder, "kept", x * 2))(vector())
    finally:
        _Holder.kept = None
        looking.clear()


def test_leak_into_a_variable_of_a_running_function_says_its_kind() -> None:
    results: list[torch.Tensor] = []

    def fun(x: torch.Tensor) -> torch.Tensor:
        results.append(x)
        return x

    with pytest.raises(LeakError, match=r"made by an input, outlived .*, held by a list \(while"):
        xf.jit(fun)(vector())
