"""Random programs of sharded arrays, with constraints that leave dimensions to XLA, in eager torch.

Their operations are those of which XLA's partitioner divides windows, sorts and scatters: it fills
up uneven parts with numbers that must not take part.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.divided import spec_of
from xfunc.sharding import Mesh, NamedSharding, P, make_mesh

Tensor = torch.Tensor
Constrain = Callable[[Tensor, int], Tensor]
Step = Callable[[Tensor], Tensor]
MESHES = [((8,), ("a",)), ((4, 2), ("a", "b")), ((2, 2, 2), ("a", "b", "c"))]
SIZES = [2, 3, 4, 4, 6, 7, 8, 8, 12, 16]


def apart(x: Tensor) -> Tensor:
    """Different numbers: torch does not say which of equal ones comes first."""
    return x + torch.linspace(0, 0.01, x.numel(), dtype=x.dtype, device=x.device).reshape(x.shape)


def scattered(draw: random.Random, shape: tuple[int, ...], dim: int) -> tuple[str, Step]:
    kind = draw.choice(["amin", "amin", "amax", "prod", "sum", "mean"])
    include_self = draw.random() < 0.7
    n = draw.choice([m for m in SIZES if m <= 2 * shape[dim]])
    part = (*shape[:dim], n, *shape[dim + 1 :])
    values = torch.Generator().manual_seed(draw.randrange(2**31))
    index = torch.randint(shape[dim], part, generator=values)
    source = torch.randn(part, generator=values, dtype=torch.float64)

    def step(x: Tensor) -> Tensor:
        src = source + x.mean(dim, keepdim=True)
        return apart(x.scatter_reduce(dim, index, src, kind, include_self=include_self))

    return f"{kind} of {n}, include_self={include_self},", step


def step_of(draw: random.Random, shape: tuple[int, ...]) -> tuple[str, Step]:
    """A function of an array of this shape, and what it does."""
    dim = draw.randrange(len(shape))
    n = shape[dim]
    some = draw.randint(1, n)
    shift = draw.randint(1, n)
    values = torch.Generator().manual_seed(draw.randrange(2**31))
    square = torch.randn(n, n, generator=values, dtype=torch.float64) / n**0.5
    places = torch.randint(n, (draw.choice([n, 2, 4, 8]),), generator=values)
    reduction, scatter = scattered(draw, shape, dim)
    steps: dict[str, Step] = {
        "cummax": lambda x: apart(x.cummax(dim)[0]),
        "cummin": lambda x: apart(x.cummin(dim)[0]),
        "places of cummax": lambda x: x.gather(dim, x.cummax(dim)[1]),
        "cumsum": lambda x: x.cumsum(dim) / n,
        "logcumsumexp": lambda x: x.logcumsumexp(dim),
        "topk": lambda x: x.topk(some, dim)[0],
        "places of topk": lambda x: x.gather(dim, x.topk(some, dim, largest=False)[1].flip(dim)),
        "sort": lambda x: x.sort(dim, descending=True)[0],
        "argsort": lambda x: x.gather(dim, x.argsort(dim)),
        "amax": lambda x: x - x.amax(dim, keepdim=True),
        "amin": lambda x: x + x.amin(dim, keepdim=True) * 0.5,
        "logsumexp": lambda x: x - x.logsumexp(dim, keepdim=True),
        "softmax": lambda x: x.softmax(dim) * 4,
        "product": lambda x: torch.movedim(torch.movedim(x, dim, -1).tanh() @ square, -1, dim),
        "roll": lambda x: x.roll(shift, dim),
        "flip": lambda x: x.flip(dim) * 1.5,
        "narrow": lambda x: x.narrow(dim, n - some, some),
        "steps": lambda x: x[(slice(None),) * dim + (slice(some - 1, n, shift),)],
        "written": lambda x: torch.slice_scatter(x.cos(), x.narrow(dim, 0, 1), dim, some - 1, some),
        "diff": lambda x: torch.diff(x, dim=dim, prepend=x.narrow(dim, n - 1, 1)),
        "unfold": lambda x: x.unfold(dim, some, shift).mean(-1),
        "repeated": lambda x: apart(
            x.repeat_interleave(2, dim)[(slice(None),) * dim + (slice(n),)]
        ),
        "cat": lambda x: torch.cat([x, x.narrow(dim, 0, some).sin()], dim),
        "pad": lambda x: torch.cat([x.narrow(dim, 0, 1) * 0.0, x], dim),
        "index": lambda x: apart(x.index_select(dim, places)),
        "index_add": lambda x: x.index_add(dim, places, x.index_select(dim, places.flip(0))),
        "transpose": lambda x: x.transpose(0, dim),
        "tanh": lambda x: x.tanh() * 2,
        reduction: scatter,
    }
    often = [reduction] * 5 + ["cummax", "cummax", "topk", "topk", "cummin", "places of topk"]
    often += ["steps", "steps", "unfold"]
    name = draw.choice([*steps, *often])
    return f"{name} along {dim}", steps[name]


def free_spec(draw: random.Random, shape: tuple[int, ...], mesh: Mesh) -> P:
    """A random constraint; most dimensions that it does not shard are left to XLA."""
    spec = spec_of(draw, shape, mesh, draw.choice([0.0, 0.4, 0.8]))
    entries = [*spec, *[None] * (len(shape) - len(spec))]
    return P(*(P.UNCONSTRAINED if e is None and draw.random() < 0.7 else e for e in entries))


class Program:
    """A chain of steps with a constraint after some of them."""

    def __init__(self, draw: random.Random, mesh: Mesh):
        self.shape = tuple(draw.choice(SIZES) for _ in range(draw.choice([2, 2, 3])))
        values = torch.Generator().manual_seed(draw.randrange(2**31))
        self.x = torch.randn(self.shape, generator=values, dtype=torch.float64)
        self.names = [str(self.shape)]
        self.steps: list[tuple[Step, P | None]] = []
        x = self.x
        for _ in range(draw.randint(2, 6)):
            name, step = step_of(draw, tuple(x.shape))
            x = step(x)
            spec = free_spec(draw, tuple(x.shape), mesh) if draw.random() < 0.6 else None
            self.steps.append((step, spec))
            self.names += [name, f"{tuple(x.shape)} {spec}"]
        self.weight = torch.randn(x.shape, generator=values, dtype=torch.float64)

    def run(self, x: Tensor, constrain: Callable[[Tensor, P], Tensor]) -> Tensor:
        for step, spec in self.steps:
            x = step(x)
            x = x if spec is None else constrain(x, spec)
        return x


@pytest.mark.sample(150, seed=0)
@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize("number", range(600))
def test_random_programs_with_unconstrained_dimensions(number: int, seed: int) -> None:
    draw = random.Random(f"{seed} {number}")
    mesh = make_mesh(*draw.choice(MESHES))
    program = Program(draw, mesh)

    def both(x: Tensor, w: Tensor, grad: Any, constrain: Any) -> tuple[Tensor, Tensor]:
        def loss(x: Tensor) -> Tensor:
            return (program.run(x, constrain) * w).sum()

        return program.run(x, constrain), grad(loss)(x)

    def constrained(x: Tensor, spec: P) -> Tensor:
        return xf.with_sharding_constraint(x, NamedSharding(mesh, spec))

    given = program.x, program.weight
    placed = [
        xf.device_put(t, NamedSharding(mesh, spec_of(draw, tuple(t.shape), mesh, 0.7)))
        for t in given
    ]
    found = xf.device_get(xf.jit(lambda x, w: both(x, w, xf.grad, constrained))(*placed))
    want = both(*given, torch.func.grad, lambda x, spec: x)
    for got, exact in zip(found, want, strict=True):
        assert torch.allclose(got, exact, rtol=1e-9, atol=1e-9), (mesh.shape, program.names)


@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize("k", [1, 3])
def test_topk_of_few_elements_on_each_device(k: int, seed: int) -> None:
    # XLA refused what it had partitioned: "Expected instruction to have shape equal to f64[2,8]".
    mesh = make_mesh((8,), ("a",))
    x = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    whole = NamedSharding(mesh, P(None, None))
    first = xf.jit(lambda x: xf.with_sharding_constraint(x.topk(k, 1)[0], whole))
    found = first(xf.device_put(x, NamedSharding(mesh, P(None, "a"))))
    assert torch.equal(found.cpu(), x.topk(k, 1)[0])
