"""A value that does not depend on the differentiated arguments has no tangent.

Zeros in its place would be multiplied by an infinite derivative, and give NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
X = torch.tensor([1.0, 0.5, 2.0])


def two(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two results; the first does not depend on `x`."""
    return torch.tensor([1.0, 0.0, 3.0]).sin(), x * 2


def scanned(x: Tensor) -> Tensor:
    return xf.scan(lambda c, r: (c, (r[0].sin(), r[1])), x, (torch.ones(3), x))[1][0]


def mapped(f: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    mesh, spec = xf.sharding.make_mesh((1,), ("i",)), xf.sharding.PartitionSpec("i")
    return xf.shard_map(f, mesh=mesh, in_specs=spec, out_specs=(xf.sharding.PartitionSpec(), spec))


CONSTANTS: dict[str, Callable[[Tensor], Tensor]] = {
    "jit": lambda x: xf.jit(two)(x)[0],
    "checkpoint": lambda x: xf.checkpoint(two)(x)[0],
    "cond": lambda x: xf.cond(x.sum() > 0, two, two, x)[0],
    "scan": scanned,
    "shard_map": lambda x: mapped(two)(x)[0],
    "vmap": lambda x: xf.vmap(two)(x[None])[0][0],
}
USES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "divided by zero": lambda c, x: c / 0,
    "divided by an integer": lambda c, x: c / x.argsort(),
    "the smaller, divided": lambda c, x: torch.minimum(c, x.argsort()) / x.argsort(),
    "divided in place": lambda c, x: c.clone().div_(x.argsort()),
    "the remainder": lambda c, x: torch.fmod(c, x.argsort()) / x.argsort(),
    "in a jit": lambda c, x: xf.jit(lambda v: v.sin() * torch.inf)(c),
    "in a jit in a jit": lambda c, x: xf.jit(lambda v: xf.jit(torch.log)(v * 0) / 0)(c),
    "in a checkpoint": lambda c, x: xf.checkpoint(lambda v: (v * 0).sqrt() * torch.inf)(c),
    "in a vmap": lambda c, x: xf.vmap(lambda v: v.log() / 0)(c),
    "in a branch": lambda c, x: xf.cond(x.sum() > 0, lambda v: v / 0, lambda v: v * torch.inf, c),
    "beside a tangent": lambda c, x: xf.jit(lambda c, x: c / 0 + x)(c, x) * 2,
}


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("constant", CONSTANTS)
def test_jvp_constant_times_infinity_has_zero_tangent(constant: str) -> None:
    f = CONSTANTS[constant]

    def run(x: Tensor) -> dict[str, Tensor]:
        return {name: use(f(x), x) for name, use in USES.items()}

    expected = {name: X * 2 if name == "beside a tangent" else X * 0 for name in USES}
    for tangents in (
        xf.jvp(run, (X,), (X,))[1],
        xf.jit(lambda x: xf.jvp(run, (x,), (x,))[1])(X),
        xf.linearize(run, X)[1](X),
    ):
        torch.testing.assert_close(xf.device_get(tangents), expected)


def test_plain_jvp_of_jitted_function_has_zeros() -> None:
    ones = torch.ones(3)
    pair: Any = torch.func.jvp(lambda x: xf.jit(two)(x)[0], (X,), (ones,))
    assert pair[1].tolist() == [0.0, 0.0, 0.0]
