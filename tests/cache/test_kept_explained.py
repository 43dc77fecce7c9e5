"""`explain()` says why a program is not kept on disk."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf

LOCK, TENSOR, COUNTS = threading.Lock(), torch.ones(2), [0]
NAMES, KINDS = {"a", "b"}, [frozenset("ab")]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    xf.clear_caches()
    xf.config.set_trace_cache_dir(tmp_path)
    yield tmp_path
    xf.config.set_trace_cache_dir(None)


def counts(x: torch.Tensor) -> torch.Tensor:
    COUNTS.append(0)
    return x * len(COUNTS)


def prints(x: torch.Tensor) -> torch.Tensor:
    xf.debug.print("{}", x)
    return x * 2


def locks(x: torch.Tensor) -> torch.Tensor:
    return x * (not LOCK.locked())


def names(x: torch.Tensor) -> torch.Tensor:
    return x * list(NAMES).index("a")


def constant(x: torch.Tensor) -> torch.Tensor:
    for name in {"a", "b"}:
        x = x * len(name)
    return x


WHY: dict[str, tuple[Callable[..., Any], str]] = {
    "a name": (lambda x: x * hasattr(x, "shape"), "it uses hasattr"),
    "a hash": (lambda x: x * (hash("text") % 7), "hash was called"),
    "the seed": (lambda x: x * (torch.initial_seed() % 7), "torch.random.initial_seed was called"),
    "a lock": (locks, "it depends on a _thread.lock"),
    "the order of a set": (names, "it uses NAMES: the order of a set is another in each process"),
    "the order of a constant": (constant, "it uses a set: the order of a set is another in each"),
    "a set in a list": (lambda x: x * len(KINDS[0]), "it depends on a frozenset whose order is"),
    "the process": (lambda x: x * xf.process_index(), "xfunc.backends.devices.process_index was"),
    "a global tensor": (lambda x: x * TENSOR, "it depends on the tensor TENSOR"),
    "a change": (counts, "the function changes what it depends on"),
    "a callback": (prints, "it calls back to Python, or computes nothing"),
    "a result": (lambda x: (x, {len: x}), "it depends on what its results are made of: "),
}


@pytest.mark.parametrize(("fun", "why"), WHY.values(), ids=WHY)
def test_why_not(folder: Path, fun: Callable[..., Any], why: str) -> None:
    jitted = xf.jit(fun)
    jitted(torch.ones(2))
    assert f"\nnot kept on disk: {why}" in jitted.explain()
    assert not list(folder.iterdir())


def test_why_not_while_autograd_watches(folder: Path) -> None:
    jitted = xf.jit(lambda x: x * 2)
    jitted(torch.ones(2, requires_grad=True))
    assert jitted.explain().endswith("\nnot kept on disk: autograd watches an argument")
    jitted.clear_cache()
    assert "disk" not in jitted.explain()


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"memory_limit": 2**30}, "what a memory_limit has chosen"),
        ({"dynamic_shapes": ((xf.Dim("N"),),)}, "a program for a range of shapes"),
    ],
)
def test_why_never(folder: Path, option: dict[str, Any], why: str) -> None:
    jitted = xf.jit(lambda x: torch.tanh(x) * 2, **option)
    jitted(torch.ones(7))
    assert f"\nnot kept on disk: {why}\n" in jitted.explain()
    assert not list(folder.iterdir())
    xf.config.set_trace_cache_dir(None)
    assert "disk" not in jitted.explain()


def test_nothing_is_said_of_what_is_kept(folder: Path) -> None:
    def fun(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    for traces in (1, 0):
        xf.clear_caches()
        jitted = xf.jit(fun)
        jitted(torch.ones(2))
        assert xf.trace_count(jitted) == traces
        assert "disk" not in jitted.explain()
    xf.config.set_trace_cache_dir(None)
    jitted = xf.jit(lambda x: x * hasattr(x, "shape"))
    jitted(torch.ones(2))
    assert "disk" not in jitted.explain()
