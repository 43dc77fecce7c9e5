"""Functions on the GPU: values, torch's own tensors there, and what a call takes."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import xfunc as xf
from benchmarks import dispatch
from benchmarks.timing import table

S = xf.ShapeDtypeStruct
ROWS = xf.Dim("rows", max=64)
LEAVES, GIB = 300, 2**30


def gradient(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A loss and its gradient, through a scan and a factorisation."""

    def loss(w: Tensor) -> Tensor:
        last, _ = xf.scan(lambda h, _: (torch.tanh(h @ w), None), x, length=3)
        return (torch.linalg.cholesky(last.T @ last + torch.eye(4, device=x.device)) ** 2).sum()

    return xf.value_and_grad(loss)(w)


def by_torch(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """`gradient` in torch."""
    w = w.clone().requires_grad_()
    last = x
    for _ in range(3):
        last = torch.tanh(last @ w)
    loss = (torch.linalg.cholesky(last.T @ last + torch.eye(4, device=x.device)) ** 2).sum()
    return loss.detach(), torch.autograd.grad(loss, w)[0]


def ragged(x: Tensor, w: Tensor) -> dict[str, Tensor]:
    """For any number of rows."""
    return {"mean": torch.softmax(x @ w, 0).mean(1), "shifted": x[1:] - x[:-1], "sum": x.sum()}


def add(cache: Tensor, new: Tensor) -> Tensor:
    """What a donated cache becomes."""
    return cache + new


def check(small: bool, only: Sequence[str] = ()) -> None:
    """Compare values with eager torch on the GPU, and print what calls and copies take."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    draw = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device=device)

    x, w = normal(5, 4), normal(4, 4)
    for given in ((x, w), (x.cpu(), w)):
        _equal(xf.jit(gradient)(*given), by_torch(x, w))
    _kept((x, w))
    any_rows = xf.jit(ragged, dynamic_shapes=((ROWS, None), None))
    for rows in (1, 2, 7, 64):
        x, w = normal(rows, 4), normal(4, 3)
        _equal(any_rows(x, w), ragged(x, w))
    print("values: as in eager torch")
    if device.type == "cuda":
        donating = xf.jit(add, donate_argnums=0)
        _tensors_of_the_gpu(donating, normal(4, 4))
        print("donation, and torch's tensors of the GPU: as in eager torch")
        _copies(donating, device, 2**20 if small else GIB)
    rows = dispatch.calls("one add", dispatch.one, 0, False)
    rows += dispatch.calls(f"{LEAVES} leaves", dispatch.each, LEAVES, True)
    print(table("host time of one call", rows))


def _kept(given: tuple[Tensor, Tensor]) -> None:
    """A program is kept in a folder, and found there; a profile is written."""
    with tempfile.TemporaryDirectory() as kept, tempfile.TemporaryDirectory() as profile:
        xf.config.set_compilation_cache_dir(kept)

        def programs() -> dict[Path, int]:
            xf.clear_caches()
            _equal(xf.jit(gradient)(*given), by_torch(*given))
            return {p: p.stat().st_mtime_ns for p in Path(kept).rglob("*") if p.is_file()}

        first = programs()
        with xf.profiler.trace(profile):
            second = programs()
        assert first, "Nothing is kept."
        assert second == first, "The second is compiled, too."
        assert any(Path(profile).rglob("*.xplane.pb")), "The profile is empty."
        xf.config.set_compilation_cache_dir(None)


def _tensors_of_the_gpu(add: Any, cache: Tensor) -> None:
    """What is donated is a copy; what a program reads does not change; results come back whole."""
    one, before = torch.ones(4, 4, device=cache.device), cache.clone()
    found = add(cache, one)
    one.fill_(100.0)
    cache.zero_()
    _equal(found, before + 1)
    found = add(found, torch.ones(4, 4, device=cache.device))
    there = found.cuda()
    after = add(found, torch.ones(4, 4))
    assert there.is_cuda
    assert after.cuda().is_cuda
    _equal([there, after], [before + 2, before + 3])
    _equal([there.mul_(2), after.to("cuda", torch.float16)], [2 * before + 4, (before + 3).half()])
    _equal(add(before.T, torch.ones(4, 4)), before.T + 1)
    with tempfile.TemporaryDirectory() as made:
        xf.sharding.save_checkpoint(Path(made, "state"), {"cache": after})
        like = {"cache": S((4, 4), torch.float32)}
        _equal(xf.sharding.load_checkpoint(Path(made, "state"), like), {"cache": before + 3})


def _equal(got: Any, want: Any) -> None:
    for g, w in zip(xf.tree.leaves(got), xf.tree.leaves(want), strict=True):
        torch.testing.assert_close(g.cpu(), w.cpu(), rtol=1e-5, atol=1e-5)


def _seconds(run: Callable[[], object], times: int) -> float:
    """The median, after a few calls that do not count."""
    found = []
    for k in range(times + 3):
        start = time.perf_counter()
        run()
        if k >= 3:
            found.append(time.perf_counter() - start)
    return statistics.median(found)


def _copies(large: Any, device: torch.device, size: int) -> None:
    """Pass a GiB (`size`) of torch's own memory, and take one back."""
    given, one = torch.zeros(size // 4, device=device), torch.tensor(1.0)
    host = given.cpu()
    to_us = _seconds(lambda: xf.block_until_ready(large(given, one)), 5)
    by_host = _seconds(lambda: xf.block_until_ready(large(host, one)), 5)
    result = large(given, one)
    back = _seconds(lambda: result.cuda(), 5)
    back_by_host = _seconds(lambda: xf.device_get(result.clone()).cuda(), 3)
    print(f"a GiB of torch's on the GPU as an argument: {1e3 * to_us:.1f} ms; ", end="")
    print(f"one of the CPU: {1e3 * by_host:.1f} ms")
    print(f"a result to torch's on the GPU: {1e3 * back:.1f} ms; ", end="")
    print(f"by the CPU: {1e3 * back_by_host:.1f} ms")
    print(f"memory: {xf.memory_stats()}")
