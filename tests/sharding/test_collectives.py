"""Every collective under every transform, against plain torch in float64.

Plain torch computes device by device on a *stack*: the arrays of all devices, whose first
dimensions are the axes of the mesh.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.cases import OURS, PLAIN
from xfunc import sharding
from xfunc.errors import ShardingError
from xfunc.sharding import AbstractMesh, P, make_mesh, shard_map

Tensor = torch.Tensor

MESH = make_mesh((4, 2), ("x", "y"))
RING = [(i, (i + 1) % 4) for i in range(4)]

# (name, axes, options); what each device gives is float64[2,4].
CALLS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "psum": ("psum", "x", {}),
    "psum of two axes": ("psum", ("x", "y"), {}),
    "pmean": ("pmean", "y", {}),
    "pmax": ("pmax", "x", {}),
    "pmin": ("pmin", ("y", "x"), {}),
    "all_gather": ("all_gather", "x", {}),
    "all_gather tiled": ("all_gather", "y", {"axis": 1, "tiled": True}),
    "all_gather of two axes": ("all_gather", ("y", "x"), {"axis": -1}),
    "psum_scatter": ("psum_scatter", "x", {"scatter_dimension": 1}),
    "psum_scatter tiled": ("psum_scatter", "y", {"scatter_dimension": 1, "tiled": True}),
    "ppermute": ("ppermute", "x", {"perm": RING}),
    "ppermute of some": ("ppermute", ("y", "x"), {"perm": [(0, 3), (3, 7), (7, 1)]}),
    "all_to_all": ("all_to_all", "x", {"split_axis": 1, "concat_axis": 0}),
    "all_to_all tiled": ("all_to_all", "y", {"split_axis": 1, "concat_axis": 0, "tiled": True}),
}


def stacked(x: Tensor, spec: tuple[Any, ...], mesh: AbstractMesh) -> Tensor:
    """What each device holds of an array."""
    rows = []
    for where in itertools.product(*map(range, mesh.axis_sizes)):
        at = dict(zip(mesh.axis_names, where, strict=True))
        part = x
        for d, entry in enumerate(spec):
            for name in (entry,) if isinstance(entry, str) else entry or ():
                part = part.chunk(mesh.shape[name], d)[at[name]]
        rows.append(part)
    return torch.stack(rows).unflatten(0, mesh.axis_sizes)


def on_each(fun: Callable[..., Tensor], mesh: AbstractMesh, *stacks: Tensor) -> Tensor:
    """A function of what each device holds."""
    flat = [s.flatten(0, mesh.ndim - 1) for s in stacks]
    rows = [fun(*row) for row in zip(*flat, strict=True)]
    return torch.stack(rows).unflatten(0, mesh.axis_sizes)


def in_groups(fun: Callable[[Tensor], Tensor], axes: Any, mesh: AbstractMesh, s: Tensor) -> Tensor:
    """A function from the arrays of a group of devices, stacked, to what each one gets."""
    axes = (axes,) if isinstance(axes, str) else axes
    own = [mesh.axis_names.index(n) for n in axes]
    rest = [a for a in range(mesh.ndim) if a not in own]
    order = [*rest, *own]
    sizes = [mesh.axis_sizes[a] for a in order]
    s = s.permute([*order, *range(mesh.ndim, s.ndim)])
    groups = s.flatten(len(rest), mesh.ndim - 1)
    groups = groups.flatten(0, len(rest) - 1) if rest else groups[None]
    out = torch.stack([fun(g) for g in groups])
    out = out.flatten(0, 1).unflatten(0, sizes)
    back = [order.index(a) for a in range(mesh.ndim)]
    return out.permute([*back, *range(mesh.ndim, out.ndim)])


def _to_all(fun: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda g: (one := fun(g)).expand(len(g), *one.shape)


def psum() -> Any:
    return _to_all(lambda g: g.sum(0))


def pmean() -> Any:
    return _to_all(lambda g: g.mean(0))


def pmax() -> Any:
    return _to_all(lambda g: g.amax(0))


def pmin() -> Any:
    return _to_all(lambda g: g.amin(0))


def all_gather(axis: int = 0, tiled: bool = False) -> Any:
    return _to_all(lambda g: torch.cat([*g], axis) if tiled else torch.stack([*g], axis))


def psum_scatter(scatter_dimension: int = 0, tiled: bool = False) -> Any:
    def scatter(g: Tensor) -> Tensor:
        parts = torch.stack(g.sum(0).chunk(len(g), scatter_dimension))
        return parts if tiled else parts.squeeze(scatter_dimension + 1)

    return scatter


def ppermute(perm: Any) -> Any:
    def permute(g: Tensor) -> Tensor:
        source = {t: s for s, t in perm}
        return torch.stack(
            [g[source[k]] if k in source else torch.zeros_like(g[0]) for k in range(len(g))]
        )

    return permute


def all_to_all(split_axis: int, concat_axis: int, tiled: bool = False) -> Any:
    def exchange(g: Tensor) -> Tensor:
        parts = [x.chunk(len(g), split_axis) for x in g]
        got = [[p[k] for p in parts] for k in range(len(g))]
        if tiled:
            return torch.stack([torch.cat(row, concat_axis) for row in got])
        return torch.stack(
            [torch.stack([p.squeeze(split_axis) for p in row], concat_axis) for row in got]
        )

    return exchange


MEANINGS: dict[str, Callable[..., Any]] = {
    "psum": psum,
    "pmean": pmean,
    "pmax": pmax,
    "pmin": pmin,
    "all_gather": all_gather,
    "psum_scatter": psum_scatter,
    "ppermute": ppermute,
    "all_to_all": all_to_all,
}


def before(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.tanh(a[:, None] * b + a.sum())


def after(got: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(1, got.numel() + 1, dtype=got.dtype, device=got.device) / got.numel()
    return (torch.sin(got) * weights.reshape(got.shape)).sum() * a / 8


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, dtype=torch.float64, generator=generator) / 4
    return x, torch.randn(8, 8, dtype=torch.float64, generator=generator) / 4


def ours(call: str) -> Any:
    name, axes, options = CALLS[call]

    def each(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return after(getattr(sharding, name)(before(a, b), axes, **options), a)

    f = shard_map(each, MESH, in_specs=(P("x"), P("x", "y")), out_specs=P(("x", "y")))
    return lambda x, w: f(x, w).pow(2).sum()


def plain(call: str) -> Any:
    name, axes, options = CALLS[call]
    collective = MEANINGS[name](**{k: v % 3 if v == -1 else v for k, v in options.items()})

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a, b = (stacked(*s, MESH) for s in ((x, ("x",)), (w, ("x", "y"))))
        got = in_groups(collective, axes, MESH, on_each(before, MESH, a, b))
        return on_each(after, MESH, got, a).pow(2).sum()

    return run


def close(got: Any, want: Any) -> None:
    got, want = xf.tree.leaves(xf.device_get(got)), xf.tree.leaves(want)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.sample(8, seed=0)
@pytest.mark.quick(12, seed=0)
@pytest.mark.parametrize("transform", OURS)
@pytest.mark.parametrize("call", CALLS)
def test_collectives_under_transforms(call: str, transform: str) -> None:
    x, w = arguments()
    close(OURS[transform](ours(call))(x, w), PLAIN[transform](plain(call))(x, w))


# Of a vector with 8 elements on each device; n is the number of devices that communicate.
FORMS: dict[str, Any] = {
    "psum": lambda n: {},
    "pmean": lambda n: {},
    "pmax": lambda n: {},
    "all_gather": lambda n: {"tiled": True},
    "psum_scatter": lambda n: {"tiled": True},
    "ppermute": lambda n: {"perm": [(i, (i + 1) % n) for i in range(n)]},
    "all_to_all": lambda n: {"split_axis": 0, "concat_axis": 0, "tiled": True},
}


@pytest.mark.sample(6, seed=0)
@pytest.mark.parametrize("form", FORMS)
def test_collectives_on_meshes_of_1_to_3_axes(form: str, any_mesh: Any) -> None:
    names = any_mesh.axis_names
    x = torch.linspace(-1, 1, 64, dtype=torch.float64)
    for axes in (*names, tuple(reversed(names)), names[:2]):
        own = (axes,) if isinstance(axes, str) else axes
        options = FORMS[form](math.prod(any_mesh.shape[n] for n in own))
        each = getattr(sharding, form)
        f = shard_map(
            lambda a, axes=axes, options=options, each=each: torch.sin(
                each(a * a, axes, **options)
            ),
            any_mesh,
            P(names),
            P(names),
        )
        meaning = MEANINGS[form](**options)

        def plain(x: torch.Tensor, axes: Any = axes, meaning: Any = meaning) -> torch.Tensor:
            stack = stacked(x, (names,), any_mesh)
            return torch.sin(in_groups(meaning, axes, any_mesh, stack * stack)).flatten()

        ours, theirs = f(x), plain(x)
        close(ours, theirs)
        weights = torch.cos(torch.arange(len(theirs), dtype=x.dtype))
        close(xf.vjp(f, x)[1](weights), torch.func.vjp(plain, x)[1](weights))
        close(xf.jvp(f, (x,), (x.cos(),)), torch.func.jvp(plain, (x,), (x.cos(),)))


DTYPES = """
    bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128
""".split()


@pytest.mark.parametrize("dtype", DTYPES)
def test_collectives_dtypes(dtype: str) -> None:
    x = (torch.arange(64).reshape(16, 4) % 5).to(getattr(torch, dtype))

    def each(a: torch.Tensor) -> Any:
        return (
            sharding.psum(a, "x"),
            sharding.all_gather(a, "x", tiled=True),
            sharding.ppermute(a, "x", RING),
            sharding.all_to_all(a, "x", 0, 1, tiled=True),
            sharding.psum_scatter(a, "x", tiled=True),
            *(() if a.dtype.is_complex else (sharding.pmax(a, "x"), sharding.pmin(a, "x"))),
        )

    got = xf.device_get(shard_map(each, MESH, P("x"), P("x"))(x))
    parts = x.reshape(4, 4, 4)
    total = parts.sum(0).to(torch.int64 if dtype == "bool" else x.dtype)
    torch.testing.assert_close(got[0], total.repeat(4, 1))
    torch.testing.assert_close(got[1], x.repeat(4, 1))
    torch.testing.assert_close(got[2], parts.roll(1, 0).reshape(16, 4))
    torch.testing.assert_close(got[3], parts.transpose(0, 1).reshape(4, 16))
    torch.testing.assert_close(got[4], parts.sum(0).to(x.dtype))
    for found, name in zip(got[5:], ("amax", "amin"), strict=False):
        torch.testing.assert_close(found, getattr(parts, name)(0).repeat(4, 1))


def test_pmax_and_pmin_of_nan_and_infinity() -> None:
    x = torch.tensor([1.0, math.nan, -math.inf, 3.0, -0.0, math.inf, -2.0, 5.0]).repeat(4, 1)
    x[1:, 1], x[2, 4], x[3, 7] = 7.0, -1.0, math.nan
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        y = x.to(dtype)
        for f, want in ((sharding.pmax, y.amax(0)), (sharding.pmin, y.amin(0))):
            got = shard_map(lambda a, f=f: f(a[0], "x"), MESH, P("x"), P())(y)
            torch.testing.assert_close(got.cpu(), want, equal_nan=True)


def test_psum_of_python_numbers_and_trees() -> None:
    def each(a: torch.Tensor) -> Any:
        assert sharding.axis_size(("x", "y")) == 8
        assert sharding.psum(1, "x") == 4
        assert sharding.pmean({"n": 3}, "y") == {"n": 3}
        tree = {"a": a, "b": [a * 2, None, (a > 0)]}
        return sharding.psum(tree, ("x", "y"))

    x = torch.linspace(-1, 2, 8, dtype=torch.float64)
    got = shard_map(each, MESH, P("x"), P())(x)
    total = 2 * x.reshape(4, 2).sum(0)
    positive = 2 * (x > 0).reshape(4, 2).sum(0)
    assert got["b"][1] is None
    close(got, {"a": total, "b": [total * 2, None, positive]})


def test_psum_over_no_axes() -> None:
    x = torch.linspace(-1, 2, 8, dtype=torch.float64)
    f = shard_map(lambda a: sharding.psum(a, ()) * sharding.axis_size(()), MESH, P("x"), P("x"))
    close(f(x), x)
    close(xf.grad(lambda x: f(x).sum())(x), torch.ones_like(x))


def test_collectives_of_empty_arrays() -> None:
    def each(a: torch.Tensor) -> Any:
        return sharding.psum(a, "x"), sharding.all_gather(a, "x"), sharding.ppermute(a, "x", RING)

    got = shard_map(each, MESH, P("x"), (P(), P(), P("x")))(torch.zeros(8, 0))
    assert [tuple(t.shape) for t in got] == [(2, 0), (4, 2, 0), (8, 0)]


def test_psum_and_axis_index_with_permuted_devices() -> None:
    order = torch.tensor([3, 1, 0, 2, 7, 5, 6, 4]).reshape(2, 2, 2)
    mesh = sharding.Mesh(order.numpy(), ("x", "y", "z"))
    every = P(("x", "y", "z"))
    x = torch.arange(8, dtype=torch.float64)
    cube = x.reshape(2, 2, 2)
    for k, name in enumerate("xyz"):

        def each(a: torch.Tensor, name: str = name) -> torch.Tensor:
            place = 10 * sharding.axis_index(name) + 100 * sharding.axis_index(("z", "x"))
            return sharding.psum(a, name) + place

        at = torch.meshgrid(*[torch.arange(2)] * 3, indexing="ij")
        total = cube.sum(k, keepdim=True).expand(2, 2, 2)
        want = total + 10 * at[k] + 100 * (2 * at[2] + at[0])
        close(shard_map(each, mesh, every, every)(x), want.flatten())


@pytest.mark.slow
def test_collectives_more_than_threads() -> None:
    """More collectives are ready at once than there are threads."""

    def each(a: torch.Tensor) -> list[torch.Tensor]:
        sums = [sharding.psum(torch.sin(a * i), "x" if i % 2 else "y") for i in range(48)]
        sent = [sharding.ppermute(torch.cos(a * i), "x", RING) for i in range(48)]
        return [s + t for s, t in zip(sums, sent, strict=True)]

    f = xf.jit(shard_map(each, MESH, P("x", "y"), P("x", "y")))
    x = arguments()[1]
    first = xf.device_get(f(x))
    for _ in range(20):
        close(f(x), first)


@pytest.mark.slow
def test_collectives_in_loop_of_100_steps() -> None:
    def each(a: torch.Tensor) -> torch.Tensor:
        def step(i: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            return torch.tanh(sharding.ppermute(c, "x", RING) + sharding.psum(c, "y") / 4)

        return xf.fori_loop(0, 100, step, a)

    def plain(w: torch.Tensor) -> torch.Tensor:
        c = stacked(w, ("x", "y"), MESH)
        for _ in range(100):
            c = torch.tanh(c.roll(1, 0) + c.sum(1, keepdim=True) / 4)
        return c.pow(2).sum()

    f = xf.jit(xf.grad(lambda w: shard_map(each, MESH, P("x", "y"), P("x", "y"))(w).pow(2).sum()))
    w = arguments()[1]
    want = torch.func.grad(plain)(w)
    for _ in range(100):
        close(f(w), want)


def refused(f: Any, match: str, error: type[Exception] = ShardingError, **options: Any) -> None:
    x = torch.zeros(8, 4)
    with pytest.raises(error, match=match) as raised:
        shard_map(lambda a: f(a), MESH, P("x"), P("x"), **options)(x)
    assert "Hint: " in str(raised.value)


THREE: Any = 3


@pytest.mark.parametrize(
    ("f", "match"),
    [
        (lambda a: sharding.psum(a, "q"), r"psum over 'q': Mesh\(x=4, y=2\) has no axis 'q'"),
        (lambda a: sharding.psum(a, ("x", "x")), r"psum over \('x', 'x'\) names an axis twice"),
        (lambda a: sharding.pmax(a, THREE), "pmax was given 3 as axis_name"),
        (lambda a: sharding.pmin(torch.complex(a, a), "x"), r"pmin was given complex64\[2,4\]"),
        (lambda a: sharding.ppermute(a, "x", [(0, 1), (0, 2)]), "a source occurs twice"),
        (lambda a: sharding.ppermute(a, "x", [(0, 1), (2, 1)]), "a target occurs twice"),
        (lambda a: sharding.ppermute(a, "y", [(0, 2)]), r"\(0, 2\) is beyond the 2 places"),
        (lambda a: sharding.ppermute(a, "x", [THREE]), "3 is no pair of ints"),
        (lambda a: sharding.all_to_all(a, "x", 0, 1), "split_axis 0 of .* is 2, which is not 4"),
        (lambda a: sharding.all_to_all(a, "x", 0, 5, tiled=True), "has concat_axis=5 for float"),
        (lambda a: sharding.psum_scatter(a, "x", tiled=True), "is 2, which is not a multiple of 4"),
        (lambda a: sharding.all_gather(a, "x", axis=4), "all_gather has axis=4 for float32"),
    ],
)
def test_collectives_errors(f: Any, match: str) -> None:
    refused(f, match)


def test_collectives_over_non_manual_axis_raise() -> None:
    refused(
        lambda a: sharding.psum(a, "y"), "not manual over 'y', but over 'x' only", axis_names="x"
    )
    names = "psum pmean pmax pmin all_gather psum_scatter axis_index axis_size".split()
    for name in names:
        args = () if name.startswith("axis") else (torch.zeros(3),)
        with pytest.raises(ShardingError, match=f"{name} over 'x' is called outside a shard_map"):
            getattr(sharding, name)(*args, "x")


def test_psum_of_non_array_leaf_raises() -> None:
    refused(lambda a: sharding.psum({"k": "hi"}, "x"), r"'hi' \(a str\) at x\['k'\]", TypeError)


WAITING = "inside a (branch|loop), and devices along 'x'.* decide for themselves whether to"


@pytest.mark.parametrize(
    "f",
    [
        lambda a: xf.cond(a.sum() > 0, lambda v: sharding.psum(v, "x"), lambda v: v, a),
        lambda a: (
            xf.cond(a.sum() > 0, lambda v: sharding.ppermute(v, "y", []) + 1, torch.sin, a)
            + xf.cond(a.sum() > 0, lambda v: sharding.ppermute(v, "y", [(0, 1)]), torch.sin, a)
        ),
        lambda a: xf.while_loop(lambda v: v.sum() < 3, lambda v: sharding.pmax(v, "x"), a),
        lambda a: xf.switch(sharding.axis_index("x"), [torch.sin, gathered], a),
    ],
)
def test_collectives_in_divergent_branch_or_loop_raise(f: Any) -> None:
    refused(f, WAITING, check_vma=False)
    refused(lambda a: xf.jvp(f, (a,), (a,))[1], WAITING, check_vma=False)


def gathered(a: torch.Tensor) -> torch.Tensor:
    return sharding.all_gather(a, "x").sum(0)


def test_collectives_in_uniform_branch_and_loop() -> None:
    def each(a: torch.Tensor) -> torch.Tensor:
        def shrink(v: torch.Tensor) -> torch.Tensor:
            return v - sharding.pmean(v, "x") / 2

        a = xf.while_loop(lambda v: sharding.pmax(v.abs().max(), ("x", "y")) > 0.1, shrink, a)
        # Along y all devices choose alike; those along x do not.
        return xf.cond(a.sum() > 0, lambda v: sharding.psum(v, "y"), lambda v: v * 2, a)

    x = torch.ones(8, 4, dtype=torch.float64)
    close(shard_map(each, MESH, P("x"), P("x"))(x), x / 8)
