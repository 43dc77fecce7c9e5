"""torch's operations with dynamic sizes, and their gradients, against eager torch at each size.

Every dimension of a sample is dynamic; where eager torch wants sizes that belong together, the
dimensions of one size are. Left out: `resized.LEFT_OUT`, dtypes but float64 and int64, derivatives
but gradients, sizes above 12.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support import resized
from tests.support.resized import Resized

LARGEST = 12


def calls(case: Resized, dynamic: Sequence[int]) -> list[tuple[list[torch.Tensor], Any]]:
    """Tensors of several sizes, and what eager torch makes of them."""
    draw = random.Random(0).randint
    sizes = [{n: min(n, LARGEST) for n in dynamic}]
    sizes += [{n: draw(low, high) for n in dynamic} for low, high in [(2, LARGEST)] * 3 + [(1, 3)]]
    found = [(tensors, case.eager(tensors)) for tensors in map(case.resized, sizes)]
    return [(tensors, expected) for tensors, expected in found if expected is not None]


@pytest.mark.sample(24, seed=0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", resized.names())
def test_operation_with_dynamic_sizes(name: str) -> None:
    case = Resized(name)
    options = [case.sizes, *([n] for n in case.sizes)]
    possible = ((dims, calls(case, dims)) for dims in [*options, []])
    dynamic, given = next((d, c) for d, c in possible if len(c) > 1 or not d)
    sizes = {n: xf.Dim(f"D{n}", max=LARGEST) for n in dynamic}
    run = xf.jit(
        case.with_gradient(case.outputs),
        dynamic_shapes=tuple(tuple(map(sizes.get, t.shape)) or None for t in case.tensors),
        buckets={d.name: [LARGEST] for d in sizes.values()} or "auto",
    )
    for tensors, expected in given:
        case.check(run, tensors, expected)
