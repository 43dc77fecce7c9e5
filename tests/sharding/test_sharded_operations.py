"""torch's operations on sharded arrays, and inside of `shard_map`, with gradients, against eager.

Sizes become multiples of the mesh's, and each array is sharded at random; in a `shard_map`, each
device has an example of its own of an array, or all of it. Left out: `resized.LEFT_OUT`, dtypes but
float64 and int64, derivatives but gradients, `shard_map` over more than one axis.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import xfunc as xf
from benchmarks.operations import arrays
from tests.support import resized
from tests.support.resized import Resized
from xfunc import NamedSharding, P

AXES = {"x": 4, "y": 2}  # of the fixture `mesh`


def enlarged(case: Resized) -> tuple[list[torch.Tensor], tuple[Any, Any]]:
    """Tensors, of sizes that the mesh divides if eager torch takes them, and the expected."""
    sizes = [{n: unit * -(-n // unit) for n in case.sizes} for unit in (8, 4, 1)]
    found = [(tensors, case.eager(tensors)) for tensors in map(case.resized, sizes)]
    return next((tensors, expected) for tensors, expected in found if expected is not None)


def random_spec(x: torch.Tensor, draw: random.Random) -> P:
    """A spec that an array can have."""
    names, free = [], set(AXES)
    for n in x.shape:
        axes = draw.choice(["", "x", "y", "xy"])
        count = 8 if axes == "xy" else AXES.get(axes, 1)
        fits = n % count == 0 and free.issuperset(axes)
        names.append(tuple(axes) if fits else None)
        free -= set(axes) if fits else set()
    return P(*names)


@pytest.mark.sample(24, seed=0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", resized.names())
def test_operation_on_sharded_arrays(name: str, mesh: xf.Mesh) -> None:
    case, draw = Resized(name), random.Random(name)
    tensors, expected = enlarged(case)
    shardings = [NamedSharding(mesh, random_spec(x, draw)) for x in tensors]
    sharded = xf.device_put(tensors, shardings)
    case.check(xf.jit(case.with_gradient(case.outputs)), sharded, expected)


@pytest.mark.sample(24, seed=0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", resized.names())
def test_operation_in_shard_map(name: str, mesh: xf.Mesh) -> None:
    case, draw = Resized(name), random.Random(name)
    tensors, same = enlarged(case)
    is_split = [draw.random() < 0.5 for _ in tensors]
    examples = [tensors, *(_changed(tensors, is_split, k) for k in range(1, AXES["x"]))]
    each = [e for e in map(case.eager, examples) if e is not None]
    if len(each) < len(examples) or len({_shapes(e) for e in each}) > 1:
        examples, each = [tensors] * AXES["x"], [same] * AXES["x"]

    def one(*parts: torch.Tensor) -> Any:
        own = [x[0] if split else x for x, split in zip(parts, is_split, strict=True)]
        return xf.tree.map(lambda a: a[None], case.outputs(*own))

    specs = tuple(P("x") if split else P() for split in is_split)
    mapped = xf.shard_map(one, mesh=mesh, in_specs=specs, out_specs=P("x"))
    columns = zip(*examples, strict=True)
    given = [torch.stack(c) if s else c[0] for c, s in zip(columns, is_split, strict=True)]
    results = xf.tree.map(lambda *r: torch.stack([*map(torch.as_tensor, r)]), *(e[0] for e in each))
    by = zip(case.watched, zip(*(e[1] for e in each), strict=True), strict=True)
    gradients = tuple(torch.stack(g) if is_split[k] else sum(g) for k, g in by)
    case.check(xf.jit(case.with_gradient(mapped)), given, (results, gradients), tensors)


def _changed(tensors: Sequence[torch.Tensor], is_split: Sequence[bool], k: int) -> Any:
    return [
        x * (1 - 0.03 * k) if split and x.is_floating_point() else x
        for x, split in zip(tensors, is_split, strict=True)
    ]


def _shapes(expected: Any) -> tuple[torch.Size, ...]:
    return tuple(a.shape for a in arrays(expected))


@pytest.mark.parametrize("right", [(8,), (8, 16), (8, 8, 4), (2, 8, 8, 4)], ids=str)
@pytest.mark.parametrize("left", [(8,), (16, 8), (8, 4, 8), (2, 8, 4, 8)], ids=str)
def test_products_of_sharded_arrays(
    left: tuple[int, ...], right: tuple[int, ...], mesh: xf.Mesh
) -> None:
    draw, generator = random.Random(0), torch.Generator().manual_seed(0)
    a, b = (torch.randn(s, generator=generator, dtype=torch.float64) for s in (left, right))

    def loss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ b).sin().sum()

    expected = torch.func.grad_and_value(loss, (0, 1))(a, b)
    for _ in range(4):
        given = [xf.device_put(x, NamedSharding(mesh, random_spec(x, draw))) for x in (a, b)]
        value, gradients = xf.device_get(xf.jit(xf.value_and_grad(loss, (0, 1)))(*given))
        torch.testing.assert_close((gradients, value), expected)
