"""The same programs by GSPMD and by Shardy: the table in ``docs/partitioners.md``, and ties."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import xfunc as xf
from tests.support.divided import on
from tests.support.fresh import Server
from tests.support.jax_names import names
from tests.support.shard_map_programs import programs
from xfunc.sharding import Mesh, NamedSharding, P, sharding_of

ROOT = Path(__file__).parents[2]
RECORDED = np.load(ROOT / "tests" / "data" / "shard_map.npz")
PAGE = ROOT / "docs" / "partitioners.md"
PROGRAMS = programs(names())
NAMES = {"GSPMD": False, "Shardy": True}
COLLECTIVES = "all-gather all-reduce all-to-all collective-permute reduce-scatter".split()


class Partitioned(NamedTuple):
    """A program of several devices.

    Attributes:
        leaves: of its result.
        shapes: what each device has of them.
        collectives: how many instructions of each kind one device runs.
    """

    leaves: list[torch.Tensor]
    shapes: list[tuple[int, ...]]
    collectives: Counter[str]

    def communication(self) -> str:
        """The collectives, as a table has them."""
        found = (f"{n} {kind}" for kind, n in sorted(self.collectives.items()))
        return ", ".join(found) or "none"

    def parts(self) -> str:
        """The shapes, as a table has them."""
        found = dict.fromkeys("x".join(map(str, s)) or "()" for s in self.shapes)
        return ", ".join(found)


@contextmanager
def pjrt(partitioner: str = "Shardy") -> Iterator[None]:
    """Run and partition programs in this way in a block."""
    before = xf.config.use_shardy_partitioner
    xf.config.set_backend("pjrt")
    xf.config.use_shardy_partitioner = NAMES[partitioner]
    try:
        yield
    finally:
        xf.config.set_backend(os.environ.get("XFUNC_BACKEND", "torch_xla"))
        xf.config.use_shardy_partitioner = before


def partitioned(f: Callable[..., Any], *args: Any) -> dict[str, Partitioned]:
    """The program of a function, by each of the partitioners."""
    found: dict[str, Partitioned] = {}
    with pjrt():
        lowered = xf.jit(f).lower(*args)
    for name in NAMES:
        with pjrt(name):
            compiled = lowered.compile()
            leaves = xf.tree.leaves(compiled(*args))
            shapes = [tuple(x.shape) for x in leaves]
            for k, x in enumerate(leaves):
                if sharding := xf.sharding_of(x):
                    shapes[k] = sharding.shard_shape(shapes[k])
            found[name] = Partitioned(
                [x.cpu() for x in leaves], shapes, _collectives(compiled.as_text() or "")
            )
    return found


def _collectives(text: str) -> Counter[str]:
    return Counter(re.findall(rf" ({'|'.join(COLLECTIVES)})(?:-start)?\(", text))


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
def test_partitioners_agree_and_match_page(name: str) -> None:
    found = partitioned(PROGRAMS[name])
    want = [torch.from_numpy(RECORDED[k]) for k in RECORDED if k.rpartition("/")[0] == name]
    for one in found.values():
        torch.testing.assert_close(one.leaves, want, rtol=1e-9, atol=1e-9, check_dtype=False)
    assert found["Shardy"].shapes == found["GSPMD"].shapes
    assert row(name, found) in PAGE.read_text(encoding="utf-8").splitlines()


def test_partitioners_page_lists_all_programs() -> None:
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


def test_scan_ties_hold_in_both_partitioners() -> None:
    """Without them both shard the gradient of a stack over one axis."""
    assert stacked_gradient(ties=True) == [(3, 4, 8)] * 2
    assert (3, 4, 8) not in stacked_gradient(ties=False)


BY_GSPMD = """
import os
level = {level}
if level is None:
    os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
else:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = level
import torch, xfunc as xf
xf.config.set_backend("pjrt")
xf.config.use_shardy_partitioner = False
mesh = xf.make_mesh((8,), ("x",))
x = xf.device_put(torch.arange(8.0), xf.NamedSharding(mesh, xf.P("x")))
print(xf.jit(torch.sum)(x).item())
"""


@pytest.mark.parametrize("level", [None, "1"])
def test_deprecation_of_gspmd_is_not_shown(level: str | None, fresh: Server) -> None:
    """Unless XLA's warnings are asked for."""
    done = fresh.run(BY_GSPMD.format(level=repr(level)))
    assert (done.returncode, done.stdout) == (0, "28.0\n"), done.stderr
    assert ("GSPMD" in done.stderr) is (level is not None)


def test_shardy_is_default_with_new_jax(fresh: Server) -> None:
    is_new = [*map(int, metadata.version("jax").split(".")[:2])] >= [0, 10]
    done = fresh.run("import xfunc as xf; print(xf.config.use_shardy_partitioner)")
    assert done.stdout == f"{is_new}\n", done.stderr


def test_partitioners_without_common_mesh() -> None:
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
def test_device_put_of_result_with_sharding_of_finer_mesh(partitioner: str) -> None:
    """A result lies on the mesh that Shardy was given, of one axis, which divides no length."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(xf.config, "use_shardy_partitioner", NAMES[partitioner])
        for made in (
            xf.jit(lambda: torch.ones(4, 2))(),
            xf.jit(lambda x: (x.sum(), x[:4, :2]))(xf.device_put(torch.ones(8, 8), on(None)))[1],
        ):
            placed = xf.device_put(made, on("fsdp", "tensor"))
            assert sharding_of(placed) == on("fsdp", "tensor")
            assert placed.tolist() == torch.ones(4, 2).tolist()


@pytest.mark.parametrize("partitioner", NAMES)
@pytest.mark.parametrize("dim", [0, 1])
def test_scatter_into_sharded_array(dim: int, partitioner: str) -> None:
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


def test_debug_print_in_sharded_program(capfd: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = xf.with_sharding_constraint(x * 2, on("fsdp"))
        xf.debug.print("the sum is {}", y.sum())
        return y + 1

    x = torch.eye(8, dtype=torch.float64) * 4
    with pjrt():
        found = xf.jit(f)(xf.device_put(x, on("fsdp", "tensor"))).cpu()
    assert torch.equal(found, 2 * x + 1)
    assert "the sum is 64" in capfd.readouterr().out
