"""Operations of each example, of a batch sharded over two axes, need no data of other devices."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from xfunc import NamedSharding, P

COLLECTIVES = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"

_generator = torch.Generator().manual_seed(0)
Q = torch.randn(4, 8, 16, 4, dtype=torch.float64, generator=_generator)
K = torch.randn(4, 4, 16, 4, dtype=torch.float64, generator=_generator)
BIAS = torch.randn(4, 8, 16, 16, dtype=torch.float64, generator=_generator)


def grouped(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q.unflatten(1, (4, 2))


# Functions of queries [rows, heads, seq, features] and half as many keys.
PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "matmul": lambda q, k: k @ k.mT,
    "matmul of a broadcast": lambda q, k: grouped(q, k) @ k[:, :, None].mT,
    "matmul of a matrix": lambda q, k: q @ torch.ones(4, 3, dtype=q.dtype),
    "einsum": lambda q, k: torch.einsum("bhqd,bhsd->bhqs", q[:, ::2], k),
    "einsum of other orders": lambda q, k: torch.einsum(
        "bqhd,hbsd->hbqs", k.transpose(1, 2), k.transpose(0, 1)
    ),
    "einsum of groups": lambda q, k: torch.einsum("bhgqd,bhsd->bhgqs", grouped(q, k), k),
    "einsum summed over two": lambda q, k: torch.einsum("bhsd,bhsd->bh", k, k.sin()),
    "attention": lambda q, k: F.scaled_dot_product_attention(q, q, q, is_causal=True),
    "attention of groups": lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
    "attention with a bias": lambda q, k: F.scaled_dot_product_attention(q, q, q, BIAS),
    "baddbmm in vmap": lambda q, k: xf.vmap(lambda x: torch.baddbmm(x @ x.mT, x, x.mT))(q),
    "cross entropy": lambda q, k: F.cross_entropy(
        q.permute(0, 3, 1, 2), q.argmax(-1), reduction="none"
    ),
    "maximum": lambda q, k: q.max(-1)[0],
    "median": lambda q, k: q.median(-1)[0],
    "topk": lambda q, k: q.topk(2)[0],
    "gather": lambda q, k: q.gather(-1, q.argsort(-1)[..., :2]),
    "take_along_dim": lambda q, k: q.take_along_dim(q.argmin(2, keepdim=True), 2),
    "max_pool2d": lambda q, k: F.max_pool2d(q, 3, 2, 1),
    "vmap of vmap": lambda q, k: xf.vmap(xf.vmap(lambda x: x @ x.mT))(k),
}


def derivative(fun: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    return lambda q, k: torch.func.grad(lambda q, k: fun(q, k).sin().sum(), (0, 1))(q, k)


@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize("of", [lambda f: f, derivative], ids=["value", "gradient"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_device_needs_the_rows_or_heads_of_others(name: str, of: Callable[..., Any]) -> None:
    fun = of(PROGRAMS[name])
    mesh = xf.make_mesh((2, 4), ("data", "tensor"))
    args = [xf.device_put(x, NamedSharding(mesh, P("data", "tensor"))) for x in (Q, K)]
    compiled = xf.jit(fun).lower(*args).compile()
    torch.testing.assert_close(xf.device_get(compiled(*args)), fun(Q, K))
    text = compiled.as_text() or ""
    assert not re.findall(rf"= \S+ (?:{COLLECTIVES})(?:-start)?\(", text)
