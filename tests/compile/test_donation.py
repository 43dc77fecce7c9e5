"""Arguments that are donated to `jit`: they are gone, and nothing else is."""

# Misuse is the subject here.
# pyright: reportPossiblyUnboundVariable=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.functions import scaled, vector

pytestmark = [pytest.mark.usefixtures("cleared"), pytest.mark.quick]


def _step(state: Any, x: torch.Tensor) -> Any:
    return {"a": state["a"] + x, "b": [state["b"][0] * 2]}


def _state() -> Any:
    return xf.device_put({"a": torch.ones(3), "b": [torch.full((4,), 3.0)]})


@pytest.mark.parametrize(
    "options", [{"donate_argnums": 0}, {"donate_argnames": "state"}, {"donate_argnums": (0,)}]
)
def test_jit_donated_arguments_are_consumed(options: Any) -> None:
    f = xf.jit(_step, **options)
    state, x = _state(), xf.device_put(vector())
    for k in range(1, 4):
        old, state = state, f(state, x)
        assert state["a"].tolist() == [1 + k, 1 + 2 * k, 1 + 3 * k]
        assert state["b"][0].tolist() == [3.0 * 2**k] * 4
        for gone in xf.tree.leaves(old):
            for use in (lambda t: t + 1, lambda t: t.tolist(), torch.Tensor.sum, xf.jit(scaled)):
                with pytest.raises(RuntimeError, match=r"donated(.|\n)*Hint"):
                    use(gone)
            assert repr(gone)
    with pytest.raises(RuntimeError, match="donated"):
        f(old, x)
    assert x.tolist() == [1.0, 2.0, 3.0]
    assert f.cache_info().traces == 1
    assert f(state=state, x=x)["a"].tolist() == [5.0, 9.0, 13.0]


def test_jit_donation_in_trace_or_of_cpu_tensor_is_ignored() -> None:
    f = xf.jit(lambda x: x + 1, donate_argnums=0)
    assert xf.jit(lambda x: f(x) + x)(vector()).tolist() == [3.0, 5.0, 7.0]
    x = vector()
    assert f(x).tolist() == [2.0, 3.0, 4.0]
    assert x.tolist() == [1.0, 2.0, 3.0]
    x = xf.device_put(vector())
    assert xf.grad(lambda x: f(x).sum())(x).tolist() == [1.0, 1.0, 1.0]
    assert x.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "arguments", [lambda x: (x, x), lambda x: ([x, x], 1), lambda x: ((x, [x]), x)]
)
def test_jit_tensor_donated_twice_raises(arguments: Callable[[Any], Any]) -> None:
    f = xf.jit(lambda a, b: xf.tree.map(lambda t: t + 1, (a, b)), donate_argnums=0)
    x = xf.device_put(vector())
    for _ in range(2):
        with pytest.raises(ValueError, match=r"twice(.|\n)*test_donation.py(.|\n)*clone"):
            f(*arguments(x))
    assert x.tolist() == [1.0, 2.0, 3.0]


def test_jit_donated_scalars_have_own_buffers() -> None:
    f = xf.jit(lambda a, b: (a + 1, b + 1), donate_argnums=(0, 1))
    for _ in range(2):  # torch_xla would remember a buffer that is gone by now
        a, b = xf.device_put((torch.tensor(7), torch.tensor(7)))
        assert xf.device_get(f(a, b)) == (8, 8)
    assert xf.device_get(f(torch.tensor(7), torch.tensor(7))) == (8, 8)


def test_jit_donated_argument_captured_raises() -> None:
    w = xf.device_put(vector())
    f = xf.jit(lambda x: x * w, donate_argnums=0)
    with pytest.raises(ValueError, match="twice"):
        f(w)
    assert w.tolist() == [1.0, 2.0, 3.0]


def test_jit_donated_argument_returned_or_unused() -> None:
    f = xf.jit(lambda x, y: (x, x), donate_argnums=(0, 1))
    got = f(xf.device_put(vector()), xf.device_put(vector()))
    assert [t.tolist() for t in got] == [[1.0, 2.0, 3.0]] * 2
    g = xf.jit(lambda x: (x, x + 1), donate_argnums=0)
    x = xf.device_put(vector())
    assert [t.tolist() for t in g(x)] == [[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]


def test_jit_donated_view_keeps_its_base() -> None:
    base = xf.device_put(torch.arange(6.0))
    view = base[:3]
    f = xf.jit(lambda x: x * 10, donate_argnums=0)
    assert f(view).tolist() == [0.0, 10.0, 20.0]
    assert base.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_jit_donated_argument_requires_grad() -> None:
    f = xf.jit(lambda x: (x * x).sum(), donate_argnums=0)
    x = xf.device_put(vector()).requires_grad_()
    f(x).backward()
    assert x.grad.tolist() == [2.0, 4.0, 6.0]
