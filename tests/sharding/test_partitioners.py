"""The same programs by GSPMD and by Shardy: the table in ``docs/partitioners.md``, and ties."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf
from tests.support.divided import on
from tests.support.jax_names import names
from tests.support.partitioned import NAMES, Partitioned, partitioned, pjrt
from tests.support.shard_map_programs import programs
from xfunc.aot import compiled as ahead
from xfunc.aot.request import Request
from xfunc.backends.pjrt import executable
from xfunc.hlo import Module, opcodes
from xfunc.sharding import Mesh, NamedSharding, P, sharding_of

ROOT = Path(__file__).parents[2]
RECORDED = np.load(ROOT / "tests" / "data" / "shard_map.npz")
PAGE = ROOT / "docs" / "partitioners.md"
PROGRAMS = programs(names())


def row(name: str, found: dict[str, Partitioned]) -> str:
    gspmd, shardy = (found[n].communication() for n in NAMES)
    same = "the same" if gspmd == shardy else f"**{shardy}**"
    return f"| {name} | {found['Shardy'].parts()} | {gspmd} | {same} |"


def table() -> str:
    """``python -c "from tests.sharding.test_partitioners import table; print(table())"``."""
    head = "| program | result on each device, by both | collectives by GSPMD | by Shardy |"
    rows = (row(n, partitioned(f)) for n, f in PROGRAMS.items())
    return "\n".join([head, "|---|---|---|---|", *rows])


@pytest.mark.sample(6, seed=0)
@pytest.mark.parametrize("name", PROGRAMS)
def test_both_partition_alike(name: str) -> None:
    found = partitioned(PROGRAMS[name])
    want = [torch.from_numpy(RECORDED[k]) for k in RECORDED if k.rpartition("/")[0] == name]
    for one in found.values():
        torch.testing.assert_close(one.leaves, want, rtol=1e-9, atol=1e-9, check_dtype=False)
    assert found["Shardy"].shapes == found["GSPMD"].shapes
    assert row(name, found) in PAGE.read_text(encoding="utf-8").splitlines()


class _Enough(BaseException):
    """In place of a compiler's answer."""


def handed_over(f: Any, monkeypatch: pytest.MonkeyPatch) -> list[Module]:
    """What JAX is given to compile, for either partitioner, and libtpu."""
    given: list[bytes] = []
    xf.clear_caches()

    def to_jax(name: str, module: Module, *rest: object) -> None:
        given.append(module.to_bytes())
        raise _Enough

    def to_libtpu(request: Request, *rest: object) -> None:
        given.append(request.module)
        raise _Enough

    monkeypatch.setattr(executable, "_exported", to_jax)
    monkeypatch.setattr(ahead, "result_of", to_libtpu)
    with pjrt():
        lowered = xf.jit(f).lower()
    for name in NAMES:
        with pjrt(name), contextlib.suppress(_Enough):
            lowered.compile()
    with contextlib.suppress(_Enough):
        lowered.compile(target="tpu:v6e:2x4")
    assert len(given) == 3
    return list(map(Module.from_bytes, given))


@pytest.mark.sample(6, seed=0)
@pytest.mark.parametrize("name", PROGRAMS)
def test_groups_of_devices_are_listed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer releases of jaxlib lose the compact form, ``replica_groups=[2,4]<=[8]``."""
    for module in handed_over(PROGRAMS[name], monkeypatch):
        assert not re.search(r"replica_groups=\[[\d,]+\]<=", str(module))
        for i in (i for c in module.proto.computations for i in c.instructions):
            if i.opcode in opcodes.COLLECTIVES - {"collective-permute"}:
                groups = i.collective_device_list
                assert not groups.HasField("iota_replica_group_list")
                devices = [d for g in groups.replica_groups for d in g.replica_ids]
                assert sorted(devices) == list(range(8))


def test_the_table_has_all_programs() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    found = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")]
    assert [n for n in found if ": " in n] == [*PROGRAMS]


def stacked_gradient(ties: bool) -> Any:
    """By both, of a scan over weights that are sharded over both axes."""
    layers = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(0)) / 4
    layers = layers.double()
    h = torch.linspace(-1, 1, 8 * 16, dtype=torch.float64).reshape(8, 16)

    def loss(layers: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return xf.scan(lambda h, w: (torch.tanh(h @ w), None), h, layers)[0].square().sum()

    def plain(layers: torch.Tensor) -> torch.Tensor:
        last = h
        for w in layers:
            last = torch.tanh(last @ w)
        return last.square().sum()

    xf.config.shard_as_in_scan = ties
    try:
        with pjrt():
            placed = xf.device_put(layers, on(None, "fsdp", "tensor"))
            found = partitioned(xf.grad(loss), placed, xf.device_put(h, on("fsdp")))
    finally:
        xf.config.shard_as_in_scan = True
    for one in found.values():
        torch.testing.assert_close(one.leaves[0], torch.func.grad(plain)(layers))
    return [one.shapes[0] for one in found.values()]


def test_ties_hold() -> None:
    """Without them both shard the gradient of a stack over one axis."""
    assert stacked_gradient(ties=True) == [(3, 4, 8)] * 2
    assert (3, 4, 8) not in stacked_gradient(ties=False)


def test_what_has_no_common_mesh_is_partitioned_by_gspmd() -> None:
    """Devices in two orders."""
    other = Mesh(np.array([[3, 1], [0, 2], [7, 5], [6, 4]]), ("fsdp", "tensor"))
    x = torch.arange(64.0).reshape(8, 8)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = xf.with_sharding_constraint(x * 2, NamedSharding(other, P("tensor", "fsdp")))
        return xf.with_sharding_constraint(y + 1, on("fsdp", "tensor"))

    with pjrt():
        found = xf.jit(f)(x)
        assert sharding_of(found) == on("fsdp", "tensor")
        assert torch.equal(found.cpu(), 2 * x + 1)


@pytest.mark.parametrize("partitioner", NAMES)
@pytest.mark.parametrize("dim", [0, 1])
def test_scatters_into_sharded_arrays(dim: int, partitioner: str) -> None:
    """XLA would end the process: see `narrow_scatter_indices`."""
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    i = torch.tensor([3, 0, 7, 3, 1, 1, 6, 2]).expand(8, 8)

    def f(x: torch.Tensor) -> Any:
        top = torch.topk(x, 3, dim)[0].square().sum()
        return top, x.scatter_add(dim, i, x), torch.gather(x, dim, i).pow(3).sum()

    def total(x: torch.Tensor) -> torch.Tensor:
        return sum((y.sum() for y in f(x)), torch.zeros(()))

    with pjrt(partitioner):
        placed = xf.device_put(x, on("fsdp", "tensor"))
        found = xf.jit(lambda x: (f(x), xf.grad(total)(x)))(placed)
        leaves = xf.device_get(xf.tree.leaves(found))
    want = [*f(x), torch.func.grad(total)(x)]
    torch.testing.assert_close(leaves, want)


def test_python_is_called_from_sharded_programs(capfd: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = xf.with_sharding_constraint(x * 2, on("fsdp"))
        xf.debug.print("the sum is {}", y.sum())
        return y + 1

    x = torch.eye(8, dtype=torch.float64) * 4
    with pjrt():
        found = xf.jit(f)(xf.device_put(x, on("fsdp", "tensor"))).cpu()
    assert torch.equal(found, 2 * x + 1)
    assert "the sum is 64" in capfd.readouterr().out
