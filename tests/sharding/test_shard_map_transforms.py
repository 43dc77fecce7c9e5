"""`shard_map` in and around transforms, control flow and staging, against plain torch."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.cases import OURS, PLAIN
from xfunc import sharding
from xfunc.sharding import P, make_mesh, shard_map

MESH = make_mesh((4, 2), ("x", "y"))
RING = [(i, (i + 1) % 4) for i in range(4)]


def rows(x: torch.Tensor) -> torch.Tensor:
    """What the devices along x hold."""
    return x.reshape(4, 2, *x.shape[1:])


def scan_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def each(a: torch.Tensor, b: torch.Tensor) -> Any:
        def step(c: torch.Tensor, v: torch.Tensor) -> Any:
            c = sharding.ppermute(torch.tanh(c * v.sum()), "x", RING)
            return c, sharding.psum(c.sum(), ("x", "y"))

        return xf.scan(step, a, b)

    last, sums = shard_map(each, MESH, (P("x"), P("x", "y")), (P(("x", "y")), P()))(x, w)
    return last.sum() * sums.sum()


def plain_scan_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b = rows(w).unflatten(2, (2, 4)).sum(-1)  # of device x, step, device y
    c, total = torch.stack([rows(x)] * 2, 1), torch.zeros((), dtype=x.dtype)
    for k in range(2):
        c = torch.tanh(c * b[:, k, :, None]).roll(1, 0)
        total = total + c.sum()
    return c.sum() * total


def staged_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def each(a: torch.Tensor) -> torch.Tensor:
        inner = xf.jit(lambda v: sharding.psum(v @ w[:2], "x") + sharding.axis_index("x"))
        kept = xf.checkpoint(lambda v: torch.tanh(inner(v)).sum() * v)
        return kept(a) + xf.scan(lambda c, _: (torch.sin(inner(c)[:2] + c), None), a, length=2)[0]

    return shard_map(each, MESH, P("x"), P("x"))(x).pow(2).sum()


def plain_staged_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    places = torch.arange(4, dtype=x.dtype)[:, None]

    def inner(v: torch.Tensor) -> torch.Tensor:
        return (v @ w[:2]).sum(0) + places

    a = rows(x)
    c = a
    for _ in range(2):
        c = torch.sin(inner(c)[:, :2] + c)
    return (torch.tanh(inner(a)).sum(1, keepdim=True) * a + c).pow(2).sum()


def inside_scan(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def step(c: torch.Tensor, v: torch.Tensor) -> Any:
        def each(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            whole = sharding.all_gather(a, "x", tiled=True)
            return torch.sin(whole @ w) * b.sum() / 8

        out = shard_map(each, MESH, (P("x"), P()), P(), check_vma=False)(c, v)
        return out, out.sum()

    c, ys = xf.scan(step, x, w[:3])
    return c.pow(2).sum() + ys.prod()


def plain_inside_scan(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    ys = []
    for v in w[:3]:
        x = torch.sin(x @ w) * v.sum() / 8
        ys.append(x.sum())
    return x.pow(2).sum() + torch.stack(ys).prod()


def branch_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def each(t: Any) -> torch.Tensor:
        a, b = t["a"], t["b"][0]
        total = sharding.psum(a.sum(), "x")

        def on_sum(v: torch.Tensor) -> torch.Tensor:
            return torch.sin(v) * sharding.psum(v.sum(), "x")

        chosen = xf.cond(total > 100, lambda v: v * 2, on_sum, a)
        return sharding.psum(chosen @ b, "x")

    specs = ({"a": P("x"), "b": P("x", "y")},)
    return shard_map(each, MESH, specs, P("y"))({"a": x, "b": [w]}).pow(2).sum()


def plain_branch_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((torch.sin(x) * x.sum()) @ w).pow(2).sum()


def partly(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def each(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        got = sharding.all_gather(torch.tanh(a), "x", tiled=True) @ w
        sent = sharding.ppermute(got[:2] * sharding.axis_index("x"), "x", RING)
        cut = sharding.psum_scatter(b * a.sum(), "x", scatter_dimension=1, tiled=True)
        turned = sharding.all_to_all(b * a.sum(), "x", 1, 0, tiled=True)
        return (sent.sum() * a + cut.sum() + turned.pow(2).sum()) / 64

    f = shard_map(each, MESH, (P("x"), P("x")), P("x"), axis_names={"x"})
    return f(x, w).pow(2).sum()


def plain_partly(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    got = torch.tanh(x) @ w
    sent = (got[:2] * torch.arange(4, dtype=x.dtype)[:, None]).roll(1, 0)
    b = rows(w) * rows(x).sum(1)[:, None, None]
    parts = b.reshape(8, 4, 2)
    cut, turned = parts.sum((0, 2)), parts.pow(2).sum((0, 2))
    out = sent.sum(1, keepdim=True) * rows(x) + (cut + turned)[:, None]
    return (out / 64).pow(2).sum()


def nested(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def each(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        def inner(c: torch.Tensor) -> torch.Tensor:
            return (
                sharding.psum(torch.sin(c) * a.sum(), "y")
                + sharding.all_gather(c, ("x", "y")).sum((0, 2), keepdim=True)[0]
            )

        return shard_map(inner, None, P(None, "y"), P(), axis_names={"y"})(b * a.sum())

    with sharding.use_mesh(MESH):
        f = shard_map(each, in_specs=(P("x"), P("x")), out_specs=P("x"), axis_names={"x"})
        return (f(x, w) / 64).pow(2).sum()


def plain_nested(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    a = rows(x).sum(1)[:, None, None, None]
    b = rows(w).unflatten(2, (2, 4)) * a  # of device x, row, device y, column
    own = (torch.sin(b) * a).sum(2)
    return ((own + b.sum((0, 2, 3))[:, None]) / 64).pow(2).sum()


def gradient_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def each(a: torch.Tensor) -> torch.Tensor:
        def loss(v: torch.Tensor) -> torch.Tensor:
            return sharding.psum(torch.sin(v @ w[:2]).sum() * v[0], "x")

        return a * xf.grad(loss)(a)

    return shard_map(each, MESH, P("x"), P("x"))(x).pow(2).sum()


def plain_gradient_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    a = rows(x)
    inside = a @ w[:2]
    grad = (torch.cos(inside) @ w[:2].t()) * a[:, :1]
    first = torch.stack([torch.sin(inside).sum(1), torch.zeros(4, dtype=x.dtype)], 1)
    return (a * (grad + first)).pow(2).sum()


STRUCTURES = {
    "scan inside": (scan_inside, plain_scan_inside),
    "jit and checkpoint inside": (staged_inside, plain_staged_inside),
    "inside scan": (inside_scan, plain_inside_scan),
    "branch inside": (branch_inside, plain_branch_inside),
    "partly manual": (partly, plain_partly),
    "nested": (nested, plain_nested),
    "gradient inside": (gradient_inside, plain_gradient_inside),
}


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, dtype=torch.float64, generator=generator) / 4
    return x, torch.randn(8, 8, dtype=torch.float64, generator=generator) / 4


def close(got: Any, want: Any) -> None:
    leaves = xf.tree.leaves(xf.device_get(got)), xf.tree.leaves(want)
    torch.testing.assert_close(*leaves, rtol=1e-9, atol=1e-9, check_dtype=False)


@pytest.mark.sample(9, seed=0)
@pytest.mark.parametrize("transform", OURS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_shard_map_under_transforms(structure: str, transform: str) -> None:
    ours, plain = STRUCTURES[structure]
    x, w = arguments()
    close(OURS[transform](ours)(x, w), PLAIN[transform](plain)(x, w))


def test_shard_map_gradients_with_and_without_check_vma() -> None:
    x, w = arguments()

    def each(a: torch.Tensor, b: torch.Tensor) -> Any:
        h = sharding.psum(torch.tanh(a @ b), "x")
        return h, sharding.pmean(h.sum() * a.sum(), ("x", "y")), b.sum()

    specs = {"in_specs": (P("x"), P("x", "y"))}
    outs = (P("y"), P(), P(("x", "y")))

    def loss(**options: Any) -> Any:
        def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            f = shard_map(lambda a, b: (*each(a, b)[:2], each(a, b)[2][None]), MESH, **options)
            h, m, s = f(x, w)
            return h.pow(2).sum() * m + s.pow(3).sum()

        return xf.grad(run, argnums=(0, 1))(x, w)

    def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a, b = rows(x), rows(w)
        h = torch.tanh(torch.einsum("di,dij->dj", a, b)).sum(0)
        m = (h.reshape(2, 4).sum(1)[None] * a.sum(1)[:, None]).mean()
        return h.pow(2).sum() * m + b.reshape(4, 2, 2, 4).sum((1, 3)).pow(3).sum()

    want = torch.func.grad(plain, argnums=(0, 1))(x, w)
    close(loss(**specs, out_specs=outs), want)
    close(loss(**specs, out_specs=outs, check_vma=False), want)


def test_shard_map_in_autograd_and_torch_func() -> None:
    f = shard_map(lambda a: sharding.all_gather(a * a, "x").sum(0), MESH, P("x"), P())
    x = torch.arange(8.0, dtype=torch.float64, requires_grad=True)
    f(x).pow(2).sum().backward()
    want = torch.func.grad(lambda x: (x * x).reshape(4, 2).sum(0).pow(2).sum())(x.detach())
    close(x.grad, want)
    y = xf.device_put(x.detach())
    close(torch.func.grad(lambda y: f(y).pow(2).sum())(y), want)


def test_shard_map_with_disable_jit() -> None:
    """Devices cannot be run operation by operation: the region is staged all the same."""
    f = shard_map(lambda a: sharding.psum(a * a, "x"), MESH, P("x"), P())
    x = torch.arange(8.0)
    with xf.disable_jit():
        out, grad = f(x), xf.grad(lambda x: f(x).sum())(x)
    assert out.device.type == grad.device.type == "cpu"
    close((out, grad), ((x * x).reshape(4, 2).sum(0), 2 * x))


def test_shard_map_gradient_collectives() -> None:
    """One for the psum, and one for the gradient of the weight.

    None for the cotangent of the psum, which is the same on all devices.
    """
    mesh = sharding.AbstractMesh((64, 4), ("data", "model"))
    f = shard_map(
        lambda x, w: sharding.psum(torch.tanh(x @ w).square().sum(), ("data", "model")),
        mesh,
        (P("data"), P(None, "model")),
        P(),
    )
    shapes = (
        xf.ShapeDtypeStruct((128, 16), torch.float32),
        xf.ShapeDtypeStruct((16, 32), torch.float32),
    )
    text = xf.jit(xf.value_and_grad(f, argnums=1)).lower(*shapes).as_text()
    found = [line for line in text.splitlines() if " all-reduce(" in line]
    # Newer jaxlib lists the devices of each group.
    of_all = re.compile(r"replica_groups=(\[1,256\]<=\[256\]|\{\{0,1,2,[\d,]*,254,255\}\})")
    of_data = re.compile(r"(\[4,64\]<=\[64,4\]T\(1,0\)|\{\{0,4,8,[^}]*,252\},\{1,5,9,)")
    assert sum(of_all.search(line) is not None for line in found) == 1
    assert sum(of_data.search(line) is not None for line in found) == 1
    assert len(found) == 2
    assert len(text) < 20_000
