"""Exceptions, threads and modes around traces: all comes through, and the next call is right."""

# Misuse is the subject here.
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportUnusedExpression=false, reportGeneralTypeIssues=false
from __future__ import annotations

import asyncio
import functools
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf
from tests.support.fresh import Server
from tests.support.functions import vector
from tests.survive.hostile_functions import assert_names_the_line
from xfunc.errors import UnsupportedOpError

pytestmark = pytest.mark.usefixtures("alive_afterwards")


HERE = "test_survival_threads.py"


class _Mine(Exception):
    """An exception of the user's."""


@pytest.mark.parametrize("kind", [_Mine, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
@pytest.mark.parametrize("where", ["jit", "grad", "scan in grad", "vmap", "vjp", "nested jit"])
def test_exception_in_traced_function_is_unchanged(where: str, kind: type[BaseException]) -> None:
    raised = kind("mine")

    def stop(x: torch.Tensor) -> torch.Tensor:
        keep = x * 2
        raise raised if keep is not x else keep

    calls: dict[str, Callable[[], Any]] = {
        "jit": lambda: xf.jit(stop)(vector()),
        "grad": lambda: xf.grad(stop)(vector()),
        "scan in grad": lambda: xf.grad(
            lambda x: xf.scan(lambda c, y: (stop(c), y), x.sum(), x)[0]
        )(vector()),
        "vmap": lambda: xf.jit(xf.vmap(stop))(vector()),
        "vjp": lambda: xf.jit(lambda x: xf.vjp(stop, x)[0])(vector()),
        "nested jit": lambda: xf.jit(lambda x: xf.jit(stop)(x))(vector()),
    }
    with pytest.raises(kind, match="mine") as caught:
        calls[where]()
    assert caught.value is raised


def test_trace_usable_after_caught_errors() -> None:
    def fun(x: torch.Tensor) -> torch.Tensor:
        for attempt in (float, np.asarray, torch.nonzero, pickle.dumps):
            with pytest.raises((TypeError, NotImplementedError), match=HERE):
                attempt(x.sum())  # bad
        with pytest.raises(_Mine, match="inner"):
            xf.jit(_raise)(x)
        return x * 2

    def _raise(x: torch.Tensor) -> torch.Tensor:
        raise _Mine("inner")

    assert xf.jit(fun)(vector()).tolist() == [2.0, 4.0, 6.0]


def _run_threads(works: list[Callable[[], Any]], timeout: float = 120) -> list[Any]:
    results: list[Any] = [None] * len(works)

    def run(i: int) -> None:
        try:
            results[i] = works[i]()
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(works))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout)
    assert not any(t.is_alive() for t in threads), "a thread hangs"
    return results


@pytest.mark.parametrize("n", [2, 4])
def test_threads_tracing_concurrently(n: int) -> None:
    def work(k: int) -> list[list[float]]:
        out = []
        for i in range(5):
            f = xf.jit(xf.grad(lambda x, i=i: (x**2).sum() * k + i * x.sum()))
            out.append(f(vector()).tolist())
        return out

    want = [[[2 * v * k + i for v in (1.0, 2.0, 3.0)] for i in range(5)] for k in range(n)]
    assert _run_threads([functools.partial(work, k) for k in range(n)]) == want


def test_threads_sharing_one_jitted_function() -> None:
    f = xf.jit(lambda x: (x * 3).cos())
    works = [lambda k=k: f(torch.full((3,), float(k))).tolist() for k in range(4)]
    want = [torch.full((3,), 3.0 * k).cos().tolist() for k in range(4)]
    for got, w in zip(_run_threads(works), want, strict=True):
        assert got == pytest.approx(w)


# What has killed the process; each in one of its own, lest it take the other tests along.
FATAL = {
    "autograd node of a traced value": """
kept = []
def leak(x):
    w = x.detach().requires_grad_()
    kept.append((w * w).grad_fn)
    return x
xf.jit(leak)(x)
assert kept == [None]  # The graph of a trace is not shown.
""",
}


@pytest.mark.parametrize("name", FATAL)
def test_process_survives_formerly_fatal_program(name: str, fresh: Server) -> None:
    start = "import faulthandler, torch, xfunc as xf\nfaulthandler.enable()\n"
    start += "x = torch.tensor([1.0, 2.0, 3.0])\n"
    end = "assert xf.jit(lambda x: x * 2)(x).sum().item() == 12\nprint('alive')\n"
    done = fresh.run(start + FATAL[name] + end)
    assert done.stdout.endswith("alive\n"), f"{done.returncode}: {done.stdout}{done.stderr}"


def test_jit_called_from_coroutines() -> None:
    async def call(k: float) -> list[float]:
        await asyncio.sleep(0)
        return xf.jit(lambda x: x * k)(vector()).tolist()

    async def both() -> list[list[float]]:
        return list(await asyncio.gather(call(1.0), call(2.0)))

    assert asyncio.run(both()) == [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_jit_of_grad_inside_grad_mode(mode: Any) -> None:
    f = xf.jit(xf.grad(lambda x: (x**3).sum()))
    for _ in range(2):
        with mode():
            assert f(vector()).tolist() == [3.0, 12.0, 27.0]
        assert f(vector()).tolist() == [3.0, 12.0, 27.0]


@pytest.mark.filterwarnings("ignore")
def test_jit_torch_compile_inside_works_or_is_refused() -> None:
    try:
        got = xf.jit(lambda x: torch.compile(lambda y: y * 2, backend="eager")(x))(vector())
    except UnsupportedOpError as error:
        assert_names_the_line(str(error), HERE)
    else:
        assert got.tolist() == [2.0, 4.0, 6.0]


def test_jit_with_torch_func_around_and_inside() -> None:
    f = xf.jit(lambda x: (x**3).sum())
    x = vector()
    assert torch.func.grad(f)(xf.device_put(x)).tolist() == [3.0, 12.0, 27.0]
    assert xf.jit(lambda x: torch.func.grad(f)(x))(x).tolist() == [3.0, 12.0, 27.0]
    assert xf.jit(torch.func.vmap(lambda v: v * 2))(x).tolist() == [2.0, 4.0, 6.0]


@pytest.mark.torch_xla
def test_lazy_tensors_of_other_thread_survive_trace() -> None:
    """It is neither run nor lost when the trace ends."""
    result, found = xf.jit(lambda x: x * 2)(vector()), []
    begun, made = threading.Event(), threading.Event()

    def traced(x: torch.Tensor) -> torch.Tensor:
        begun.set()
        assert made.wait(60)
        return x + 1

    def compute() -> None:
        assert begun.wait(60)
        found.append(result.sum())
        made.set()

    thread = threading.Thread(target=compute)
    thread.start()
    assert xf.jit(traced)(vector()).tolist() == [2.0, 3.0, 4.0]
    thread.join()
    assert xf.jit(lambda x: x * 5)(vector()).tolist() == [5.0, 10.0, 15.0]
    assert found[0].item() == 12.0


def test_grad_called_and_read_in_thread_pool() -> None:
    def work(k: int) -> float:
        return xf.grad(lambda x: (x * k).sin().sum())(vector()).cpu().sum().item()

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(work, range(24)))
    wanted = [(k * (k * vector()).cos()).sum().item() for k in range(24)]
    assert found == pytest.approx(wanted, abs=1e-4)
