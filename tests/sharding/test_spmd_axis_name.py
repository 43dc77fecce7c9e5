"""`spmd_axis_name` of `vmap`: mesh axes that divide the examples."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.divided import MESH, is_divided, on
from xfunc.errors import ShardingError
from xfunc.sharding import P, psum, shard_map, with_sharding_constraint

X = torch.arange(128, dtype=torch.float64).reshape(8, 4, 4) / 50
W = torch.arange(16, dtype=torch.float64).reshape(4, 4) / 10
ROWS: Any = on("fsdp", None)
NUMBER: Any = 3


def f(x: torch.Tensor) -> torch.Tensor:
    return with_sharding_constraint(torch.sin(x), ROWS) * 2


def plain(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2


def over(f: Any, axes: Any = "tensor", **options: Any) -> Any:
    return xf.vmap(f, spmd_axis_name=axes, **options)


@xf.custom_vjp
def doubled(x: torch.Tensor) -> torch.Tensor:
    return f(x)


doubled.defvjp(lambda x: (f(x), x), lambda x, g: (with_sharding_constraint(x.cos(), ROWS) * 2 * g,))


@xf.custom_vmap
def replaced(x: torch.Tensor) -> torch.Tensor:
    return plain(x)


replaced.def_vmap(
    lambda n, batched, x: (with_sharding_constraint(plain(x), on("tensor", "fsdp")), True)
)


# What is divided as the constraint and the vmap say, for any function of a batch along axis 0.
TABLE: dict[str, Any] = {
    "vmap": lambda: over(f)(X),
    "jit of vmap": lambda: xf.jit(over(f))(X),
    "vmap of jit": lambda: over(xf.jit(f))(X),
    "vmap of jit with shardings": lambda: over(xf.jit(plain, out_shardings=ROWS))(X),
    "with a name": lambda: over(f, axis_name="i")(X),
    "checkpoint": lambda: over(xf.checkpoint(f))(X),
    "vmap of scan": lambda: over(lambda x: xf.scan(lambda c, _: (f(c), None), x, length=1)[0])(X),
    "scan of vmap": lambda: xf.scan(lambda c, _: (over(f)(c), None), X, length=1)[0],
    "cond": lambda: over(lambda x: xf.cond(x.sum() > -1e9, f, lambda x: x, x))(X),
    "custom_vjp": lambda: over(doubled)(X),
    "in a custom_vmap rule": lambda: over(replaced)(X),
    "jvp": lambda: xf.jvp(over(f), (X,), (X,))[0],
}


@pytest.mark.parametrize("name", TABLE)
def test_spmd_axis_name_shards_mapped_axis(name: str) -> None:
    found = TABLE[name]()
    torch.testing.assert_close(found.cpu(), plain(X))
    assert is_divided(found, "tensor", "fsdp")


GRADIENTS: dict[str, Any] = {
    "grad of vmap": lambda: xf.grad(lambda x: over(f)(x).sum())(X),
    "vmap of grad": lambda: over(xf.grad(lambda x: f(x).sum()))(X),
    "jit of vmap of grad": lambda: xf.jit(over(xf.jit(xf.grad(lambda x: f(x).sum()))))(X),
    "vmap of vjp": lambda: over(lambda x: xf.vjp(f, x)[1](torch.ones_like(x))[0])(X),
    "vmap of jvp": lambda: over(lambda x: xf.jvp(f, (x,), (torch.ones_like(x),))[1])(X),
    "custom_vjp": lambda: over(xf.grad(lambda x: doubled(x).sum()))(X),
    "scan": lambda: over(
        xf.grad(lambda x: xf.scan(lambda c, _: (f(c), None), x, length=1)[0].sum())
    )(X),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_spmd_axis_name_shards_derivatives(name: str) -> None:
    found = GRADIENTS[name]()
    torch.testing.assert_close(found.cpu(), torch.cos(X) * 2)
    assert is_divided(found, "tensor", "fsdp")


def test_spmd_axis_name_with_in_axes_and_out_axes() -> None:
    batch = X.movedim(0, 1)
    found = over(f, in_axes=1, out_axes=2)(batch)
    torch.testing.assert_close(found.cpu(), plain(X).movedim(0, 2))
    assert is_divided(found, "fsdp", None, "tensor")
    whole = over(lambda x: with_sharding_constraint(plain(x), on()), ("tensor", "fsdp"))(X)
    assert is_divided(whole, ("tensor", "fsdp"))


def test_spmd_axis_name_in_nested_vmap() -> None:
    def g(x: torch.Tensor) -> torch.Tensor:
        return with_sharding_constraint(x * 2, on())

    found = over(over(g, "tensor"), "fsdp")(X)
    assert is_divided(found, "fsdp", "tensor")
    both = over(lambda x: xf.vmap(f)(x[None])[0])(X)
    torch.testing.assert_close(both.cpu(), plain(X))
    assert is_divided(both, "tensor", "fsdp")


def test_spmd_axis_name_differs_for_one_jitted_function() -> None:
    """What is derived from a jitted function is kept apart."""
    inner = xf.jit(lambda x: with_sharding_constraint(x + 1, on()))
    assert is_divided(over(inner, "tensor")(X), "tensor")
    assert is_divided(over(inner, "fsdp")(X), "fsdp")


def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    def device(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return psum((x @ w).sin().sum(), "fsdp")

    return shard_map(device, MESH, (P(), P("fsdp")), P())(w, x)


def plain_loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (x @ w).sin().sum()


def inside(w: torch.Tensor, x: torch.Tensor) -> Any:
    """A gradient taken by each device, of what it has of one example."""

    def device(w: torch.Tensor, x: torch.Tensor) -> Any:
        value, g = xf.value_and_grad(lambda w: psum((x @ w).sin().sum(), "fsdp"))(w)
        return value, g, xf.grad(lambda x: (x @ w).sin().sum())(x)

    return shard_map(device, MESH, (P(), P("fsdp")), (P(), P(), P("fsdp")))(w, x)


def plain_inside(w: torch.Tensor, x: torch.Tensor) -> Any:
    value, g = xf.value_and_grad(lambda w: (x @ w).sin().sum())(w)
    return value, g, xf.grad(lambda x: (x @ w).sin().sum())(x)


@pytest.mark.parametrize("checked", [False, True])
def test_spmd_axis_name_of_gradients_inside_shard_map(checked: bool) -> None:
    want = xf.vmap(lambda x: plain_inside(W, x))(X)
    got = over(lambda x: inside(W, x))(X) if checked else xf.vmap(lambda x: inside(W, x))(X)
    for g, w in zip(xf.tree.leaves(got), xf.tree.leaves(want), strict=True):
        torch.testing.assert_close(g.cpu(), w.cpu())


SHARDED: dict[str, Any] = {
    "value": lambda of, loss: of(lambda x: loss(W, x))(X),
    "grad of vmap": lambda of, loss: xf.grad(lambda w: of(lambda x: loss(w, x))(X).sum())(W),
    "vmap of grad": lambda of, loss: of(xf.grad(lambda x: loss(W, x)))(X),
    "shared": lambda of, loss: of(lambda x: xf.grad(lambda w: loss(w, x))(W))(X),
    "jvp": lambda of, loss: xf.jvp(lambda w: of(lambda x: loss(w, x))(X), (W,), (W,)),
    "vmap of jvp": lambda of, loss: of(lambda x: xf.jvp(lambda x: loss(W, x), (x,), (x,)))(X),
    "hessian": lambda of, loss: of(xf.hessian(lambda x: loss(W, x)))(X),
}


@pytest.mark.parametrize("name", SHARDED)
def test_spmd_axis_name_of_shard_map_under_transforms(name: str) -> None:
    want = SHARDED[name](xf.vmap, plain_loss)
    got = SHARDED[name](over, loss)
    for g, w in zip(xf.tree.leaves(got), xf.tree.leaves(want), strict=True):
        torch.testing.assert_close(g.cpu(), w.cpu())


@pytest.mark.parametrize(("of", "rows"), [(xf.vmap, 8), (over, 4)])
def test_spmd_axis_name_divides_examples_of_shard_map(of: Any, rows: int) -> None:
    text = xf.jit(of(lambda x: loss(W, x))).lower(X).compile().as_text()
    assert re.findall(r"= f64\[(\d+),4\]\S* dot\(", text or "") == [str(rows)]


def test_spmd_axis_name_of_custom_vmap_in_shard_map() -> None:
    twice = xf.custom_vmap(lambda x: x * 2)
    twice.def_vmap(lambda n, batched, x: (x * 2 + n, True))
    f = shard_map(twice, MESH, P("fsdp"), P("fsdp"))
    torch.testing.assert_close(xf.vmap(f)(X).cpu(), X * 2 + 8)
    torch.testing.assert_close(over(f)(X).cpu(), X * 2 + 4)  # of a device's part of the examples
    inside = shard_map(xf.vmap(twice), MESH, P("tensor"), P("tensor"))
    torch.testing.assert_close(inside(X).cpu(), X * 2 + 4)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: over(f, NUMBER), TypeError, "vmap of f was given spmd_axis_name=3"),
        (lambda: over(f, "fsdp")(X), ShardingError, "axis 'fsdp' divides single examples there"),
        (lambda: over(f, "rows")(X), ShardingError, "spmd_axis_name='rows', and .*no such axis"),
        (
            lambda: over(f)(X[:7]),
            ShardingError,
            "with_sharding_constraint with .* there are 7 examples, no multiple of ",
        ),
        (
            lambda: over(lambda x: loss(W, x), "fsdp")(X),
            ShardingError,
            "shard_map.*axis 'fsdp' divides single examples",
        ),
        (
            lambda: over(lambda x: loss(W, x), "rows")(X),
            ShardingError,
            "spmd_axis_name='rows', and .*no such axis",
        ),
        (
            lambda: over(shard_map(lambda x: psum(x, "tensor"), MESH, P("fsdp"), P("fsdp"),
                                   check_vma=False))(X),
            ShardingError,
            "psum is along 'tensor', which shards the examples of a vmap",
        ),
    ],
)  # fmt: skip
def test_spmd_axis_name_errors(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()
