"""A result without a cotangent adds nothing to a gradient, however steep its derivative is.

Zeros in its place would be multiplied by an infinite derivative, and give NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
AT = torch.zeros(3)


def two(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two results: the second has an infinite derivative at zero."""
    return (x + 1) ** 3, x.sqrt()


def same(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x


def steps(carry: Any, x: Tensor) -> Any:
    """The third carry reads the first, the fourth reads `x` only."""
    a, b, d, _ = carry
    return (a * 2, b.sqrt(), a + d, x * 3), (a + x, b.log(), x.sqrt())


def loop(f: Callable[..., Any], init: Any, xs: Tensor) -> Any:
    ys: list[Any] = []
    for x in xs:
        init, y = f(init, x)
        ys.append(y)
    return init, tuple(map(torch.stack, zip(*ys, strict=True)))


def scanned(scan: Callable[..., Any], x: Tensor) -> list[Tensor]:
    carry, ys = scan(steps, (x, x, x, x), torch.stack([x, x + 1, x + 2]))
    return [*carry, *ys]


def inside(scan: Callable[..., Any], x: Tensor) -> list[Tensor]:
    """A loop in the body of a loop."""

    def body(c: Any, _: object) -> Any:
        carry, ys = scan(steps, (c[0], c[1], c[0], c[0]), torch.stack([c[0], c[0] + 1]))
        return carry[:2], (carry[2], ys[0][0], ys[1][0])

    carry, ys = scan(body, (x, x), torch.zeros(2))
    return [*carry, *ys]


MESH = xf.sharding.make_mesh((1,), ("i",))
SPEC = xf.sharding.PartitionSpec("i")


def mapped(f: Callable[..., Any]) -> Callable[..., Any]:
    return xf.shard_map(f, mesh=MESH, in_specs=SPEC, out_specs=SPEC)


SCANS = [
    *((f"scan {k}", lambda x, s, k=k: scanned(s, x)[k]) for k in (0, 2, 3, 4, 6)),
    *(
        (f"jit of scan {k}", lambda x, s, k=k: xf.jit(lambda v: scanned(s, v))(x)[k])
        for k in (0, 2)
    ),
    *((f"scan in scan {k}", lambda x, s, k=k: inside(s, x)[k]) for k in (0, 2, 3, 4)),
    ("jit of scan in scan", lambda x, s: xf.jit(lambda v: inside(s, v))(x)[2]),
]
CALLS = [
    ("jit", lambda x: xf.jit(two)(x)[0]),
    ("jit of jit", lambda x: xf.jit(lambda v: xf.jit(two)(v))(x)[0]),
    ("checkpoint", lambda x: xf.checkpoint(two)(x)[0]),
    ("cond", lambda x: xf.cond(x.sum() == 0, two, same, x)[0]),
    ("jit of cond", lambda x: xf.jit(lambda v: xf.cond(v.sum() == 0, two, same, v))(x)[0]),
    ("shard_map", lambda x: mapped(two)(x)[0]),
    ("fori_loop", lambda x: xf.fori_loop(0, 1, lambda _, c: two(c[0]), (x, x))[0]),
]


def gradient(f: Callable[[Tensor], Tensor], order: int) -> Callable[[Tensor], Tensor]:
    for _ in range(order):
        f = xf.grad(lambda x, f=f: f(x).sum())
    return f


def expected(f: Callable[[Tensor], Tensor], order: int) -> Tensor:
    x = AT.clone().requires_grad_()
    y = f(x)
    for _ in range(order):
        if not y.requires_grad:
            return torch.zeros_like(x)
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True, materialize_grads=True)
    return y.detach()


def agrees(f: Callable[[Tensor], Tensor], want: Tensor, order: int) -> None:
    g = gradient(f, order)
    for got in (g(AT), xf.jit(g)(AT), xf.vmap(g)(AT.expand(2, 3))[1]):
        torch.testing.assert_close(xf.device_get(got), want, equal_nan=True)


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("name", "f"), CALLS, ids=[n for n, _ in CALLS])
def test_grad_unused_result_with_infinite_slope(
    name: str, f: Callable[..., Tensor], order: int
) -> None:
    agrees(f, expected(lambda x: two(x)[0], order), order)


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("name", "f"), SCANS, ids=[n for n, _ in SCANS])
def test_grad_scan_unused_carry_or_row(name: str, f: Callable[..., Tensor], order: int) -> None:
    with xf.disable_jit():
        want = expected(lambda x: f(x, loop), order)
    agrees(lambda x: f(x, xf.scan), want, order)


def test_grad_vmap_cond_untaken_branch() -> None:
    def f(x: Tensor) -> Tensor:
        return xf.cond(x > 0, torch.sqrt, lambda v: v * 2, x)

    got = xf.vmap(xf.grad(f))(torch.tensor([4.0, 0.0, -1.0]))
    assert got.tolist() == [0.25, 2.0, 2.0]


def test_grad_scan_omits_computation_without_cotangent() -> None:
    """The backward pass holds no logarithm, no division, of what has no cotangent."""

    def loss(x: Tensor) -> Tensor:
        return xf.scan(lambda c, _: ((c[0] * 2, c[1].tan()), c[1] / c[0]), (x, x), None, 3)[0][0]

    text = xf.jit(xf.grad(loss)).lower(torch.tensor(0.5)).as_text()
    assert "divide(" not in text[text.index("backward") :]
