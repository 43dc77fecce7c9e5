"""Functions of ``jax.lax`` and ``jax.ops``: values and derivatives against JAX itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax

import xfunc as xf

ROWS = np.array([[1.0, 2.0], [3.0, 2.0], [3.0, -1.0], [0.5, 4.0], [2.0, 0.0]], np.float32)
IDS = np.array([2, 0, 2, 5, -1], np.int32)  # two are of segments that do not exist
TIES = np.array([[3.0, 2.0], [3.0, 2.0], [3.0, -1.0], [0.0, 2.0], [0.0, 0.0]], np.float32)
SAME = np.array([0, 0, 0, 1, 1], np.int32)
GRID = np.arange(20, dtype=np.float32).reshape(4, 5) * 0.37 - 2
PATCH = np.array([[10.0, 20.0], [30.0, 40.0]], np.float32)
STACK = np.cos(np.arange(2 * 5 * 3, dtype=np.float32)).reshape(2, 5, 3)
GROUPS = np.array([3, 0], np.int32)
WIDE = np.concatenate([GRID, GRID[::-1]])[:7]


def _segments(kind: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    ours, theirs = getattr(xf, f"segment_{kind}"), getattr(jax.ops, f"segment_{kind}")
    return (lambda x, i: ours(x, i, 3)), (lambda x, i: theirs(x, i, 3))


KINDS = ("sum", "prod", "max", "min")
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[np.ndarray, ...]]] = {
    **{f"segment_{k}": (*_segments(k), (ROWS, IDS)) for k in KINDS},
    **{f"segment_{k} ties": (*_segments(k), (TIES, SAME)) for k in KINDS},
    **{
        f"dynamic_slice {at}": (
            lambda x, i: xf.dynamic_slice(x, i, (2, 5)),
            lambda x, i: lax.dynamic_slice(x, i, (2, 5)),
            (GRID, np.array(at, np.int32)),
        )
        for at in ((1, 0), (3, 2), (-1, 0), (-9, 0))
    },
    **{
        f"dynamic_update_slice {at}": (
            xf.dynamic_update_slice,
            lax.dynamic_update_slice,
            (GRID, PATCH, np.array(at, np.int32)),
        )
        for at in ((1, 2), (3, 4), (-1, -2), (-9, 0))
    },
    "ragged_dot": (xf.ragged_dot, lax.ragged_dot, (WIDE, STACK, GROUPS)),
    "ragged_dot two": (xf.ragged_dot, lax.ragged_dot, (WIDE, STACK, np.array([3, 4], np.int32))),
    "reduce_precision": (
        lambda x: xf.reduce_precision(x, 5, 3),
        lambda x: lax.reduce_precision(x, 5, 3),
        (GRID,),
    ),
    "optimization_barrier": (
        lambda x, y: xf.optimization_barrier((x * 2, y))[0] * y.sum(),
        lambda x, y: lax.optimization_barrier((x * 2, y))[0] * y.sum(),
        (GRID, PATCH),
    ),
}


def tensors(arrays: tuple[np.ndarray, ...]) -> list[torch.Tensor]:
    return [torch.from_numpy(a.copy()) for a in arrays]


def check(got: Any, want: Any) -> None:
    for g, w in zip(xf.tree.leaves(got), jax.tree.leaves(want), strict=True):
        w = np.array(w)
        assert str(g.dtype) == f"torch.{w.dtype}"
        torch.testing.assert_close(g.cpu(), torch.from_numpy(w), rtol=2e-5, atol=1e-6)


def weighted(f: Callable[..., Any], lib: Any) -> Callable[..., Any]:
    """A scalar of the result, whose elements have different weights."""

    def total(*args: Any) -> Any:
        out = f(*args)
        finite = lib.where(lib.abs(out) < 1e30, out, lib.zeros_like(out))
        return (finite * lib.cos(lib.arange(finite.size if lib is jnp else finite.numel())).reshape(
            tuple(out.shape))).sum()  # fmt: skip

    return total


@pytest.mark.parametrize("name", CASES)
def test_value_equals_jax(name: str) -> None:
    ours, theirs, arrays = CASES[name]
    want = theirs(*map(jnp.asarray, arrays))
    check(ours(*tensors(arrays)), want)
    check(xf.jit(ours)(*tensors(arrays)), want)
    with xf.disable_jit():
        check(ours(*tensors(arrays)), want)


def products(x: Any, ids: Any) -> Any:
    """``segment_prod``, of which JAX has no derivative."""
    return jnp.stack([jnp.prod(jnp.where((ids == k)[:, None], x, 1), 0) for k in range(3)])


@pytest.mark.parametrize("name", CASES)
def test_derivatives_equal_jax(name: str) -> None:
    ours, theirs, arrays = CASES[name]
    theirs = products if "prod" in name else theirs
    floats = tuple(k for k, a in enumerate(arrays) if a.dtype == np.float32)
    given = [*map(jnp.asarray, arrays)]
    want = jax.grad(weighted(theirs, jnp), floats)(*given)
    check(xf.jit(xf.grad(weighted(ours, torch), floats))(*tensors(arrays)), want)
    dots = tuple(np.sin(np.arange(arrays[k].size, dtype=np.float32) + 1).reshape(arrays[k].shape)
                 for k in floats)  # fmt: skip

    def along(f: Callable[..., Any], args: list[Any]) -> Callable[..., Any]:
        return lambda *xs: f(*[xs[floats.index(k)] if k in floats else a
                               for k, a in enumerate(args)])  # fmt: skip

    want = jax.jvp(
        along(theirs, given), tuple(given[k] for k in floats), tuple(map(jnp.asarray, dots))
    )
    there = tensors(arrays)
    got = xf.jit(lambda *p: xf.jvp(along(ours, there), p, tuple(tensors(dots))))(
        *[there[k] for k in floats]
    )
    check(got[1], want[1])


@pytest.mark.parametrize("name", CASES)
def test_batch_equals_jax(name: str) -> None:
    ours, theirs, arrays = CASES[name]
    batch = tuple(np.stack([a, a[::-1]]) for a in arrays)
    if "ragged" in name:  # JAX cannot batch all of its arguments.
        rows = [theirs(*[jnp.asarray(b[k]) for b in batch]) for k in range(2)]
        check(xf.jit(xf.vmap(ours))(*tensors(batch)), np.stack(rows))
        return
    check(xf.jit(xf.vmap(ours))(*tensors(batch)), jax.vmap(theirs)(*map(jnp.asarray, batch)))
    one = (0, *[None] * (len(arrays) - 1))
    check(
        xf.vmap(ours, one)(torch.from_numpy(batch[0]), *tensors(arrays[1:])),
        jax.vmap(theirs, one)(batch[0], *map(jnp.asarray, arrays[1:])),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_segments_of_integers_and_empty_ones_equal_jax(kind: str) -> None:
    x = np.array([5, -7, 3], np.int32)
    ids = np.array([3, 0, 3], np.int32)
    want = getattr(jax.ops, f"segment_{kind}")(x, ids)
    check(getattr(xf, f"segment_{kind}")(torch.from_numpy(x), torch.from_numpy(ids)), want)


def test_barrier_keeps_equal_values_apart() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + torch.sin(xf.optimization_barrier(x))

    text = xf.jit(twice).lower(torch.ones(3)).compile().as_text()
    assert text is not None
    assert text.count(" sine(") == 2
    plain = xf.jit(lambda x: torch.sin(x) + torch.sin(x * 1)).lower(torch.ones(3)).compile()
    assert str(plain.as_text()).count(" sine(") == 1


def roots(lib: Any, root: Callable[..., Any], loop: Callable[..., Any]) -> Callable[..., Any]:
    """The x of ``x ** 3 + a x == b``, times the number of steps."""

    def of(a: Any, b: Any) -> Any:
        def solve(f: Callable[..., Any], x: Any) -> Any:
            step = lambda _, x: x - f(x) / (3 * x * x + a)  # noqa: E731
            return loop(0, 40, step, x), lib.ones((), dtype=lib.float32) * 40

        def linear(g: Callable[..., Any], y: Any) -> Any:
            return y / g(lib.ones((), dtype=lib.float32))

        start = lib.ones((), dtype=lib.float32)
        x, steps = root(lambda x: x**3 + a * x - b, start, solve, linear, has_aux=True)
        return x * steps

    return of


OURS = roots(torch, xf.custom_root, xf.fori_loop)
THEIRS = roots(jnp, lax.custom_root, lax.fori_loop)
POINT = (torch.tensor(1.5), torch.tensor(2.5))
HERE = (jnp.float32(1.5), jnp.float32(2.5))


@pytest.mark.parametrize(
    "of",
    [
        lambda t, f: f,
        lambda t, f: t.jit(f),
        lambda t, f: t.grad(f, (0, 1)),
        lambda t, f: t.jit(t.grad(t.grad(f), (0, 1))),
        lambda t, f: lambda a, b: t.jvp(f, (a, b), (a * 2, b)),
        lambda t, f: (
            lambda a, b: t.vmap(t.grad(f), (0, None))(
                a * (torch.ones(2) if t is xf else jnp.ones(2, jnp.float32)), b
            )
        ),
    ],
    ids=["value", "jit", "grad", "second", "jvp", "vmap"],
)
def test_custom_root_equals_jax(of: Callable[..., Any]) -> None:
    check(of(xf, OURS)(*POINT), of(jax, THEIRS)(*HERE))


def test_jacobian_is_jacrev() -> None:
    x = torch.tensor([1.0, 2.0])
    check(xf.jacobian(lambda x: x.prod() * x)(x), jax.jacobian(lambda x: x.prod() * x)(x.numpy()))
    assert xf.jacobian is xf.jacrev


X, N = torch.ones(3), torch.tensor([0, 1, 1])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: xf.segment_sum(X, X), TypeError, "segment_ids of float32[3]"),
        (lambda: xf.segment_sum(X, N[:2]), TypeError, "one id for each row"),
        (lambda: xf.jit(xf.segment_max)(X, N), TypeError, "not given num_segments in a traced"),
        (lambda: xf.segment_sum(X, N, -1), ValueError, "num_segments=-1"),
        (lambda: xf.dynamic_slice(X, (0,), (4,)), TypeError, "the sizes (4,) for float32[3]"),
        (lambda: xf.dynamic_slice(X, (0, 0), (1,)), TypeError, "2 starts and 1 sizes"),
        (lambda: xf.dynamic_slice(X, (0.5,), (1,)), TypeError, "the start float32[]"),
        (lambda: xf.dynamic_update_slice(X, N[:2], (0,)), TypeError, "an update of int64[2]"),
        (lambda: xf.ragged_dot(X, X, N), TypeError, "give [m, k], [g, k, n] and [g]"),
        (lambda: xf.ragged_dot(X[None], X[None, :, None], X[:1]), TypeError, "give integers"),
        (lambda: xf.reduce_precision(N, 5, 3), TypeError, "given int64[3]"),
        (lambda: xf.reduce_precision(X, 0, 3), ValueError, "0 bits of exponent"),
        (lambda: xf.optimization_barrier({"a": "b"}), TypeError, "'b'"),
        (lambda: xf.custom_root(3, X, abs, abs), TypeError, "3 as a function"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_wrong_arguments(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        call()
