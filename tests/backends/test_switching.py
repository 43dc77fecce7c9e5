"""`set_backend` between the parts of a computation, and beside those of other threads."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.fresh import Server

pytestmark = pytest.mark.torch_xla

NAMES = ("torch_xla", "pjrt")
PAIRS = list(itertools.permutations(NAMES))
X = torch.tensor([0.3, -1.2, 2.0, 0.0])
Fun = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def same_backend_afterwards() -> Iterator[None]:
    yield
    xf.config.set_backend(os.environ.get("XFUNC_BACKEND", "torch_xla"))


@xf.custom_vjp
def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x)


doubled.defvjp(lambda x: (torch.sin(x), x), lambda x, ct: (2 * ct * torch.cos(x),))


def looped(x: torch.Tensor) -> torch.Tensor:
    return xf.scan(lambda c, _: (torch.sin(c), None), x, None, length=5)[0]


# Functions, and the derivatives of their sums by hand.
CASES: dict[str, tuple[Fun, Fun]] = {
    "jit": (xf.jit(lambda x: x * x.sin()), lambda x: x.sin() + x * x.cos()),
    "custom_vjp": (doubled, lambda x: 2 * x.cos()),
    "jit of custom_vjp": (xf.jit(lambda x: doubled(x) * 3), lambda x: 6 * x.cos()),
    "scan": (
        xf.jit(looped),
        lambda x: torch.func.grad(lambda y: y.sin().sin().sin().sin().sin().sum())(x),
    ),
    "dynamic_shapes": (
        xf.jit(lambda x: x * x.sin(), dynamic_shapes=((xf.Dim("n"),),)),
        lambda x: x.sin() + x * x.cos(),
    ),
}


@pytest.mark.parametrize(("before", "after"), PAIRS)
@pytest.mark.parametrize("case", CASES)
def test_backward_runs_on_backend_of_forward(case: str, before: str, after: str) -> None:
    fun, slope = CASES[case]
    x = X.clone().requires_grad_()
    xf.config.set_backend(before)
    y = fun(x)
    xf.config.set_backend(after)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), slope(X))
    assert fun(X).device == xf.device_put(X).device  # as before the backward pass


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_autograd_across_backends(before: str, after: str) -> None:
    """Also the second derivative, each part of which runs on another."""
    f, g = xf.jit(lambda x: x * x.sin()), xf.jit(torch.cos)
    x = X.clone().requires_grad_()
    xf.config.set_backend(before)
    y = f(x)
    xf.config.set_backend(after)
    (first,) = torch.autograd.grad(g(y).sum(), x, create_graph=True)
    xf.config.set_backend(before)
    (second,) = torch.autograd.grad(first.sum(), x)

    def plain(x: torch.Tensor) -> torch.Tensor:
        return (x * x.sin()).cos().sum()

    torch.testing.assert_close(first.detach().cpu(), torch.func.grad(plain)(X))
    wanted = torch.func.grad(lambda x: torch.func.grad(plain)(x).sum())(X)
    torch.testing.assert_close(second.cpu(), wanted)


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_autograd_leaf_of_other_backend(before: str, after: str) -> None:
    xf.config.set_backend(before)
    leaf = xf.jit(lambda x: x + 1)(X).detach().requires_grad_()
    xf.config.set_backend(after)
    xf.jit(lambda x: x**3)(leaf).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.device == leaf.device
    torch.testing.assert_close(leaf.grad.cpu(), 3 * (X + 1) ** 2)


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_set_backend_keeps_earlier_functions_usable(before: str, after: str) -> None:
    """Captures, pullbacks, compiled and loaded programs."""
    xf.config.set_backend(before)
    f = xf.jit(lambda x: x * x.sin())
    held = f(X)
    capturing, compiled = xf.jit(lambda x: x * held), f.lower(X).compile()
    loaded = xf.export.deserialize(xf.export.serialize(f.lower(X)))
    pull = xf.vjp(f, X)[1]
    torchs_pull: Any = torch.func.vjp(f, X)[1]
    n = xf.Dim("n", max=6)
    bucketed = xf.jit(lambda x, y: x @ y).lower(
        xf.ShapeDtypeStruct((n, 4), torch.float32), xf.ShapeDtypeStruct((4,), torch.float32)
    )
    range_of_shapes = bucketed.compile()
    assert range_of_shapes(torch.eye(4), X).tolist() == X.tolist()
    xf.config.set_backend(after)
    slope = X.sin() + X * X.cos()
    for got, want in (
        (capturing(X), X * X * X.sin()),
        (compiled(X), X * X.sin()),
        (loaded(X), X * X.sin()),
        (pull(torch.ones(4))[0], slope),
        (torchs_pull(torch.ones_like(held))[0], slope),
        (range_of_shapes(torch.eye(4), X), X),
    ):
        torch.testing.assert_close(got.detach().cpu(), want)


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_set_backend_in_traced_function_raises(before: str, after: str) -> None:
    xf.config.set_backend(before)
    where = xf.device_put(X).device

    def switching(x: torch.Tensor) -> torch.Tensor:
        xf.config.set_backend(before)  # It is that already.
        xf.config.set_backend(after)
        return x

    with pytest.raises(RuntimeError, match=f"was to change to '{after}' inside of a call"):
        xf.jit(switching)(X)
    assert xf.device_put(X).device == where


def test_set_backend_beside_computing_threads(fresh: Server) -> None:
    """Each call ends on the backend that it began on."""
    program = """
import faulthandler, math, threading, torch, xfunc as xf
faulthandler.dump_traceback_later(150, exit=True)
f = xf.jit(lambda x: torch.sin(x) @ x)
h = xf.jit(lambda x: torch.linalg.cholesky(x @ x.mT + 9 * torch.eye(8)))
x, failed, done = torch.eye(8), [], threading.Event()

def once(k):
    y = f(f(x)).cpu()
    assert math.isclose(y[0, 0], math.sin(math.sin(1)) * math.sin(1), abs_tol=1e-5)
    if k:
        w = torch.eye(8, requires_grad=True)
        f(w).sum().backward()
    else:
        h(x)

# Another thread's operations on tensors of torch_xla would fail beside a trace.
for backend in ("pjrt", "torch_xla"):
    xf.config.set_backend(backend)
    once(0), once(1)

def compute(k):
    try:
        while not done.is_set():
            once(k)
    except Exception as error:
        failed.append(error)
        raise

threads = [threading.Thread(target=compute, args=(k,)) for k in range(3)]
for thread in threads:
    thread.start()
for k in range(150):
    xf.config.set_backend(("pjrt", "torch_xla")[k % 2])
    f(x)
done.set()
for thread in threads:
    thread.join()
print(len(failed))
"""
    done = fresh.run(program)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@pytest.mark.slow
@pytest.mark.torch_xla
def test_reads_beside_launches_of_other_threads(fresh: Server) -> None:
    """The reader waited for Python's lock with the device's, and the launcher the other way."""
    program = """
import faulthandler, threading, torch, xfunc as xf
faulthandler.dump_traceback_later(100, exit=True)
f = xf.jit(lambda x: torch.sin(x) @ x)
y = f(torch.eye(20))

def read():
    for _ in range(3000):
        (y + 1).sum().item()

def launch():
    while any(t.is_alive() for t in readers):
        f(y)

readers = [threading.Thread(target=read) for _ in range(3)]
others = [threading.Thread(target=launch)]
for thread in readers + others:
    thread.start()
for thread in readers + others:
    thread.join()
print("done")
"""
    done = fresh.run(program)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_devices_started_by_threads_at_once(fresh: Server) -> None:
    program = """
import threading, torch, xfunc as xf
together, failed = threading.Barrier(4), []

def start():
    together.wait()
    try:
        xf.device_count()
        xf.jit(torch.sin)(torch.ones(3))
    except Exception as error:
        failed.append(error)
        raise

threads = [threading.Thread(target=start) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(failed))
"""
    for backend in NAMES:
        done = fresh.run(program, env={"XFUNC_BACKEND": backend})
        assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
