"""`shard_as`: ties by hand, and the numbers of their groups."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.divided import MESH, is_divided, on
from tests.support.table import TABLE, base
from xfunc.errors import ShardingError
from xfunc.sharding import (
    P,
    shard_alike,
    shard_as,
    shard_map,
    sharding_of,
    with_sharding_constraint,
)

X = torch.arange(64, dtype=torch.float64).reshape(8, 8) / 10


def divided(x: torch.Tensor, *spec: Any) -> torch.Tensor:
    return with_sharding_constraint(x, on(*spec))


def groups(text: str) -> list[list[str]]:
    """For each number of a group, the shapes of its members."""
    found: dict[str, list[str]] = {}
    for shape, number in re.findall(r"= (\S+?)\{.*\{unknown shard_as (\d+)\}", text):
        found.setdefault(number, []).append(shape)
    return list(found.values())


def test_shard_as_shards_both_operands_alike() -> None:
    y = torch.cos(X)
    for use in (0, 1):
        f = xf.jit(lambda x, y: shard_as(divided(x, "tensor", "fsdp"), y * 2)[1])
        g = xf.jit(lambda x, y: shard_as(y * 2, divided(x, "tensor", "fsdp"))[0])
        found = (f, g)[use](X, y)
        assert is_divided(found, "tensor", "fsdp")
        torch.testing.assert_close(found.cpu(), y * 2)


def test_shard_as_with_unused_results() -> None:
    """What was tied is divided, though only the operand is used afterwards."""

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = y * 2
        used, _ = shard_as(divided(x, "tensor", "fsdp"), z)
        return used, z

    assert is_divided(xf.jit(f)(X, X.cos())[1], "tensor", "fsdp")


@pytest.mark.quick
def test_shard_as_is_needed_for_sharding() -> None:
    found = xf.jit(lambda x, y: (divided(x, "tensor", "fsdp"), y * 2)[1])(X, X)
    assert not is_divided(found, "tensor", "fsdp")


@pytest.mark.quick
def test_shard_as_ties_cotangents() -> None:
    def loss(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        first, second = shard_as(x, y)
        return (first * X).sum() + (divided(second, "fsdp", "tensor") ** 2).sum()

    of_y, of_x = xf.jit(xf.grad(loss, argnums=(0, 1)))(X, X.cos())
    assert is_divided(of_y, "fsdp", "tensor")
    assert is_divided(of_x, "fsdp", "tensor")
    torch.testing.assert_close(of_x.cpu(), X)
    torch.testing.assert_close(of_y.cpu(), 2 * X)


def test_shard_as_gradient_of_one_operand() -> None:
    def loss(y: torch.Tensor) -> torch.Tensor:
        first, second = shard_as(y, divided(X * 1, "fsdp"))
        return (first * second).sum()

    torch.testing.assert_close(xf.grad(loss)(X).cpu(), X)


def test_shard_as_ties_tangents() -> None:
    out, dots = xf.jvp(lambda x, y: shard_as(divided(x, "tensor"), y), (X, X), (X.cos(), X.sin()))
    assert is_divided(dots[1], "tensor")
    torch.testing.assert_close(dots[1].cpu(), X.sin())
    torch.testing.assert_close(out[0].cpu(), X)


@pytest.mark.parametrize("dims", [(0, 0), (1, 0), (0, None), (None, 2)])
def test_shard_as_under_vmap(dims: tuple[int | None, int | None]) -> None:
    a, b = (X if d is None else torch.stack([X, -X], d) for d in dims)
    found = xf.vmap(lambda x, y: shard_as(divided(x, "fsdp"), y * 2), dims)(a, b)
    want = [X if d is None else torch.stack([X, -X]) for d in dims]
    torch.testing.assert_close(found[1].cpu(), want[1].expand(2, 8, 8) * 2)
    torch.testing.assert_close(found[0].cpu(), want[0].expand(2, 8, 8))
    spec = sharding_of(found[1])
    assert spec is not None
    assert [*spec.spec, None, None][1] == "fsdp"


def tied(x: torch.Tensor) -> torch.Tensor:
    four = torch.cat([base(x), x[:1]])
    first, second = shard_as(divided(four, "fsdp"), four.cos())
    return (first * second)[:3]


def untied(x: torch.Tensor) -> torch.Tensor:
    four = torch.cat([base(x), x[:1]])
    return (four * four.cos())[:3]


@pytest.mark.parametrize("name", TABLE)
def test_shard_as_in_every_transform(name: str) -> None:
    x = torch.tensor([0.3, -0.8, 0.7], dtype=torch.float64)
    got = xf.jit(TABLE[name].ours(tied))(x)
    want = TABLE[name].plain(untied)(x)
    torch.testing.assert_close(got.cpu(), want, rtol=1e-9, atol=1e-9)


def test_shard_as_unrelated_pairs_of_one_shape() -> None:
    """Each pair is a group of its own, where one function is called twice as well."""

    @xf.jit
    def pair(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return shard_as(x, y * 2)[1]

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        first = pair(divided(x, "fsdp", "tensor"), y)
        second = pair(divided(x.cos(), "tensor", "fsdp"), y.sin())
        third = shard_as(divided(x.sin(), None, "fsdp"), y.exp())[1]
        return first, second, third

    first, second, third = xf.jit(f)(X, X)
    assert is_divided(first, "fsdp", "tensor")
    assert is_divided(second, "tensor", "fsdp")
    assert is_divided(third, None, "fsdp")
    torch.testing.assert_close(second.cpu(), X.sin() * 2)


def test_shard_as_groups_in_nested_jit() -> None:
    """Shapes differ between pairs: XLA would end the process if two had one number."""

    @xf.jit
    def one(x: torch.Tensor) -> torch.Tensor:
        return torch.add(*shard_as(x, x * 2)) + 1

    @xf.jit
    def two(x: torch.Tensor) -> torch.Tensor:
        return one(one(x)) * one(x.cos())

    def four(x: torch.Tensor) -> torch.Tensor:
        small = two(x[:4].contiguous())
        return two(divided(x, "fsdp")) + torch.cat([small, small])

    text = xf.jit(four).lower(X).as_text()
    assert sorted(groups(text)) == [["f64[4,8]"] * 2] * 3 + [["f64[8,8]"] * 2] * 3

    def plain(x: torch.Tensor) -> torch.Tensor:
        f = lambda y: (lambda z: 3 * z + 1)(3 * y + 1) * (3 * y.cos() + 1)  # noqa: E731
        small = f(x[:4])
        return f(x) + torch.cat([small, small])

    torch.testing.assert_close(xf.jit(four)(X).cpu(), plain(X))


def test_shard_as_same_value_and_different_dtypes() -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> Any:
        shard_as(x, x)
        first, _ = shard_as(n, divided(x, "tensor"))
        return first, shard_as(first > 2, x)[0]

    number, flag = xf.jit(f)(X, X.long())
    assert is_divided(number, "tensor")
    torch.testing.assert_close(number.cpu(), X.long())
    assert torch.equal(flag.cpu(), X.long() > 2)


def test_shard_as_scalars_and_shard_alike() -> None:
    a, b = xf.jit(lambda x: shard_alike(x[0, 1] * 2, 2.0))(X)
    assert (a.item(), b.item()) == (0.2, 2.0)
    assert shard_alike is shard_as


def test_shard_as_outside_a_trace() -> None:
    a, b = shard_as(xf.device_put(X, on("fsdp", "tensor")), X.cos())
    assert is_divided(b, "fsdp", "tensor")
    torch.testing.assert_close(a.cpu(), X)
    torch.testing.assert_close(b.cpu(), X.cos())


def test_shard_as_without_shardings_adds_no_instruction() -> None:
    f = xf.jit(xf.grad(lambda x: (shard_as(x, x.cos())[1] * X).sum()))
    assert "Sharding" not in f.lower(X).as_text()
    torch.testing.assert_close(f(X).cpu(), -X.sin() * X)


def test_shard_as_with_disable_jit() -> None:
    with xf.disable_jit():
        a, b = shard_as(X, X + 1)
    assert torch.equal(a, X)
    assert torch.equal(b, X + 1)


def test_shard_as_errors() -> None:
    message = r"(?s)shard_as was given float64\[8,8\] and float64\[8\].*test_shard_as.*Hint"
    with pytest.raises(ShardingError, match=message):
        shard_as(X, X[0])
    with pytest.raises(ShardingError, match=message):
        xf.jit(shard_as)(X, X[0])
    with pytest.raises(TypeError, match=r"(?s)'b' \(a str\) at argument b.*Hint"):
        shard_as(X, "b")  # pyright: ignore[reportArgumentType]


def test_shard_as_in_manual_region() -> None:
    def local(x: torch.Tensor) -> torch.Tensor:
        return torch.mul(*shard_as(x, x.cos()))

    f = shard_map(local, MESH, P("fsdp", "tensor"), P("fsdp", "tensor"))
    torch.testing.assert_close(f(X).cpu(), X * X.cos())
