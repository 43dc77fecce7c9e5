"""Several devices on both runtimes, in one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.compilations import compilations
from xfunc.sharding import NamedSharding, P


@pytest.fixture(autouse=True)
def backend_of_before() -> Iterator[None]:
    yield
    xf.config.set_backend(os.environ.get("XFUNC_BACKEND", "torch_xla"))


MESH = ("x", "y")
BACKENDS = ("torch_xla", "pjrt")
ON_EACH = [pytest.param("torch_xla", marks=pytest.mark.torch_xla), "pjrt"]


def mesh() -> Any:
    return xf.make_mesh((4, 2), MESH)


def params() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    where = {"up": P("x", "y"), "down": P("y", "x"), "deep": P(None, "x", "y")}
    shapes = {"up": (16, 16), "down": (16, 16), "deep": (2, 16, 16)}
    return {
        k: xf.device_put(torch.randn(s, generator=g) / 4, NamedSharding(mesh(), where[k]))
        for k, s in shapes.items()
    }


def rows() -> torch.Tensor:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    return xf.device_put(x, NamedSharding(mesh(), P("x")))


def loss(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    h = torch.tanh(x @ p["up"]) @ p["down"]
    h = xf.scan(lambda h, w: (torch.tanh(h @ w), None), h, p["deep"])[0]
    return h.square().mean()


def in_region(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    def block(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        w = xf.sharding.all_gather(w, "x", axis=0, tiled=True)
        part = xf.sharding.psum_scatter(x @ w, "x", scatter_dimension=1, tiled=True)
        turned = xf.sharding.ppermute(part, "y", [(0, 1), (1, 0)])
        return xf.sharding.pmax(xf.sharding.all_to_all(turned, "x", 1, 0, tiled=True), "y")

    run = xf.sharding.shard_map(
        block, mesh=mesh(), in_specs=(P("x"), P()), out_specs=P("x"), check_vma=False
    )
    return run(p["up"], x)


def tied(p: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
    a, b = xf.sharding.shard_as(p["up"] * 2, p["down"] @ p["down"])
    c = xf.sharding.with_sharding_constraint(x @ a, P("y", "x"))
    return a, b, c


PROGRAMS: dict[str, Callable[..., Any]] = {
    "gradients of a scan": lambda p, x: xf.grad(loss)(p, x),
    "collectives": in_region,
    "gradients of collectives": xf.grad(lambda p, x: in_region(p, x).square().sum()),
    "ties and constraints": tied,
}


def run(backend: str, f: Callable[..., Any]) -> Any:
    xf.config.set_backend(backend)
    with xf.sharding.use_mesh(mesh()):
        return xf.jit(f)(params(), rows())


@pytest.mark.torch_xla
@pytest.mark.parametrize("f", PROGRAMS.values(), ids=PROGRAMS)
def test_backends_partition_programs_alike(f: Callable[..., Any]) -> None:
    found = {name: xf.tree.leaves(run(name, f)) for name in BACKENDS}
    shardings = {}
    for name, leaves in found.items():
        xf.config.set_backend(name)
        known = [xf.sharding.sharding_of(x) for x in leaves]
        shardings[name] = [
            s and s.shard_shape(tuple(x.shape)) for s, x in zip(known, leaves, strict=True)
        ]
    assert shardings["pjrt"] == shardings["torch_xla"]
    for a, b in zip(found["pjrt"], found["torch_xla"], strict=True):
        # Collectives need not add in the same order.
        torch.testing.assert_close(a.cpu(), b.cpu(), rtol=3e-5, atol=3e-5)


def test_pjrt_donated_sharded_buffers_are_reused() -> None:
    xf.config.set_backend("pjrt")
    step = xf.jit(
        lambda p, x: xf.tree.map(lambda w, g: w - g, p, xf.grad(loss)(p, x)), donate_argnums=0
    )
    p, x = params(), rows()
    want = {
        k: w.cpu() - g.cpu()
        for (k, w), g in zip(p.items(), xf.grad(loss)(p, x).values(), strict=True)
    }
    found = step.lower(p, x).compile().memory_analysis()
    assert found.alias_size_in_bytes == sum(w.nbytes for w in want.values()) // 8
    new = step(p, x)
    for k, w in want.items():
        torch.testing.assert_close(new[k].cpu(), w)
    with pytest.raises(RuntimeError, match="donated"):
        _ = p["up"] + 1


@pytest.mark.parametrize("backend", ON_EACH)
def test_donated_array_given_twice_leaves_the_next_call_alone(backend: str) -> None:
    xf.config.set_backend(backend)
    f = xf.jit(lambda x, y: (x + 1, y + 1), donate_argnums=0)
    for where in (P("x"), P()):
        x = xf.device_put(torch.ones(4, 2), NamedSharding(mesh(), where))
        for other in (x, x.detach()) if backend == "pjrt" else (x,):
            with pytest.raises(ValueError, match=r"given one tensor twice(.|\n)*clone"):
                f(x, other)
        assert xf.device_get(f(x, xf.device_get(x))[0]).equal(torch.full((4, 2), 2.0))


@pytest.mark.torch_xla
def test_backends_take_sharded_tensors_of_each_other() -> None:
    double = xf.jit(lambda x: x * 2)
    x = rows()
    want = x.cpu()
    for name in (*BACKENDS, *reversed(BACKENDS)):
        xf.config.set_backend(name)
        x, want = double(x), want * 2
        assert torch.equal(x.cpu(), want)
        x = xf.device_put(x, NamedSharding(mesh(), P("y", "x")))
        sharding = xf.sharding.sharding_of(x)
        assert sharding is not None
        assert sharding.spec == P("y", "x")
        assert torch.equal(xf.device_get(x), want)


def test_pjrt_in_place_write_keeps_sharding() -> None:
    xf.config.set_backend("pjrt")
    x = rows()
    x[0] = 7.0
    sharding = xf.sharding.sharding_of(xf.jit(lambda x: x + 0)(x))
    assert sharding is not None
    assert sharding.spec == P("x")
    assert x.cpu()[0].tolist() == [7.0] * 16


def test_pjrt_device_put_copies() -> None:
    xf.config.set_backend("pjrt")
    given = torch.ones(1024, 64)
    x = xf.device_put(given, NamedSharding(mesh(), P(MESH)))
    whole = xf.device_put(given)
    given.zero_()
    assert float(x.sum()) == float(whole.sum()) == 1024 * 64


@pytest.mark.parametrize("backend", ON_EACH)
def test_pure_callback_error_on_several_devices(backend: str) -> None:
    """The program runs to its end on all devices; what it returns must not be taken for results."""

    def refuse(x: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("of the callback")

    def f(x: torch.Tensor) -> torch.Tensor:
        y = xf.sharding.with_sharding_constraint(x * 2, P("x"))
        return xf.pure_callback(refuse, xf.ShapeDtypeStruct((8, 4), x.dtype), y) + y.sum()

    xf.config.set_backend(backend)
    with xf.sharding.use_mesh(mesh()):
        with pytest.raises(ArithmeticError, match="of the callback"):
            xf.block_until_ready(xf.jit(f)(torch.ones(8, 4)))
        inverse = xf.jit(torch.linalg.inv)(2 * torch.eye(8))
    assert torch.equal(inverse.cpu(), torch.eye(8) / 2)


def two_results(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sum(), x.amax(0)


@pytest.mark.parametrize("shardy", [False, True])
@pytest.mark.parametrize("backend", ON_EACH)
def test_io_callback_runs_once_on_several_devices(
    backend: str, shardy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on each device; and all of them get the results."""
    seen: list[torch.Tensor] = []

    def note(x: torch.Tensor) -> Any:
        seen.append(x.clone())
        return two_results(x)

    def f(x: torch.Tensor) -> torch.Tensor:
        like = torch.tensor(0.0), torch.zeros(16)

        def step(c: torch.Tensor, _: None) -> tuple[torch.Tensor, None]:
            total, largest = xf.io_callback(note, like, c * x)
            return c + total + largest.sum(), None

        xf.io_callback(note, like, x)  # nobody uses its results
        return xf.scan(step, torch.tensor(1.0), None, length=2)[0]

    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    expected, given = torch.tensor(1.0), []
    for _ in range(2):
        given.append(expected * x)
        total, largest = two_results(given[-1])
        expected = expected + total + largest.sum()
    xf.config.set_backend(backend)
    monkeypatch.setattr(xf.config, "use_shardy_partitioner", shardy)
    found = xf.jit(f)(xf.device_put(x, NamedSharding(mesh(), P("x", "y"))))
    torch.testing.assert_close(xf.device_get(found), expected)
    xf.block_until_ready(None)
    assert len(seen) == 3
    for wanted in (x, *given):
        assert any(torch.allclose(wanted, s, rtol=1e-4) for s in seen)


@pytest.mark.usefixtures("executables_not_kept")
def test_compilation_cache_of_sharded_programs(tmp_path: Path) -> None:
    import jax

    def moved(p: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
        return xf.tree.map(lambda w, g: w - g, p, xf.grad(loss)(p, x))

    xf.config.set_backend("pjrt")
    xf.config.set_compilation_cache_dir(tmp_path)
    found = []
    for _ in range(2):
        p, x = params(), rows()
        with compilations() as compiled:
            new = xf.jit(moved, donate_argnums=0)(p, x)
            count = compiled()
        lies = [xf.sharding.sharding_of(w) for w in new.values()]
        assert [s and s.spec for s in lies] == [P("x", "y"), P("y", "x"), P(None, "x", "y")]
        with pytest.raises(RuntimeError, match="donated"):
            _ = p["up"] + 1
        found.append((count, xf.device_get(new)))
        jax.clear_caches()
        xf.clear_caches()
    (first, a), (second, b) = found
    assert (first, second) == (1, 0)
    assert all(torch.equal(a[k], b[k]) for k in a)
