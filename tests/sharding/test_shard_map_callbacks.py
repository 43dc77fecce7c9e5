"""Callbacks in a `shard_map`: once for each device, with its own part."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import xfunc as xf
from xfunc.sharding import P

Tensor = torch.Tensor
Seen = list[tuple[str, object]]


@pytest.fixture
def seen() -> Seen:
    return []


@pytest.fixture
def mesh() -> xf.Mesh:
    return xf.make_mesh((2, 4), ("x", "y"))


def noting(seen: Seen, what: str) -> Callable[[Tensor], None]:
    return lambda x: seen.append((what, x.tolist()))


def body(seen: Seen) -> Callable[[Tensor, Tensor], Tensor]:
    def f(rows: Tensor, columns: Tensor) -> Tensor:
        xf.debug.callback(noting(seen, "rows"), rows)
        xf.debug.callback(lambda: seen.append(("nothing", None)))

        def step(total: Tensor, row: Tensor) -> tuple[Tensor, None]:
            xf.debug.callback(noting(seen, "step"), row)
            return total + row, None

        total, _ = xf.scan(step, rows.sum() * 0, rows)
        xf.debug.callback(noting(seen, "columns"), columns)
        return rows * xf.sharding.psum(columns.sum(), "y") + total * 0

    return f


def of_device(rows: list[float], columns: list[float]) -> Seen:
    steps: Seen = [("step", row) for row in rows]
    return [("rows", rows), ("nothing", None), *steps, ("columns", columns)]


ROWS, COLUMNS = torch.arange(4.0), torch.arange(8.0)
OF_ALL = [
    note
    for k in range(8)
    for note in of_device(ROWS.chunk(2)[k // 4].tolist(), COLUMNS.chunk(4)[k % 4].tolist())
]


def test_debug_callback_in_shard_map_device_by_device(seen: Seen, mesh: xf.Mesh) -> None:
    f = xf.shard_map(body(seen), mesh=mesh, in_specs=(P("x"), P("y")), out_specs=P("x"))
    g = xf.jit(f)
    for _ in range(2):
        seen.clear()
        assert g(ROWS, COLUMNS).tolist() == (ROWS * 28).tolist()
        assert seen == OF_ALL
    assert xf.trace_count(g) == 1
    seen.clear()
    assert f(ROWS, COLUMNS).tolist() == (ROWS * 28).tolist()
    assert seen == OF_ALL


def test_debug_callback_in_shard_map_under_grad(seen: Seen, mesh: xf.Mesh) -> None:
    f = xf.shard_map(body(seen), mesh=mesh, in_specs=(P("x"), P("y")), out_specs=P("x"))
    for g in (f, xf.checkpoint(f)):
        seen.clear()
        found = xf.jit(xf.grad(lambda rows, g=g: (g(rows, COLUMNS) ** 2).sum()))(ROWS)
        torch.testing.assert_close(xf.device_get(found), 2 * 28**2 * ROWS)
        assert seen == OF_ALL


def test_debug_callback_in_shard_map_under_vmap_and_scan(seen: Seen, mesh: xf.Mesh) -> None:
    f = xf.shard_map(
        lambda x: xf.debug.callback(noting(seen, "part"), x) or x + 1,
        mesh=mesh,
        in_specs=P("x"),
        out_specs=P("x"),
    )
    batch = torch.stack([ROWS, ROWS + 4])
    parts = [x.tolist() for row in batch for x in row.chunk(2) for _ in range(4)]
    assert xf.jit(xf.vmap(f))(batch).tolist() == (batch + 1).tolist()
    assert seen == [("part", x) for x in parts]
    seen.clear()
    last, _ = xf.jit(lambda x: xf.scan(lambda c, _: (f(c), None), x, length=2))(ROWS)
    assert last.tolist() == (ROWS + 2).tolist()
    parts = [x.tolist() for k in range(2) for x in (ROWS + k).chunk(2) for _ in range(4)]
    assert seen == [("part", x) for x in parts]


def test_debug_callback_in_nested_shard_map(seen: Seen, mesh: xf.Mesh) -> None:
    def outer(x: Tensor) -> Tensor:
        inner = xf.shard_map(
            lambda x: xf.debug.callback(noting(seen, "part"), x) or x + 1,
            in_specs=P("y"),
            out_specs=P("y"),
            axis_names={"y"},
        )
        return inner(x)

    f = xf.shard_map(outer, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    assert xf.jit(f)(COLUMNS).tolist() == (COLUMNS + 1).tolist()
    assert seen == [("part", [x]) for x in COLUMNS.tolist()]


def test_io_callback_in_shard_map(seen: Seen, mesh: xf.Mesh) -> None:
    def double(x: Tensor) -> Tensor:
        seen.append(("part", x.tolist()))
        return 2 * x

    f = xf.shard_map(
        lambda x: xf.io_callback(double, x, x),
        mesh=mesh,
        in_specs=P(("x", "y")),
        out_specs=P(("x", "y")),
    )
    assert xf.jit(f)(COLUMNS).tolist() == (2 * COLUMNS).tolist()
    assert sorted(seen) == [("part", [x]) for x in COLUMNS.tolist()]  # in any order


def test_debug_callback_in_shard_map_errors(seen: Seen, mesh: xf.Mesh) -> None:
    def check(x: Tensor) -> None:
        if x.max() > 2:
            raise ArithmeticError(f"too large: {x.tolist()}")

    f = xf.shard_map(
        lambda x: xf.debug.callback(check, x) or x, mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    with pytest.raises(ArithmeticError, match=r"too large: \[2.0, 3.0\]"):
        xf.jit(f)(ROWS)
    assert xf.jit(f)(ROWS - 1).tolist() == (ROWS - 1).tolist()
    in_branch = xf.jit(lambda x: xf.cond(x.sum() > 0, f, lambda x: x, x))
    with pytest.raises(xf.errors.UnsupportedOpError, match="is in a branch, a while loop"):
        in_branch(ROWS)
