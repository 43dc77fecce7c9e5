"""`with_sharding_constraint`: what it divides, in every transform, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.divided import MESH, is_divided, on
from tests.support.table import TABLE, base
from xfunc.errors import ShardingError, TreeMismatchError
from xfunc.sharding import (
    AbstractMesh,
    NamedSharding,
    P,
    make_mesh,
    shard_map,
    sharding_of,
    use_mesh,
    with_sharding_constraint,
)

X = torch.arange(64, dtype=torch.float64).reshape(8, 8) / 10


@pytest.mark.quick
def test_sharding_constraint_in_program_that_takes_nothing() -> None:
    made = xf.jit(lambda: with_sharding_constraint(torch.ones(8, 8), on("fsdp", "tensor")))()
    assert is_divided(made, "fsdp", "tensor")
    assert made.tolist() == torch.ones(8, 8).tolist()
    like = xf.jit(lambda x: with_sharding_constraint(torch.zeros_like(x), on("fsdp")))(X)
    assert is_divided(like, "fsdp")


@pytest.mark.parametrize(
    "spec", [("fsdp", "tensor"), ("tensor", "fsdp"), (None, ("fsdp", "tensor")), ("tensor",), ()]
)
def test_sharding_constraint_shards_value_and_gradient(spec: tuple[Any, ...]) -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return (with_sharding_constraint(x, on(*spec)) ** 2).sum()

    made = xf.jit(lambda x: with_sharding_constraint(x, on(*spec)) * 2)(X)
    gradient = xf.grad(loss)(X)
    assert is_divided(made, *spec)
    assert is_divided(gradient, *spec)
    torch.testing.assert_close(made.cpu(), X * 2)
    torch.testing.assert_close(gradient.cpu(), X * 2)


def test_sharding_constraint_shards_cotangent() -> None:
    """The value is used as a constant; what is divided is the cotangent."""

    def loss(x: torch.Tensor) -> torch.Tensor:
        return (with_sharding_constraint(x, on("tensor")) * X).sum()

    assert is_divided(xf.grad(loss)(X), "tensor")


def test_sharding_constraint_shards_tangent() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return with_sharding_constraint(x.sin(), on("tensor", "fsdp"))

    out, tangent = xf.jvp(f, (X,), (X,))
    assert is_divided(out, "tensor", "fsdp")
    assert is_divided(tangent, "tensor", "fsdp")
    torch.testing.assert_close(tangent.cpu(), X.cos() * X)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_sharding_constraint_under_vmap_leaves_axis_free(dim: int) -> None:
    batch = torch.stack([X, -X], dim)
    f = xf.vmap(lambda x: with_sharding_constraint(x, on("fsdp", None)) + 1, dim, dim)
    found = f(batch)
    torch.testing.assert_close(found.cpu(), batch + 1)
    sharding = sharding_of(found)
    assert sharding is not None
    entries = [*sharding.spec, None, None, None][:3]
    del entries[dim]
    assert entries[0] == "fsdp"


def test_sharding_constraint_unconstrained_dimension() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = with_sharding_constraint(x, on(None, "tensor")) + 1
        return with_sharding_constraint(y, on("fsdp", P.UNCONSTRAINED))

    def g(x: torch.Tensor) -> torch.Tensor:
        y = with_sharding_constraint(x, on(None, "tensor")) + 1
        return with_sharding_constraint(y, on("fsdp", None))

    assert is_divided(xf.jit(f)(X), "fsdp", "tensor")
    assert is_divided(xf.jit(g)(X), "fsdp")
    torch.testing.assert_close(xf.jit(f)(X).cpu(), X + 1)


def test_sharding_constraint_unconstrained_dimension_outside_of_programs() -> None:
    """As in JAX, it stays as it was."""
    x = xf.device_put(X, on("fsdp"))
    found = with_sharding_constraint(x, on(P.UNCONSTRAINED, "tensor"))
    assert is_divided(found, "fsdp", "tensor")
    torch.testing.assert_close(found.cpu(), X)
    leaf = X.clone().requires_grad_()
    (with_sharding_constraint(leaf, on("fsdp", P.UNCONSTRAINED)).cpu() ** 2).sum().backward()
    torch.testing.assert_close(leaf.grad, 2 * X)


@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize("k", [1, 2], ids=["as they are", "computed from"])
def test_sharding_constraint_differs_between_branches(k: int) -> None:
    """JAX's `cond` fails in XLA: see `xfunc.hlo.passes.branches`."""

    def f(x: torch.Tensor) -> torch.Tensor:
        def some(x: torch.Tensor) -> torch.Tensor:
            x = with_sharding_constraint(x, on("fsdp", "tensor"))
            return x if k == 1 else x * k

        def others(x: torch.Tensor) -> torch.Tensor:
            return with_sharding_constraint(x, on("tensor", "fsdp"))

        return xf.cond(x.sum() > 0, some, others, x)

    torch.testing.assert_close(xf.jit(f)(X).cpu(), X * k)
    torch.testing.assert_close(xf.grad(lambda x: (f(x) ** 2).sum())(X).cpu(), 2 * X * k**2)
    torch.testing.assert_close(xf.jit(xf.vmap(f))(X[None]).cpu(), X[None] * k)


def constrained(x: torch.Tensor) -> torch.Tensor:
    four = torch.cat([base(x), x[:1]])
    square = with_sharding_constraint(four[:, None] * four, on("fsdp", "tensor"))
    return with_sharding_constraint(square.sum(0), on("fsdp"))[:3]


def unconstrained(x: torch.Tensor) -> torch.Tensor:
    four = torch.cat([base(x), x[:1]])
    return (four[:, None] * four).sum(0)[:3]


@pytest.mark.parametrize("name", TABLE)
def test_sharding_constraint_in_every_transform(name: str) -> None:
    x = torch.tensor([0.3, -0.8, 0.7], dtype=torch.float64)
    got = xf.jit(TABLE[name].ours(constrained))(x)
    want = TABLE[name].plain(unconstrained)(x)
    torch.testing.assert_close(got.cpu(), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "twice", [lambda f: xf.grad(lambda x: xf.grad(f)(x).sum()), lambda f: xf.hessian(f)]
)
def test_sharding_constraint_second_order(twice: Any) -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return (with_sharding_constraint(x, on("fsdp")) ** 3).sum()

    x = X[0]
    got = twice(loss)(x)
    want = 6 * x if got.ndim == 1 else torch.diag(6 * x)
    torch.testing.assert_close(got.cpu(), want)
    if got.ndim == 1:
        assert is_divided(got, "fsdp")


def test_sharding_constraint_trees_and_prefixes() -> None:
    tree = {"a": X, "b": [X.long(), X > 2], "c": 1.5}
    with use_mesh(MESH):
        found = xf.jit(
            lambda t: with_sharding_constraint(
                t, {"a": P("fsdp"), "b": on("tensor", "fsdp"), "c": P()}
            )
        )(tree)
        same = xf.jit(lambda t: with_sharding_constraint(t, P("fsdp")))([X, {"k": X}])
    assert is_divided(found["a"], "fsdp")
    assert is_divided(found["b"][0], "tensor", "fsdp")
    assert is_divided(found["b"][1], "tensor", "fsdp")
    assert is_divided(same[0], "fsdp")
    assert is_divided(same[1]["k"], "fsdp")
    torch.testing.assert_close(found["b"][0].cpu(), X.long())
    assert torch.equal(found["b"][1].cpu(), X > 2)
    assert found["c"].item() == 1.5


def test_sharding_constraint_outside_a_trace_reshards() -> None:
    found = with_sharding_constraint(X, on("fsdp", "tensor"))
    assert is_divided(found, "fsdp", "tensor")
    again = with_sharding_constraint(found, on("tensor"))
    assert is_divided(again, "tensor")
    torch.testing.assert_close(again.cpu(), X)


def test_sharding_constraint_in_torch_func_grad() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return (with_sharding_constraint(x, on("fsdp")) ** 2).sum()

    found = torch.func.grad(loss)(xf.device_put(X))
    torch.testing.assert_close(found.cpu(), 2 * X)


def test_sharding_constraint_with_disable_jit() -> None:
    with xf.disable_jit():
        found = xf.grad(lambda x: (with_sharding_constraint(x, on("fsdp")) ** 2).sum())(X)
        with pytest.raises(ShardingError, match=r"not a multiple of 4"):
            with_sharding_constraint(X[:3], on("fsdp"))
    torch.testing.assert_close(found, 2 * X)


def test_sharding_constraint_equal_shardings_trace_once() -> None:
    def step(x: torch.Tensor, mesh: Any) -> torch.Tensor:
        return with_sharding_constraint(x, NamedSharding(mesh, P("fsdp"))) + 1

    f = xf.jit(step, static_argnums=1)
    for _ in range(3):
        f(X, make_mesh((4, 2), ("fsdp", "tensor")))
    assert xf.trace_count(f) == 1


def test_sharding_constraint_on_abstract_mesh_only_lowers() -> None:
    big = NamedSharding(AbstractMesh((64, 4), ("fsdp", "tensor")), P("fsdp", "tensor"))
    f = xf.jit(lambda x: with_sharding_constraint(x, big) + 1)
    x = xf.ShapeDtypeStruct((64, 64), torch.float32)
    assert "devices=[64,4]<=[256]" in f.lower(x).as_text()
    with pytest.raises(ShardingError, match=r"(?s)256 devices, but this process has 8.*Hint"):
        f(torch.zeros(64, 64))
    with pytest.raises(ShardingError, match=r"(?s)needs 256 devices, but this process has 8.*Hint"):
        with_sharding_constraint(torch.zeros(64, 64), big)


REFUSED = {
    "indivisible": (X[:6], on("fsdp"), ShardingError, r"x\['w'\] of shape \(6, 8\).*of 4"),
    "rank": (X[0], on(None, "fsdp"), ShardingError, r"x\['w'\] has 1 dimensions \(8,\)"),
    "no mesh": (X, P("fsdp"), ShardingError, r"sharding of x\['w'\] is P\('fsdp'\), but no mesh"),
    "no sharding": (X, "fsdp", ShardingError, r"'fsdp' \(a str\), which is not a sharding"),
    "None": (X, None, ShardingError, r"x\['w'\] is None .*which is not a sharding"),
    "prefix": (X, [on()], TreeMismatchError, r"shardings is not a prefix .*at x\['w'\]"),
    "no tensor": ("text", on(), TypeError, r"was given 'text' \(a str\) at x\['w'\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_sharding_constraint_errors(case: str) -> None:
    x, shardings, error, message = REFUSED[case]

    def f(y: torch.Tensor) -> Any:
        return with_sharding_constraint({"w": x if case == "no tensor" else y}, {"w": shardings})

    y = X if case == "no tensor" else x
    with pytest.raises(error, match=rf"(?s){message}.*test_constraint.py.*Hint"):
        xf.jit(f)(y)
    with pytest.raises(error, match=rf"(?s){message}.*test_constraint.py.*Hint"):
        f(y)


@pytest.mark.parametrize("axes", [{"fsdp", "tensor"}, {"tensor"}])
def test_sharding_constraint_in_manual_region_raises(axes: set[str]) -> None:
    def local(x: torch.Tensor) -> torch.Tensor:
        return with_sharding_constraint(x, on("fsdp"))

    f = shard_map(local, MESH, P(None, "tensor"), P(None, "tensor"), axis_names=axes)
    with pytest.raises(ShardingError, match=r"(?s)x is resharded inside a shard_map.*Hint"):
        f(X)


def test_sharding_constraint_wrong_matmul_of_xla() -> None:
    """Axes of a batch in an order that XLA's partitioner confuses, and in one that it does not.

    Where this fails, the bug is gone: the notes in docs/sharding.md and
    examples/llama/parallel/sharding.py can go too.
    """
    mesh = make_mesh((2, 2, 2), ("data", "fsdp", "tensor"))
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(8, 32, 192, generator=draw), torch.randn(128, 192, generator=draw)
    expected, right = x @ weight.T, []
    for rows in (("fsdp", "data"), ("data", "fsdp")):
        where = NamedSharding(mesh, P(rows, None, "tensor"))
        given = xf.device_put((x, weight), (where, NamedSharding(mesh, P("fsdp", "tensor"))))
        made = xf.jit(lambda x, w, s=where: with_sharding_constraint(x @ w.T, s))(*given)
        right.append(bool((made.cpu() - expected).abs().max() < 1e-3))
    assert right == [True, False]
