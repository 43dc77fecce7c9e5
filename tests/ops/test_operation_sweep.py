"""A part of torch's database of operations each day, in all dtypes and under all transforms.

A day takes a part of the operations, each in one floating or complex dtype and in one of int64 and
bool, which change from day to day: after five rounds, each has run in all of its dtypes. The part
is a twentieth, and in continuous integration a third (``TESTS_SWEEP=3``).
``python -m benchmarks operations`` runs all at once.
"""

import os

import pytest
import torch

from benchmarks import operations
from tests.support.day import DAY

SMOOTH = ["float64", "float32", "complex64", "bfloat16", "float16"]
EXACT = ["int64", "bool"]
PARTS = int(os.environ.get("TESTS_SWEEP", "20"))
TRANSFORMS = ["jit", "vmap", "grad", "vmap(grad)", "jvp", "grad(grad)", "vjp"]


def chosen_on(day):
    """The operations of a day, each with its dtypes."""
    part, turn = list(operations.entries())[day % PARTS :: PARTS], day // PARTS
    for k, name in enumerate(part):
        yield name, [SMOOTH[(k + turn) % len(SMOOTH)], EXACT[(k + turn) % len(EXACT)]]


def examined(day, part):
    for name, dtypes in list(chosen_on(day))[part::2]:
        yield from operations.units(dtypes, TRANSFORMS, [name], samples=1)


def test_five_rounds_take_every_operation_in_every_dtype():
    days = range(DAY, DAY + 5 * PARTS)
    taken = {(name, d) for day in days for name, ds in chosen_on(day) for d in ds}
    assert taken == {(name, d) for name in operations.entries() for d in operations.DTYPES}


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("day", [pytest.param(DAY, id=f"day-{DAY}")])
def test_operations_of_the_day_are_right_or_refused_by_name(day, part):
    found = operations.measure(examined(day, part))
    assert sum(f.status == "right" for f in found) > 70
    assert [f for f in found if f.status in ("wrong", "crash", "error")] == []


@pytest.mark.filterwarnings("ignore")  # torch warns of its own samples.
def test_the_sample_of_an_operation_has_numbers():
    """Of arrays without any, every result would be right."""
    empty = []
    for name, _ in chosen_on(DAY):
        op = operations.entries()[name]
        dtype = next((d for d in (torch.float32, torch.int64) if d in op.dtypes), torch.bool)
        for sample in operations.samples_of(op, dtype, 1):
            given = operations.arrays((sample.input, tuple(sample.args), sample.kwargs))
            if given and not any(a.numel() for a in given):
                empty.append(name)
    assert empty == []
