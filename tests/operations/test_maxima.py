"""Maxima and minima of computed values: their derivatives and places.

An extremum is compared with the values that it is one of. XLA computes a value again in each fusion
that reads it, and ``sin`` then often differs in the last bit without the fusion emitters and LLVM's
optimisations, which is how the tests compile: so such a value must be computed once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

Tensor = torch.Tensor
Op = Callable[[Tensor], Tensor]


def _scattered(reduce: str) -> Op:
    def run(y: Tensor) -> Tensor:
        places = (torch.arange(y.shape[0]) % 3).to(y.device)[:, None].expand(y.shape)
        zeros = torch.zeros(3, y.shape[1]).to(y)
        return zeros.scatter_reduce(0, places, y, reduce, include_self=False)

    return run


def _bag(y: Tensor) -> Tensor:
    places = torch.arange(y.shape[0]).to(y.device)
    starts = torch.tensor([0, 2]).to(y.device)
    return torch.nn.functional.embedding_bag(places, y, starts, mode="max")


def _indexed(y: Tensor) -> Tensor:
    places = (torch.arange(y.shape[0]) % 2).to(y.device)
    zeros = torch.zeros(2, y.shape[1]).to(y)
    return zeros.index_reduce(0, places, y, "amax", include_self=False)


OPS: dict[str, Op] = {
    "amax": lambda y: y.amax(-1),
    "amin": lambda y: y.amin((0, 1)),
    "max": lambda y: y.max(),
    "min": lambda y: y.min(),
    "max.dim": lambda y: y.max(-1)[0],
    "median": lambda y: y.median(),
    "median.dim": lambda y: y.median(-1)[0],
    "nanmedian": lambda y: y.nanmedian(),
    "vector_norm": lambda y: torch.linalg.vector_norm(y, torch.inf, dim=-1),
    "vector_norm of all": lambda y: torch.linalg.vector_norm(y, -torch.inf),
    "norm": lambda y: torch.norm(y, torch.inf),
    "norm.dim": lambda y: torch.norm(y, -torch.inf, dim=1, keepdim=True),
    "matrix_norm": lambda y: torch.linalg.matrix_norm(y, torch.inf),
    "renorm": lambda y: torch.renorm(y, torch.inf, 0, 0.3).square(),
    "dist": lambda y: torch.dist(y, y * 0.3 + 1, torch.inf),
    "cdist": lambda y: torch.cdist(y, y.flip(1) + 1, torch.inf),
    "scatter_reduce amax": _scattered("amax"),
    "scatter_reduce amin": _scattered("amin"),
    "index_reduce": _indexed,
    "embedding_bag": _bag,
    "adaptive_max_pool": lambda y: torch.nn.functional.adaptive_max_pool2d(y[None], 2),
    "max_pool, dilated": lambda y: torch.nn.functional.max_pool2d(y[None], 2, dilation=2),
}
CHAINS: dict[str, Op] = {
    "sin": lambda x: torch.sin(x.mean() + torch.cos(torch.arange(x.numel()).to(x)).view(x.shape)),
    "products": lambda x: torch.exp(x * x.sum(0) + 0.1) * x - 0.3 * x,
    "silu": lambda x: torch.nn.functional.silu(torch.sigmoid(x / 3.1) * x.mean(-1, keepdim=True)),
}
SHAPES = (3, 3), (5, 17)


@pytest.mark.sample(8, seed=0)
@pytest.mark.filterwarnings(r"ignore:index_reduce\(\) is in beta")
@pytest.mark.parametrize("op", OPS)
def test_maxima_derivatives_of_computed_values(op: str) -> None:
    """Reverse and forward mode, and a batch, as torch's in float64."""

    def after(chain: Op) -> Op:
        return lambda x: OPS[op](chain(x)).sum()

    programs = [*map(after, CHAINS.values())]
    for shape in SHAPES:
        xs = torch.linspace(-0.9, 1.1, 2 * shape[0] * shape[1]).sin().reshape(2, *shape)
        x, wave = xs[0], xs[1]

        @xf.jit
        def measure(x: Tensor, wave: Tensor, xs: Tensor) -> list[list[Tensor]]:
            found = []
            for f in programs:
                _, dot = xf.jvp(f, (x,), (wave,))
                found.append([xf.grad(f)(x), dot, xf.vmap(xf.grad(f))(xs)])
            return found

        for f, found in zip(programs, xf.device_get(measure(x, wave, xs)), strict=True):
            exact = [x.double().requires_grad_(), xs[1].double().requires_grad_()]
            want, other = (torch.autograd.grad(f(v), v)[0] for v in exact)
            assert want.abs().max() > 1e-3
            expected = [want, (want * wave).sum(), torch.stack([want, other])]
            for y, z in zip(found, expected, strict=True):
                torch.testing.assert_close(y.double(), z, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("n", [3, 17, 65])
def test_argmax_and_argmin_of_computed_values(name: str, n: int) -> None:
    x = torch.linspace(-0.9, 1.1, 8 * n).sin().reshape(8, n)
    find = getattr(torch, name)
    got = xf.device_get(xf.jit(lambda x: [find(c(x), -1) for c in CHAINS.values()])(x))
    for c, place in zip(CHAINS.values(), got, strict=True):
        assert place.tolist() == find(c(x.double()), -1).tolist()


def test_amax_hessian() -> None:
    x = torch.linspace(-0.9, 1.1, 6)

    def f(x: Tensor) -> Tensor:
        return torch.sin(x.mean() * 2 + x).amax() ** 2

    got = xf.device_get(xf.jit(xf.hessian(f))(x))
    want = torch.autograd.functional.hessian(f, x.double())
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


def test_amax_jacfwd() -> None:
    """Of a value that is not batched itself."""
    x = torch.linspace(-0.9, 1.1, 6)

    def f(x: Tensor) -> Tensor:
        return torch.sin(x.mean() * 2 + x).amax() * x

    got = xf.device_get(xf.jit(xf.jacfwd(f))(x))
    want = torch.autograd.functional.jacobian(f, x.double())
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


def test_amax_gradient_is_shared_by_ties() -> None:
    x = torch.tensor([1.0, 3.0, 3.0, -torch.inf])
    assert xf.device_get(xf.jit(xf.grad(torch.amax))(x)).tolist() == [0, 0.5, 0.5, 0]


def test_amax_has_barrier_in_gradient_only() -> None:
    x = torch.ones(3)
    assert "opt-barrier" not in xf.jit(torch.amax).lower(x).as_text()
    assert "opt-barrier" in xf.jit(xf.grad(torch.amax)).lower(x).as_text()


# -- windows --------------------------------------------------------------------------------------

NAN = float("nan")
X = torch.tensor([[[1.0, NAN, 3, 2, NAN, 1], [NAN, NAN, -1, -1, NAN, NAN]]])


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.max_pool1d(x, 2, return_indices=True),
        lambda x: F.max_pool1d(x, 3, 1, 1, return_indices=True),
        lambda x: F.max_pool1d(x, 2, 2, 0, 2, return_indices=True),
        lambda x: F.max_pool2d(x, 2, 1, 1, return_indices=True),
        lambda x: F.max_pool2d(x, (2, 3), ceil_mode=True, return_indices=True),
        lambda x: F.max_pool3d(x[None], (1, 2, 2), return_indices=True),
        lambda x: F.adaptive_max_pool1d(x, 4, return_indices=True),
        lambda x: F.adaptive_max_pool2d(x, (1, 4), return_indices=True),
        lambda x: F.adaptive_max_pool3d(x[None], (1, 1, 4), return_indices=True),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_max_pool_picks_last_nan_of_window(
    pool: Callable[[Tensor], Any], dtype: torch.dtype
) -> None:
    x = X.to(dtype)
    found = xf.device_get(xf.jit(pool)(x))
    torch.testing.assert_close(found, pool(x), equal_nan=True, rtol=0, atol=0)

    def total(x: Tensor) -> Tensor:
        values = pool(x)[0]
        return (values.nan_to_num(0.5) * 2 + values).sum()

    leaf = x.clone().requires_grad_()
    total(leaf).backward()
    assert leaf.grad is not None
    torch.testing.assert_close(xf.grad(total)(x).cpu(), leaf.grad, rtol=0, atol=0)


POOLS = [
    (n, size, stride, pad, dilation, ceil)
    for n, size, stride, pad, dilation, ceil in itertools.product(
        (1, 2, 3), (1, 2, 3, 4), (None, 1, 2, 3), (0, 1), (1, 2), (False, True)
    )
    if pad <= size // 2 and (n < 3 or size < 4)
]


@pytest.mark.sample(1, seed=0)
@pytest.mark.parametrize("seed", range(8))
def test_gradients_of_max_pools(seed: int) -> None:
    """Windows that overlap, skip, are dilated, and lie beyond the end; with ties."""
    random = torch.Generator().manual_seed(seed)
    for n, size, stride, pad, dilation, ceil in POOLS[seed::8]:
        pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[n - 1]
        x = torch.randint(-3, 3, (2, 3, *(13, 9, 8)[:n]), generator=random).double()

        def loss(x: torch.Tensor) -> torch.Tensor:
            return pool(x, size, stride, pad, dilation, ceil).cumsum(-1).sin().sum()  # noqa: B023

        want = torch.func.grad(loss)(x)
        torch.testing.assert_close(xf.grad(loss)(x).cpu(), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spatial", [2, 3])
def test_max_pools_and_unpools_of_nothing(spatial: int) -> None:
    x = torch.zeros(0, 2, *[4] * spatial)
    pool = getattr(F, f"max_pool{spatial}d")
    unpool = getattr(F, f"max_unpool{spatial}d")

    def f(x: torch.Tensor) -> torch.Tensor:
        return unpool(*pool(x, 2, return_indices=True), 2)

    expected = torch.zeros(0, 2, *[4] * spatial)
    assert torch.equal(xf.jit(f)(x).cpu(), expected)
    assert torch.equal(xf.grad(lambda x: f(x).sum())(x).cpu(), expected)
