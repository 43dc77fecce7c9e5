"""Traced code refuses the wrong inputs in torch's database of operations, as eager torch does."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import xfunc as xf
from benchmarks import operations

VALUES = {
    "cov": 2,  # negative weights
    "gather": 1,  # indices out of bounds
    "scatter": 1,
    "scatter_add": 1,
    "masked_fill": 1,  # a tensor with a number that the dtype cannot hold
}
"""Of these, so many are wrong only for values of tensors, which a trace does not know."""
MOST_DIMENSIONS = {"amax": 2, "amin": 2, "aminmax": 2}
"""Of these, so many have more than 64 dimensions, which torch_xla's runtime can take."""
PARTS = 120
"""The cases, each with the operations that its number falls to: to load them takes seconds."""


def wrong_inputs(op: Any) -> Iterator[Any]:
    """Samples that torch refuses on the CPU."""
    try:
        found = list(op.error_inputs("cpu"))
    except RuntimeError:  # A few want CUDA.
        return
    for each in found:
        sample = each.sample_input
        if isinstance(sample.input, torch.Tensor):
            try:
                op.op(sample.input, *sample.args, **sample.kwargs)
            except Exception:
                yield sample


@pytest.mark.sample(48, seed=0)
@pytest.mark.parametrize("part", range(PARTS))
def test_error_inputs_of_torch_are_refused(part: int) -> None:
    entries = operations.entries()
    names = [n for n in sorted(entries) if entries[n].error_inputs_func is not None]
    assert len(names) > PARTS
    runtime = os.environ.get("XFUNC_BACKEND") or "torch_xla"
    most = MOST_DIMENSIONS if runtime == "torch_xla" else {}
    for name in names[part::PARTS]:
        found = accepted(entries[name])
        assert len(found) == (VALUES | most).get(name, 0), (name, found)


def accepted(op: Any) -> list[Any]:
    """The wrong samples that a trace does not refuse."""
    found: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in wrong_inputs(op):
            args, kwargs = sample.args, sample.kwargs
            try:
                xf.jit(lambda x, op=op, a=args, k=kwargs: op.op(x, *a, **k))(sample.input)
            except Exception:
                continue
            found.append(sample)
    return found


def test_error_of_torch_names_the_user_line() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.trace(x)

    with pytest.raises(
        RuntimeError, match="trace: expected a matrix, but got tensor with dim 3"
    ) as e:
        xf.jit(f)(torch.ones(2, 2, 2))
    (note,) = e.value.__notes__
    assert "raised by torch.trace(float32[2,2,2]) (while tracing" in note
    assert "test_error_inputs.py" in note
