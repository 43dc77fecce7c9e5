"""What makes a function trace again and what must not, and programs that are dropped."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.fresh import Server
from tests.support.functions import vector

pytestmark = [pytest.mark.usefixtures("cleared"), pytest.mark.quick]


def test_jit_training_step_traces_once() -> None:
    traced: list[str] = []

    def block(c: torch.Tensor, w: torch.Tensor) -> Any:
        traced.append("block")
        return torch.tanh(c @ w), None

    def loss(params: Any, x: torch.Tensor) -> torch.Tensor:
        traced.append("loss")
        return (xf.scan(block, x, params["w"])[0] @ params["head"]).square().mean()

    @functools.partial(xf.jit, donate_argnums=(0, 1))
    def step(params: Any, momentum: Any, x: torch.Tensor, rate: float) -> Any:
        traced.append("step")
        value, grads = xf.value_and_grad(loss)(params, x)
        momentum = xf.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return xf.tree.map(lambda p, m: p - rate * m, params, momentum), momentum, value

    generator = torch.Generator().manual_seed(0)
    params = {
        "w": torch.randn(4, 3, 3, generator=generator),
        "head": torch.randn(3, 1, generator=generator),
    }
    x = torch.randn(2, 3, generator=generator)
    ours, momentum = xf.device_put(params), xf.device_put(xf.tree.map(torch.zeros_like, params))
    values = []
    for i in range(100):
        ours, momentum, value = step(ours, momentum, x, 0.1 / (1 + i))
        values.append(value)
    info = step.cache_info()
    assert traced.count("step") == 1
    assert traced.count("loss") == 1
    assert traced.count("block") == 1
    assert xf.trace_count(step) == 1
    assert (info.hits, info.misses, info.traces, info.compiles, info.size) == (99, 1, 1, 1, 1)

    plain = {k: v.clone().requires_grad_() for k, v in params.items()}
    velocity = {k: torch.zeros_like(v) for k, v in params.items()}
    for i in range(100):
        y = x
        for w in plain["w"]:
            y = torch.tanh(y @ w)
        want = (y @ plain["head"]).square().mean()
        grads = torch.autograd.grad(want, list(plain.values()))
        torch.testing.assert_close(xf.device_get(values[i]), want.detach(), rtol=2e-3, atol=1e-5)
        with torch.no_grad():
            for (k, p), g in zip(plain.items(), grads, strict=True):
                velocity[k] = 0.9 * velocity[k] + g
                p -= 0.1 / (1 + i) * velocity[k]


def test_trace_count_and_assert_max_traces() -> None:
    """Counting the runs by what a closure holds does not itself cause runs."""
    number, numbers, table = 0, [], {"n": 0}

    def fun(x: torch.Tensor) -> torch.Tensor:
        nonlocal number
        number += 1
        numbers.append(1)
        table["n"] += 1
        return x + 1

    f = xf.jit(fun)
    for n in (2, 2, 3, 2, 3):
        f(torch.zeros(n))
    assert number == len(numbers) == table["n"] == 2
    assert xf.trace_count(f) == xf.trace_count(fun) == 2
    xf.debug.assert_max_traces(f, 2)
    with pytest.raises(AssertionError, match=r"fun was traced 2 times, not at most 1"):
        xf.debug.assert_max_traces(f, 1)


def test_jit_closure_that_counts_runs_traces_once() -> None:
    runs = 0

    def f(x: torch.Tensor) -> torch.Tensor:
        nonlocal runs
        runs += 1
        return x.sin().sum()

    x = torch.ones(3)
    for _ in range(3):
        xf.jit(f)(x)
    assert runs == 1


def test_clear_cache_and_clear_caches() -> None:
    f, g = xf.jit(lambda x: x * 2), xf.jit(lambda x: x * 3)
    for h in (f, g):
        h(vector())
    f.clear_cache()
    assert tuple(f.cache_info()) == (0, 0, 0, 0, 0)
    assert g.cache_info().size == 1
    xf.clear_caches()
    assert tuple(g.cache_info()) == (0, 0, 0, 0, 0)
    assert xf.trace_count(f) == 0
    assert f(vector()).tolist() == [2.0, 4.0, 6.0]
    assert f.cache_info().traces == 1


def test_jit_releases_lists_that_closures_appended_to() -> None:
    class Note:
        pass

    def make() -> tuple[Callable[[torch.Tensor], torch.Tensor], list[Note]]:
        log: list[Note] = []

        def f(x: torch.Tensor) -> torch.Tensor:
            log.append(Note())
            return x * 2

        return f, log

    def used() -> list[weakref.ref[Note]]:
        f, log = make()
        for _ in range(3):  # In which it is traced once.
            assert xf.jit(f)(vector()).tolist() == [2.0, 4.0, 6.0]
        return [weakref.ref(n) for n in log]

    notes = [n for _ in range(50) for n in used()]
    assert len(notes) == 50
    gc.collect()
    gc.collect()  # What the first let go, the second finds.
    assert [n() for n in notes] == [None] * 50


def test_jit_failed_trace_leaves_no_entry() -> None:
    fail = [True]

    def fun(x: torch.Tensor) -> torch.Tensor:
        if fail:
            raise KeyError("on purpose")
        return x * 2

    f = xf.jit(fun)
    for _ in range(2):
        with pytest.raises(KeyError, match="on purpose"):
            f(vector())
    assert f.cache_info().size == 0
    fail.clear()
    assert f(vector()).tolist() == [2.0, 4.0, 6.0]


# ---------------------------------------------------------------- torch_xla's own cache of programs

EVICTION = """
import torch, xfunc as xf
x = torch.arange(3.)
f, g = xf.jit(lambda x: x * 2), xf.jit(xf.grad(lambda x: (x ** 3).sum()))
h = xf.jit(lambda x: x + 1, donate_argnums=0)
for _ in range(4):
    assert f(x).tolist() == [0., 2., 4.]
    assert g(x).tolist() == [0., 3., 12.]
    assert h(xf.device_put(x)).tolist() == [1., 2., 3.]
    w = xf.device_put(x).requires_grad_()
    (f(w) * f(w)).sum().backward()
    assert w.grad.tolist() == [0., 8., 16.]
assert f.cache_info().traces <= 2, f.cache_info()
print("survived")
"""


def test_jit_recompiles_program_evicted_by_torch_xla(fresh: Server) -> None:
    done = fresh.run(EVICTION, env={"XLA_COMPILATION_CACHE_SIZE": "1"})
    assert "survived" in done.stdout, done.stdout + done.stderr
