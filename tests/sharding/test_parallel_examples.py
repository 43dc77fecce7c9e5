"""The examples of parallel layers equal the layers on one device, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xfunc as xf
from examples.gallery import mixture_of_experts as moe
from examples.gallery import ring_attention as ring
from tests.support import gallery
from xfunc import P


def close(got: Any, want: Any) -> None:
    leaves = xf.tree.leaves(xf.device_get(got)), xf.tree.leaves(want)
    torch.testing.assert_close(*leaves, rtol=1e-9, atol=1e-9)


def test_ring_attention_equals_plain_attention() -> None:
    mesh = xf.make_mesh((8,), "ring")
    f = xf.shard_map(ring.ring_attention, mesh, in_specs=P("ring"), out_specs=P("ring"))
    q, k, v = torch.randn(3, 32, 2, 4, dtype=torch.float64)
    close(f(q, k, v), ring.attention(q, k, v))

    def loss(f: Any) -> Any:
        return lambda q, k, v: f(q, k, v).square().sum()

    every = (0, 1, 2)
    want = torch.func.grad(loss(ring.attention), every)(q, k, v)
    close(xf.grad(loss(f), every)(q, k, v), want)
    close(xf.jit(xf.grad(loss(xf.checkpoint(f)), every))(q, k, v), want)
    dots = (q.sin(), k.cos(), v.sin())
    want = torch.func.jvp(torch.func.grad(loss(ring.attention), every), (q, k, v), dots)
    close(xf.jvp(xf.grad(loss(f), every), (q, k, v), dots), want)


def test_ring_attention_with_data_parallelism() -> None:
    mesh = xf.make_mesh((2, 4), ("data", "ring"))
    spec = P("data", "ring")
    f = xf.shard_map(xf.vmap(ring.ring_attention), mesh, in_specs=spec, out_specs=spec)
    q, k, v = torch.randn(3, 4, 16, 2, 4, dtype=torch.float64)
    close(f(q, k, v), torch.func.vmap(ring.attention)(q, k, v))


@pytest.fixture(scope="module")
def layer() -> tuple[moe.Params, torch.Tensor]:
    params = moe.init(xf.random.key(0), 8, 16, 16)
    x = xf.random.normal(xf.random.key(1), (64, 8))
    return xf.tree.map(lambda t: t.cpu().double(), (params, x))


def divided(capacity: int) -> Any:
    mesh = xf.make_mesh((8,), "expert")
    specs = (moe.SPECS, P("expert"))
    return xf.shard_map(
        lambda p, x: moe.experts(p, x, capacity), mesh, in_specs=specs, out_specs=P("expert")
    )


def test_mixture_of_experts_equals_dense(layer: Any) -> None:
    params, x = layer

    def loss(f: Any) -> Any:
        return lambda p, x: f(p, x).square().sum()

    f = divided(8)  # as many as there are tokens on a device
    close(f(params, x), moe.dense(params, x))
    got = xf.grad(loss(f), argnums=(0, 1))(params, x)
    leaves, structure = xf.tree.flatten((params, x))

    def plain(*leaves: torch.Tensor) -> torch.Tensor:
        return loss(moe.dense)(*xf.tree.unflatten(structure, leaves))

    close(got, torch.func.grad(plain, argnums=tuple(range(len(leaves))))(*leaves))


def test_mixture_of_experts_over_capacity(layer: Any) -> None:
    params, x = layer
    got, whole = divided(1)(params, x).cpu(), moe.dense(params, x)
    chosen = (x @ params.router).argmax(-1).reshape(8, 8)  # of each device's tokens
    first = torch.tensor([[c not in row[:i] for i, c in enumerate(row)] for row in chosen.tolist()])
    close(got, torch.where(first.reshape(-1, 1), whole, 0.0))
    assert 0 < first.sum() < 64


@pytest.mark.parametrize("example", [ring, moe], ids=["ring", "experts"])
def test_parallel_examples_main(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    plain, parallel, *_ = example.main()
    gallery.check_output(example, capsys.readouterr().out)
    torch.testing.assert_close(parallel, plain, rtol=1e-4, atol=1e-6)
