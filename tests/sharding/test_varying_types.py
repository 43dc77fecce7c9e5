"""Gradients taken in the function of a `shard_map`, beyond what is recorded from JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.cases import OURS, PLAIN
from xfunc.errors import ShardingError
from xfunc.sharding import P, make_mesh, shard_map, use_mesh

ONE, TWO = make_mesh((8,), "i"), make_mesh((4, 2), ("x", "y"))
V = torch.arange(8, dtype=torch.float64) / 4 - 0.6
W = torch.tensor([0.3, -0.7], dtype=torch.float64)


def close(got: Any, want: Any) -> None:
    leaves = xf.tree.leaves(xf.device_get(got)), xf.tree.leaves(want)
    torch.testing.assert_close(*leaves, rtol=1e-9, atol=1e-9)


def nested(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A gradient in a region in a region, by what varies along both axes, one and none."""

    def each(a: torch.Tensor, b: torch.Tensor) -> Any:
        def inner(c: torch.Tensor, scale: torch.Tensor) -> Any:
            def loss(u: torch.Tensor, v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
                return xf.psum(torch.sin(s * u @ v).sum(), "y") * u.sum()

            return xf.grad(loss, argnums=(0, 1, 2))(a, c, scale)

        specs = (P(None, "y"), P()), (P(), P(None, "y"), P())
        return shard_map(inner, None, *specs, axis_names={"y"})(b, w[0, 0])

    with use_mesh(TWO):
        f = shard_map(each, None, (P("x"), P("x")), (P("x"), P("x"), P()), axis_names={"x"})
        return sum((g**2).sum() for g in f(x, w))  # pyright: ignore[reportReturnType]


def plain_nested(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def loss(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        a, b = x.reshape(4, 2), w.reshape(4, 2, 8)
        return (torch.sin(s * torch.einsum("di,dij->dj", a, b)).sum(1) * a.sum(1)).sum()

    found: Any = torch.func.grad(loss, argnums=(0, 1, 2))(x, w, w[0, 0])
    return sum((g**2).sum() for g in found)  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("transform", ["value", "grad", "grad of grad", "jvp of grad", "vmap"])
def test_grad_in_nested_shard_map(transform: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, dtype=torch.float64, generator=generator) / 2
    w = torch.randn(8, 8, dtype=torch.float64, generator=generator) / 2
    close(OURS[transform](nested)(x, w), PLAIN[transform](plain_nested)(x, w))


def run(f: Callable[..., Any], out: Any = None, **options: Any) -> Any:
    """Of what does not vary, and what does."""
    return shard_map(f, ONE, (P(), P("i")), out or P(), **options)(W, V)


def test_scan_carry_becomes_varying_in_shard_map() -> None:
    """JAX wants `pvary` around the beginning of a loop and what a branch leaves as it is."""

    def loss(w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        def step(c: torch.Tensor, a: torch.Tensor) -> Any:
            c = c * a + xf.cond(w[0] > 0, lambda: v, lambda: torch.ones_like(w[:1]))
            return c, None

        start = torch.zeros(1, dtype=torch.float64)
        return (xf.scan(step, start, w)[0] ** 2).sum()

    def alone(w: torch.Tensor) -> torch.Tensor:
        c = torch.zeros_like(V)
        for a in w:
            c = c * a + V
        return (c**2).sum()

    close(run(xf.grad(loss)), torch.func.grad(alone)(W))


def test_shard_map_check_rep_means_check_vma() -> None:
    def mean(w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return xf.grad(lambda u: xf.pmean((u * u).sum(), "i"))(v)

    close(run(mean, P("i")), V / 4)
    close(run(mean, P("i"), check_rep=True), V / 4)
    close(run(mean, P("i"), check_rep=False), V * 2)
    close(run(mean, P("i"), check_vma=False), V * 2)
    with pytest.raises(TypeError, match="was given check_vma=False and check_rep=True"):
        run(mean, check_vma=False, check_rep=True)


def test_all_gather_result_is_replicated() -> None:
    """JAX lets it leave only where it is not checked, or all_gather_invariant is used."""
    close(run(lambda w, v: xf.all_gather(v, "i", tiled=True)), V)
    close(run(lambda w, v: xf.all_gather_invariant(v, "i", tiled=True)), V)
    products = (V[:, None] * W).flatten()
    close(run(lambda w, v: xf.pcast(w, "i", to="varying") * v, P("i")), products)


def test_custom_vjp_in_shard_map_leaves_out_the_sum() -> None:
    @xf.custom_vjp
    def product(w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (w * v).sum()

    product.defvjp(
        lambda w, v: (product(w, v), (w, v)),
        lambda r, ct: (ct * r[1].expand(2), (ct * r[0].sum())[None]),
    )
    close(run(xf.grad(lambda w, v: product(w, v) ** 2)), 2 * (W.sum() * V**2).sum().expand(2))


@pytest.mark.parametrize("jitted", [False, True])
def test_grad_in_shard_map_collectives(jitted: bool) -> None:
    """One sum for a gradient; none for a gradient of what each device has its own part of."""
    mesh = xf.AbstractMesh((64,), ("i",))

    def data(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w).sum()

    def tensor(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (xf.psum(torch.tanh(x @ w), "i") ** 2).sum()

    cases = (data, (P(), P("i")), P(), 1), (tensor, (P(None, "i"), P()), P(None, "i"), 1)
    for f, ins, out, n in cases:
        g = xf.grad(f)
        g = shard_map(xf.jit(g) if jitted else g, mesh, ins, out)
        shapes = (
            xf.ShapeDtypeStruct((64, 64), torch.float32),
            xf.ShapeDtypeStruct((128, 64), torch.float32),
        )
        text = xf.jit(g).lower(*shapes).as_text()
        assert text.count(" all-reduce(") == n
        assert "xfunc_vma" not in text


@pytest.mark.parametrize(
    ("f", "out", "match"),
    [
        (
            lambda w, v: xf.vjp(lambda u: xf.psum(u, "i"), v)[1](v)[0],
            P("i"),
            r"a pullback was given a cotangent that varies along 'i'(?s:.*)xf.psum\(ct, 'i'\)",
        ),
        (
            lambda w, v: xf.jit(lambda v: xf.vjp(lambda u: xf.psum(u, "i"), v)[1](v)[0])(v),
            P("i"),
            "cotangent that varies along 'i'(?s:.*)test_varying_types.py",
        ),
        (lambda w, v: xf.pvary(w, "i"), P(), "which does not name 'i'"),
        (lambda w, v: xf.grad(lambda w: (w * v).sum())(xf.pvary(w, "i")), P(), "not name 'i'"),
        (lambda w, v: xf.grad(lambda z: (z * v).sum())(torch.zeros_like(v)), P(), "not name 'i'"),
        (
            lambda w, v: xf.cond(v.sum() > 0, xf.grad(lambda w: (w * v).sum()), lambda w: w, w),
            P("i"),
            "communicates over 'i' .all-reduce. inside a branch",
        ),
        (lambda w, v: xf.pcast(v, "i", to="reduced"), P("i"), "pcast was given to='reduced'"),
        (lambda w, v: xf.all_gather(v, "i", to="reduced"), P("i"), "was given to='reduced'"),
        (lambda w, v: xf.pvary(v, "q"), P("i"), "has no axis 'q'"),
    ],
)
def test_varying_types_errors(f: Any, out: Any, match: str) -> None:
    with pytest.raises(ShardingError, match=match) as raised:
        run(f, out)
    assert "Hint: " in str(raised.value)


def test_vmap_axis_name_in_and_around_shard_map() -> None:
    w, x = torch.tensor([0.5, -1.5], dtype=torch.float64), torch.arange(32.0).double() / 32

    def each(w: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return xf.psum(a * w, ("k", "i")) * xf.pmean(a, "k") * (xf.axis_index(("i", "k")) + 1)

    def loss(w: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return xf.vmap(each, (None, 0), axis_name="k")(w, rows).sum()

    def alone(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(8, 2, 2)  # of a device, of an example
        places = torch.arange(1, 17).reshape(8, 2, 1)
        return ((rows * w).sum((0, 1)) * rows.mean(1, keepdim=True) * places).sum()

    want = torch.func.grad(alone, argnums=(0, 1))(w, x)
    specs = P(), P("i")

    def rows(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda w, a: f(w, a.reshape(2, 2))

    close(shard_map(xf.grad(rows(loss), argnums=(0, 1)), ONE, specs, specs)(w, x), want)
    outside = shard_map(lambda w, a: xf.psum(rows(loss)(w, a), "i"), ONE, specs, P())
    close(xf.grad(outside, argnums=(0, 1))(w, x), want)

    def around(w: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        """Of one row of each device: the vmap is outside."""
        f = shard_map(lambda w, a: each(w, a).sum()[None], ONE, specs, P("i"))
        return f(w, a.flatten()).sum()

    def mapped(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        by_example = x.reshape(8, 2, 2).transpose(0, 1)
        return xf.vmap(around, (None, 0), axis_name="k")(w, by_example).sum()

    close(xf.grad(mapped, argnums=(0, 1))(w, x), want)
    with pytest.raises(ShardingError, match="manual over 'i', but is inside a vmap over an axis"):
        xf.vmap(lambda a: shard_map(torch.sin, ONE, P("i"), P("i"))(a), axis_name="i")(x[None])


def _by_autograd(loss: Callable[..., Any]) -> Callable[..., Any]:
    def run(u: torch.Tensor) -> torch.Tensor:
        u = u.detach().requires_grad_()
        return torch.autograd.grad(loss(u), u)[0]

    return run


@pytest.mark.parametrize(
    "grad",
    [
        torch.func.grad,
        lambda f: lambda u: torch.func.vjp(f, u)[1](torch.ones((), dtype=u.dtype))[0],
        lambda f: lambda u: torch.func.jacrev(f)(u),
        _by_autograd,
        lambda f: xf.jit(torch.func.grad(f)),
    ],
    ids=["grad", "vjp", "jacrev", "autograd", "jit"],
)
def test_torch_gradients_in_shard_map(grad: Any) -> None:
    def mean(w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return grad(lambda u: xf.pmean((u * u).sum(), "i"))(v)

    close(run(mean, P("i")), V / 4)
    close(run(mean, P("i"), check_vma=False), V * 2)
    close(run(lambda w, v: grad(lambda u: (u * u * v).sum())(w)), 2 * W * V.sum())


def test_autograd_function_with_collective_raises() -> None:
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return xf.psum(x, "i")

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, ct: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return ct

    class Local(Sum):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, ct: torch.Tensor) -> torch.Tensor:
            return ct * 5

    def loss(f: Any) -> Any:
        return lambda w, v: (f.apply(w) * v).sum()

    for out, f in ((P("i"), loss(Sum)), (P(), xf.grad(loss(Sum)))):
        with pytest.raises(ShardingError, match=r"psum over 'i' is called in a torch.autograd"):
            run(f, out)
    close(run(xf.grad(loss(Local))), 5 * V.sum().expand(2))
