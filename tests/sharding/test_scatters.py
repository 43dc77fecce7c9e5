"""Scatters and gathers of sharded arrays, whose shardings XLA's partitioner has to reconcile."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from tests.support.divided import spec_of
from xfunc.sharding import Mesh, NamedSharding, P, make_mesh

MESHES = [((8,), ("a",)), ((4, 2), ("a", "b")), ((2, 2, 2), ("a", "b", "c"))]


def put(x: torch.Tensor, mesh: Mesh, spec: P) -> torch.Tensor:
    return xf.device_put(x, NamedSharding(mesh, spec))


# The partitioner mistakes each of these for a scatter that it can divide along the positions.
WRONG = [
    ((2, 2, 2), (2, 16, 16), (2, 16, 16), 0, P("b", None, "a"), P(), P(None, "c", ("b", "a"))),
    ((2, 2, 2), (4, 4), (4, 8), 1, P(("b", "c")), P("c", ("b", "a")), P(("b", "a"), "c")),
    ((2, 2, 2), (8, 4, 4), (2, 4, 4), 0, P("c", None, "b"), P(None, "ac"), P("c", None, "b")),
    ((4, 2), (4, 16, 8), (8, 16, 8), 0, P(None, None, "a"), P("a", "b"), P(None, "b")),
]


@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize(("sizes", "base", "shape", "dim", "x", "i", "v"), WRONG)
def test_scatter_of_operands_sharded_apart(
    sizes: tuple[int, ...],
    base: tuple[int, ...],
    shape: tuple[int, ...],
    dim: int,
    x: P,
    i: P,
    v: P,
) -> None:
    mesh = make_mesh(sizes, tuple("abc"[: len(sizes)]))
    i = P(*(tuple(s) if isinstance(s, str) else s for s in i))
    random = torch.Generator().manual_seed(0)
    index = torch.randint(base[dim], shape, generator=random)
    args = torch.zeros(base), index, torch.randint(-9, 9, shape, generator=random).float()
    placed = [put(t, mesh, spec) for t, spec in zip(args, (x, i, v), strict=True)]

    def f(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        return [x.scatter_add(dim, i, v), x.scatter_reduce(dim, i, v, "amax")]

    for found, want in zip(xf.jit(f)(*placed), f(*args), strict=True):
        assert torch.equal(found.cpu(), want)


Case = tuple[Callable[..., torch.Tensor], list[torch.Tensor]]


def case_of(draw: random.Random, kind: str) -> Case:
    """A function, and integers as floating numbers for it: sums in any order are equal."""
    random = torch.Generator().manual_seed(draw.randrange(2**31))
    shape = tuple(draw.choice([4, 8, 16]) for _ in range(draw.choice([2, 3])))
    dim = draw.randrange(len(shape))
    n = draw.choice([2, 4, 8])
    part = (*shape[:dim], n, *shape[dim + 1 :])

    def floats(*size: int) -> torch.Tensor:
        return torch.randint(-9, 9, size, generator=random).float()

    def indices(end: int, *size: int) -> torch.Tensor:
        return torch.randint(end, size, generator=random)

    base = floats(*shape)
    if kind == "gather":
        return lambda x, i: x.gather(dim, i), [base, indices(shape[dim], *part)]
    if kind == "gather_gradient":

        def gradient(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return torch.func.grad(lambda x: (x.gather(dim, i) * v).sum())(x)

        return gradient, [base, indices(shape[dim], *part), floats(*part)]
    if kind == "scatter":  # of unequal places: torch does not say which of equal ones wins
        places = torch.rand(shape, generator=random).argsort(dim).narrow(dim, 0, min(n, shape[dim]))
        return lambda x, i, v: x.scatter(dim, i, v), [base, places, floats(*places.shape)]
    if kind == "scatter_add":
        add = lambda x, i, v: x.scatter_add(dim, i, v)  # noqa: E731
        return add, [base, indices(shape[dim], *part), floats(*part)]
    if kind == "index_put":
        add = lambda x, i, j, v: x.index_put((i, j), v, accumulate=True)  # noqa: E731
        i, j = indices(shape[0], n), indices(shape[1], n)
        return add, [base, i, j, floats(n, *shape[2:])]
    if kind == "index_add":
        add = lambda x, i, v: x.index_add(dim, i, v)  # noqa: E731
        return add, [base, indices(shape[dim], n), floats(*part)]

    def embedding(w: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda w: (F.embedding(i, w) * v).sum())(w)

    return embedding, [floats(16, 8), indices(16, *shape[:2]), floats(*shape[:2], 8)]


KINDS = "gather gather_gradient scatter scatter_add index_put index_add embedding".split()


@pytest.mark.slow
@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(10))
def test_scatters_of_random_shardings(kind: str, seed: int) -> None:
    """Programs of 8 cases each: 560 cases by each partitioner."""
    draw = random.Random(f"{kind} {seed}")
    mesh = make_mesh(*draw.choice(MESHES))
    cases = [case_of(draw, kind) for _ in range(8)]
    specs = [[spec_of(draw, tuple(t.shape), mesh, 0.7) for t in args] for _, args in cases]
    placed = [
        [put(t, mesh, s) for t, s in zip(args, of, strict=True)]
        for (_, args), of in zip(cases, specs, strict=True)
    ]

    def f(every: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        return [g(*args) for (g, _), args in zip(cases, every, strict=True)]

    found = xf.jit(f)(placed)
    wrong = [
        (f"{kind} {[tuple(t.shape) for t in args]}", of)
        for y, (g, args), of in zip(found, cases, specs, strict=True)
        if not torch.equal(y.cpu(), g(*args))
    ]
    assert not wrong, mesh.shape
