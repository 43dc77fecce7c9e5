"""A fixed part of torch's database of operations, each in two dtypes and under all transforms.

``python -m tests.sweep operations`` runs all of it, in all dtypes and with all samples.
"""

import pytest
import torch

from benchmarks import operations
from tests.support.tiers import draw

FLOATING = ["float64", "float32", "complex64", "bfloat16", "float16"]
EXACT = ["int64", "bool"]
TRANSFORMS = ["jit", "vmap", "grad", "vmap(grad)", "jvp", "grad(grad)", "vjp"]


def drawn():
    """One operation in 12, drawn with seed 0, each with a floating and an exact dtype."""
    for k, name in enumerate(sorted(draw(operations.entries(), 12, seed=0))):
        yield name, [FLOATING[k % len(FLOATING)], EXACT[k % len(EXACT)]]


@pytest.mark.parametrize("part", range(4))
def test_drawn_operations_are_right_or_refused_by_name(part):
    units = [
        unit
        for name, dtypes in [*drawn()][part::4]
        for unit in operations.units(dtypes, TRANSFORMS, [name], samples=1)
    ]
    found = operations.measure(units)
    assert sum(f.status == "right" for f in found) > 60
    assert [f for f in found if f.status in ("wrong", "crash", "error")] == []


@pytest.mark.filterwarnings("ignore")  # torch warns of its own samples.
def test_samples_of_drawn_operations_have_elements():
    """With empty arrays, every result would be right."""
    empty = []
    for name, _ in drawn():
        op = operations.entries()[name]
        dtype = next((d for d in (torch.float32, torch.int64) if d in op.dtypes), torch.bool)
        for sample in operations.samples_of(op, dtype, 1):
            given = operations.arrays((sample.input, tuple(sample.args), sample.kwargs))
            if given and not any(a.numel() for a in given):
                empty.append(name)
    assert empty == []
