"""Exported functions on the GPU: values, torch's own tensors there, and what a call takes."""

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

S = xf.ShapeDtypeStruct
ROWS = xf.Dim("rows", max=64)
CALLS, LEAVES, GIB = 1000, 300, 2**30


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


def all_add(state: list[Tensor]) -> list[Tensor]:
    """What a donated state becomes."""
    return [x + 1 for x in state]


def export(folder: Path, only: Sequence[str] = ()) -> None:
    """Export the functions."""
    f32 = torch.float32
    programs = {
        "gradient": xf.jit(gradient).lower(S((5, 4), f32), S((4, 4), f32)),
        "ragged": xf.jit(ragged).lower(S((ROWS, 4), f32), S((4, 3), f32)),
        "add": xf.jit(add, donate_argnums=0).lower(S((4, 4), f32), S((4, 4), f32)),
        "large": xf.jit(add, donate_argnums=0).lower(S((GIB // 4,), f32), S((), f32)),
        "leaves": xf.jit(all_add, donate_argnums=0).lower([S((8,), f32)] * LEAVES),
    }
    for name, lowered in programs.items():
        xf.export.save(lowered, folder / f"serving-{name}.xfunc")


def check(folder: Path, only: Sequence[str] = ()) -> None:
    """Compare values with eager torch on the GPU, and print what calls and copies take."""
    loaded = {
        name: xf.export.load(folder / f"serving-{name}.xfunc")
        for name in "gradient ragged add large leaves".split()
    }
    device = torch.device("cuda", torch.cuda.current_device())
    draw = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device=device)

    x, w = normal(5, 4), normal(4, 4)
    for given in ((x, w), (x.cpu(), w)):
        _equal(loaded["gradient"](*given), by_torch(x, w))
    _kept(folder / "serving-gradient.xfunc", (x, w))
    for rows in (1, 2, 7, 64):
        x, w = normal(rows, 4), normal(4, 3)
        _equal(loaded["ragged"](x, w), ragged(x, w))
    _tensors_of_the_gpu(loaded["add"], normal(4, 4))
    print("values, donation, and torch's tensors of the GPU: as in eager torch")
    _copies(loaded["large"], device)
    _calls(loaded)


def _kept(file: Path, given: tuple[Tensor, Tensor]) -> None:
    """A program is kept in a folder, and found there; a profile is written."""
    with tempfile.TemporaryDirectory() as kept, tempfile.TemporaryDirectory() as profile:
        xf.config.set_compilation_cache_dir(kept)

        def programs() -> dict[Path, int]:
            return {p: p.stat().st_mtime_ns for p in Path(kept).rglob("*") if p.is_file()}

        _equal(xf.export.load(file)(*given), by_torch(*given))
        first = programs()
        with xf.profiler.trace(profile):
            _equal(xf.export.load(file)(*given), by_torch(*given))
        assert first, "Nothing is kept."
        assert programs() == first, "The second is compiled, too."
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


def _copies(large: Any, device: torch.device) -> None:
    """Pass a GiB of torch's own memory, and take one back."""
    given, one = torch.zeros(GIB // 4, device=device), torch.tensor(1.0)
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


def _calls(loaded: dict[str, Any]) -> None:
    """What a call takes, beside JAX's own, and torch's."""
    import jax

    def ours(*shape: int) -> Tensor:
        return xf.device_put(torch.ones(shape))

    def of_jax(*shape: int) -> Any:
        return jax.numpy.ones(shape, "float32")

    def timed(name: str, run: Callable[..., Any], state: Any, *others: Any) -> None:
        def step() -> None:
            nonlocal state
            state = run(state, *others)

        print(f"{name}: {1e6 * _seconds(step, CALLS):.1f} us")

    size = 4, 4
    timed("one add, exported", loaded["add"], ours(*size), ours(*size))
    timed("one add, jax.jit", jax.jit(add, donate_argnums=0), of_jax(*size), of_jax(*size))
    there = torch.ones(size, device="cuda")
    timed("one add, eager torch", add, there.clone(), there)
    timed("300 donated leaves, exported", loaded["leaves"], [ours(8) for _ in range(LEAVES)])
    theirs = jax.jit(all_add, donate_argnums=0)
    timed("300 donated leaves, jax.jit", theirs, [of_jax(8) for _ in range(LEAVES)])
