"""The in-place variants of torch's database of operations, of whole arrays and of parts of them.

Left out: what eager torch refuses (`absent`), dtypes other than these, and second derivatives.
"""

import copy
import functools
from typing import Any

import pytest
import torch

from benchmarks import operations

TRANSFORMS = "jit", "vmap", "grad", "jvp"
DRAWS = "global random generator"
NOT_RIGHT = {  # and what the messages have in common
    "as_strided": "as_strided_ changes the shape",
    "as_strided.partial_views": "as_strided_ changes the shape",
    "cauchy": DRAWS,
    "exponential": DRAWS,
    "geometric": DRAWS,
    "log_normal": DRAWS,
    "normal.in_place": DRAWS,
    "uniform": DRAWS,
    **dict.fromkeys(["index_reduce.mean", "scatter_reduce.mean"], "means of complex numbers"),
    **dict.fromkeys(
        ["squeeze", "squeeze.multiple", "t", "transpose", "unsqueeze"],
        "changes the shape of a view",
    ),
}
DTYPES = "float32", "complex64", "int64", "bool"


@functools.cache
def database() -> dict[str, Any]:
    return {name: op for name, op in operations.entries().items() if op.inplace_variant}


def cases() -> list[tuple[str, str]]:
    found = [(n, d) for n, op in database().items() for d in DTYPES if _has(op, d)]
    # It ends the process in eager torch 2.9.
    return [(n, d) for n, d in found if (n.partition(".")[0], d) != ("mvlgamma", "int64")]


def _has(op: Any, dtype: str) -> bool:
    return operations.DTYPES[dtype] in op.dtypes


def changed_whole(change: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    y = x.clone()
    change(y, *args, **kwargs)
    return y


def changed_part(change: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    y = torch.stack([x, x])
    change(y[0], *args, **kwargs)
    return y


@pytest.mark.sample(16, seed=0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("changed", [changed_whole, changed_part])
@pytest.mark.parametrize(("name", "dtype"), cases())
def test_in_place_variant(name: str, changed: Any, dtype: str) -> None:
    op = copy.copy(database()[name])
    samples = op.sample_inputs
    op.op = functools.partial(changed, op.inplace_variant)
    op.sample_inputs = lambda *args, **kwargs: [
        s for s in samples(*args, **kwargs) if not s.broadcasts_input
    ]
    for found in operations.examine(op, operations.Unit(name, dtype, TRANSFORMS, 1)):
        if found.status == "refused":
            assert NOT_RIGHT[name] in found.detail
        else:
            assert found.status in ("right", "absent"), found.detail
