"""Threads trace, compile and run beside each other."""

from __future__ import annotations

import functools
import gc
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.functions import vector

pytestmark = pytest.mark.usefixtures("alive_afterwards")

WAIT = 60
X = torch.linspace(0.1, 1, 6)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def _all(pool: ThreadPoolExecutor, *works: Callable[[], Any]) -> list[Any]:
    return [f.result(WAIT) for f in [pool.submit(w) for w in works]]


def test_traced_functions_that_wait_for_each_other(pool: ThreadPoolExecutor) -> None:
    both = threading.Barrier(2)

    def traced(k: int, x: torch.Tensor) -> torch.Tensor:
        both.wait(WAIT)
        return x * k

    works = [functools.partial(xf.jit(functools.partial(traced, k)), vector()) for k in (2, 3)]
    assert [y.tolist() for y in _all(pool, *works)] == [[2.0, 4.0, 6.0], [3.0, 6.0, 9.0]]


def test_one_function_whose_traces_wait_for_each_other(pool: ThreadPoolExecutor) -> None:
    both, traces = threading.Barrier(2), list[None]()

    def traced(x: torch.Tensor) -> torch.Tensor:
        traces.append(None)
        both.wait(WAIT)
        return x * 2

    f = xf.jit(traced)
    works = [lambda: f(vector()).tolist()] * 2
    assert _all(pool, *works) == [[2.0, 4.0, 6.0]] * 2
    assert len(traces) == 2


def test_one_function_called_in_threads_at_once_is_traced_once(pool: ThreadPoolExecutor) -> None:
    def traced(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return (x * 2).sin()

    f, g = xf.jit(traced), xf.jit(xf.grad(lambda x: traced(x).sum()))
    works = [lambda: (f(vector()), g(vector()))] * 4
    for y, dy in _all(pool, *works):
        torch.testing.assert_close(y.cpu(), (vector() * 2).sin())
        torch.testing.assert_close(dy.cpu(), (vector() * 2).cos() * 2)
    assert xf.trace_count(f) == xf.trace_count(g) == 1
    assert f.cache_info().compiles == g.cache_info().compiles == 1


@pytest.mark.parametrize("same", [False, True])
def test_traced_function_joins_thread_that_calls_jit(same: bool) -> None:
    inner, found = xf.jit(lambda y: y + 1), list[list[float]]()

    def traced(x: torch.Tensor) -> torch.Tensor:
        if same:
            inner(x)  # It is a part of this trace.
        thread = threading.Thread(target=lambda: found.append(inner(vector()).tolist()))
        thread.start()
        thread.join(WAIT)
        return x * 2

    assert xf.jit(traced)(vector()).tolist() == [2.0, 4.0, 6.0]
    assert found == [[2.0, 3.0, 4.0]]


def test_function_that_joins_a_thread_that_calls_it_is_refused() -> None:
    def traced(x: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            return x + pool.submit(lambda: f(vector())).result().sum()

    f = xf.jit(traced)
    with pytest.raises(RuntimeError, match="a function being traced in another thread is waiting"):
        f(vector())


def test_trace_stops_no_other_thread(pool: ThreadPoolExecutor) -> None:
    begun, done = threading.Event(), threading.Event()
    known = xf.jit(lambda x: x * 5)
    known(vector())

    def traced(x: torch.Tensor) -> torch.Tensor:
        begun.set()
        assert done.wait(WAIT)
        return x * 2

    waiting = pool.submit(lambda: xf.jit(traced)(vector()).tolist())
    assert begun.wait(WAIT)
    assert known(vector()).tolist() == [5.0, 10.0, 15.0]
    assert xf.jit(lambda x: x * 7)(vector()).tolist() == [7.0, 14.0, 21.0]
    assert xf.grad(lambda x: (x**2).sum())(vector()).tolist() == [2.0, 4.0, 6.0]
    with pytest.raises(ZeroDivisionError, match="division"):
        xf.jit(lambda x: x * (1 // 0))(vector())
    done.set()
    assert waiting.result(WAIT) == [2.0, 4.0, 6.0]


@pytest.mark.one_device  # on several, programs take turns
def test_running_program_stops_no_other_thread(pool: ThreadPoolExecutor) -> None:
    begun, done = threading.Event(), threading.Event()

    def wait(x: Any) -> Any:
        begun.set()
        assert done.wait(WAIT)
        return x

    f = xf.jit(lambda x: xf.pure_callback(wait, xf.ShapeDtypeStruct((3,), torch.float32), x) * 2)
    waiting = pool.submit(lambda: f(vector()).tolist())
    assert begun.wait(WAIT)
    assert xf.jit(lambda x: x * 11)(vector()).tolist() == [11.0, 22.0, 33.0]
    done.set()
    assert waiting.result(WAIT) == [2.0, 4.0, 6.0]


def test_settings_of_threads_that_do_not_trace(pool: ThreadPoolExecutor) -> None:
    # As usual: torch.compile has switched it off for the process.
    torch.distributions.Distribution.set_default_validate_args(True)
    begun, done = threading.Event(), threading.Event()
    before, thresholds = [*warnings.filters], gc.get_threshold()

    def traced(x: torch.Tensor) -> torch.Tensor:
        assert torch.compiler.is_compiling()
        begun.set()
        assert done.wait(WAIT)
        torch.distributions.Normal(x, -x)  # Its arguments are not checked.
        return x * 2

    works = [pool.submit(xf.jit(lambda x, k=k: traced(x) * k), vector()) for k in range(2)]
    assert begun.wait(WAIT)
    assert not torch.compiler.is_compiling()
    with pytest.raises(ValueError, match="scale"):
        torch.distributions.Normal(vector(), -vector())
    with pytest.warns(UserWarning, match="performance drop"):
        warnings.warn("There is a performance drop because of nothing", stacklevel=1)
    done.set()
    assert [w.result(WAIT).tolist() for w in works] == [[0.0] * 3, [2.0, 4.0, 6.0]]
    assert before == warnings.filters
    assert gc.get_threshold() == thresholds
    assert torch.backends.mha.get_fastpath_enabled()


def test_jvp_in_threads_that_end_in_either_order(pool: ThreadPoolExecutor) -> None:
    """torch has one level of forward mode for all threads."""
    both, first = threading.Barrier(2), threading.Event()

    def sine(k: int, x: torch.Tensor) -> torch.Tensor:
        y = (x * k).sin()
        both.wait(WAIT)
        if k == 3:
            assert first.wait(WAIT)  # The other's jvp has ended.
        return y * x

    def work(k: int) -> torch.Tensor:
        made = xf.jit(lambda x: xf.jvp(functools.partial(sine, k), (x,), (torch.ones_like(x),))[1])
        dot = made(X)
        if k == 2:
            first.set()
        return dot.cpu()

    for k, dot in zip(
        (2, 3), _all(pool, *(functools.partial(work, k) for k in (2, 3))), strict=True
    ):
        torch.testing.assert_close(dot, (X * k).cos() * k * X + (X * k).sin())


def test_one_module_traced_by_threads_at_once(pool: ThreadPoolExecutor) -> None:
    class Slow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inside(x)
            time.sleep(0.02)
            return y + self.inside.bias

    module = Slow()
    apply, params, buffers = xf.functional(module)
    part, inside, _ = xf.functional(module.inside)

    def loss(k: int, params: Any) -> torch.Tensor:
        return apply(params, buffers, torch.ones(3) * k)[0].sum()

    def work(k: int) -> Any:
        if k == 3:
            return xf.jit(lambda p: part(p, {}, torch.ones(3))[0])(inside)
        return xf.jit(xf.grad(functools.partial(loss, k)))(params)

    *grads, out = _all(pool, *(functools.partial(work, k) for k in range(4)))
    for k, g in enumerate(grads):
        assert g["inside.weight"].tolist() == [[k] * 3] * 3
        assert g["inside.bias"].tolist() == [2] * 3
    torch.testing.assert_close(out.cpu(), module.inside(torch.ones(3)).detach())


def test_traced_value_used_in_another_thread(pool: ThreadPoolExecutor) -> None:
    def traced(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        pool.submit(lambda: xf.jit(lambda z: z + y)(vector())).result(WAIT)
        return y

    with pytest.raises((TypeError, RuntimeError), match="trace"):
        xf.jit(traced)(vector())


def test_donating_in_threads(pool: ThreadPoolExecutor) -> None:
    step = xf.jit(lambda s, x: (s * 0.5 + x, s + 1), donate_argnums=0)

    def work(k: int) -> float:
        state, x = xf.device_put(torch.full((4,), float(k))), xf.device_put(torch.ones(4))
        for _ in range(30):
            state, _ = step(state, x)
        return state.sum().item()

    found = _all(pool, *(functools.partial(work, k) for k in range(4)))
    assert found == pytest.approx([4 * (2 + (k - 2) * 0.5**30) for k in range(4)])


# -- many threads -----------------------------------------------------------------------------


def _wave(x: torch.Tensor) -> torch.Tensor:
    return (x * 3).sin() * x


def _loss(x: torch.Tensor) -> torch.Tensor:
    return (x.cos() * x**2).sum()


def _step(c: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return c * 0.5 + y.sin(), c * y


def _loop(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    c, ys = x.sum(), []
    for y in x:
        c, z = _step(c, y)
        ys.append(z)
    return c, torch.stack(ys)


_watched = xf.jit(lambda x: _wave(x) * 2)
_tanh = xf.jit(lambda x: torch.tanh(x) * 2)
GRAD = torch.func.grad(_loss)
SHARED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "jit": (xf.jit(_wave), _wave),
    "grad": (xf.jit(xf.grad(_loss)), GRAD),
    "vmap": (xf.jit(xf.vmap(_wave)), _wave),
    "jvp": (
        xf.jit(lambda x: xf.jvp(xf.grad(_loss), (x,), (torch.ones_like(x),))[1]),
        torch.func.grad(lambda x: GRAD(x).sum()),
    ),
    "scan": (xf.jit(lambda x: xf.scan(_step, x.sum(), x)), _loop),
    "nested": (
        xf.jit(lambda x: _tanh(x) + _tanh(x * 2)),
        lambda x: x.tanh() * 2 + (x * 2).tanh() * 2,
    ),
}


def _fail(x: torch.Tensor) -> torch.Tensor:
    raise LookupError(f"no {x.ndim}")


def test_many_threads_with_shared_and_own_functions(pool: ThreadPoolExecutor) -> None:
    together = threading.Barrier(8)
    want = {name: plain(X) for name, (_, plain) in SHARED.items()}
    xf.clear_caches()

    def work(k: int) -> None:
        numbers = random.Random(k)
        names = [*SHARED, "fails", "reads", "own", "backward"]
        numbers.shuffle(names)
        together.wait(WAIT)
        for name in names:
            if name in SHARED:
                for got, w in zip(
                    xf.tree.leaves(SHARED[name][0](X)), xf.tree.leaves(want[name]), strict=True
                ):
                    torch.testing.assert_close(got.cpu(), w, rtol=1e-4, atol=1e-5)
            elif name == "fails":
                with pytest.raises(LookupError, match="no 1"):
                    xf.jit(_fail)(X)
            elif name == "reads":
                with pytest.raises(TypeError, match="value"):
                    xf.jit(lambda x: x if x.sum() > 0 else -x)(X)
            elif name == "own":
                got = xf.grad(lambda x: (x * (k % 4)).sin().sum())(X)
                torch.testing.assert_close(got.cpu(), (X * (k % 4)).cos() * (k % 4))
            else:
                w = X.clone().requires_grad_()
                _watched(w).sum().backward()
                slope = (X * 3).cos() * 3 * X + (X * 3).sin()
                torch.testing.assert_close(w.grad, slope * 2, rtol=1e-4, atol=1e-5)

    _all(pool, *(functools.partial(work, k) for k in range(8)))
    counts = {name: xf.trace_count(f) for name, (f, _) in SHARED.items()}
    assert counts == dict.fromkeys(SHARED, 1)
    assert xf.trace_count(_tanh) == xf.trace_count(_watched) == 1
