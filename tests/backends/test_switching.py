"""`set_backend` between the parts of a computation, and beside those of other threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.fresh import Server
from xfunc.backends import active

PAIRS = list(itertools.permutations(active.NAMES))
X = torch.tensor([0.3, -1.2, 2.0, 0.0])
Fun = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def same_backend_afterwards() -> Iterator[None]:
    before = active.runtime().name
    yield
    xf.config.set_backend(before)


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
def test_backward_runs_where_forward_ran(case: str, before: str, after: str) -> None:
    fun, slope = CASES[case]
    x = X.clone().requires_grad_()
    xf.config.set_backend(before)
    y = fun(x)
    xf.config.set_backend(after)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), slope(X))
    assert fun(X).device == active.runtime().to_device(X).device  # as before the backward pass


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_gradient_passes_from_one_to_the_other(before: str, after: str) -> None:
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
def test_a_leaf_of_the_other_has_its_gradient_there(before: str, after: str) -> None:
    xf.config.set_backend(before)
    leaf = xf.jit(lambda x: x + 1)(X).detach().requires_grad_()
    xf.config.set_backend(after)
    xf.jit(lambda x: x**3)(leaf).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.device == leaf.device
    torch.testing.assert_close(leaf.grad.cpu(), 3 * (X + 1) ** 2)


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_what_was_made_before(before: str, after: str) -> None:
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


@pytest.mark.parametrize(
    ("gpus", "installed", "chosen"),
    [
        (["/dev/nvidia0"], "torch_xla jax_cuda12_plugin", "pjrt"),
        (["/dev/nvidia0"], "torch_xla jax_cuda13_plugin", "pjrt"),
        (["/dev/nvidia0"], "torch_xla", "torch_xla"),
        ([], "torch_xla jax_cuda12_plugin", "torch_xla"),
        ([], "", "pjrt"),
    ],
)
def test_auto(
    monkeypatch: pytest.MonkeyPatch, gpus: list[str], installed: str, chosen: str
) -> None:
    monkeypatch.setattr(active, "glob", SimpleNamespace(glob=lambda pattern: gpus))
    monkeypatch.setattr(active, "_is_installed", installed.split().__contains__)
    xf.config.set_backend("auto")
    assert active.runtime().name == chosen
    with pytest.raises(ValueError, match="choose one of 'torch_xla', 'pjrt' and 'auto'"):
        xf.config.set_backend("automatic")


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_a_traced_function_must_not_switch(before: str, after: str) -> None:
    xf.config.set_backend(before)

    def switching(x: torch.Tensor) -> torch.Tensor:
        xf.config.set_backend(before)  # It is that already.
        xf.config.set_backend(after)
        return x

    with pytest.raises(RuntimeError, match=f"was to change to '{after}' inside of a call"):
        xf.jit(switching)(X)
    assert active.runtime().name == before


def test_beside_threads_that_compute(fresh: Server) -> None:
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


@pytest.mark.torch_xla
def test_reading_beside_launches(fresh: Server) -> None:
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


def test_threads_that_start_it_together(fresh: Server) -> None:
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
    for backend in active.NAMES:
        done = fresh.run(program, env={"XFUNC_BACKEND": backend})
        assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
