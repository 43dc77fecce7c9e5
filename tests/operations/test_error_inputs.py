"""Traced code refuses the wrong inputs in torch's database of operations, as eager torch does."""

from __future__ import annotations

import functools
import itertools
import os
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from benchmarks import operations
from xfunc.errors import CompileError, XfuncError

VALUES = {
    "cov": 2,  # negative weights
    "gather": 1,  # indices out of bounds
    "scatter": 1,
    "scatter_add": 1,
}
"""Of these, so many are wrong only for values of tensors, which a trace does not know."""
MOST_DIMENSIONS = {"amax": 2, "amin": 2, "aminmax": 2}
"""Of these, so many have more than 64 dimensions, which torch_xla's runtime can take."""
PARTS = 120
"""The cases, each with the operations that its number falls to: to load them takes seconds."""


OTHER_WORDS = {"amax": 2, "amin": 2, "aminmax": 2, "masked_fill": 1}
"""Of these, so many are refused in other words: more than 64 dimensions, and a complex number."""


def wrong_inputs(op: Any) -> Iterator[tuple[Any, str]]:
    """Samples that torch refuses on the CPU, and the first line of what it says."""
    try:
        found = list(op.error_inputs("cpu"))
    except RuntimeError:  # A few want CUDA.
        return
    for each in found:
        sample = each.sample_input
        if isinstance(sample.input, torch.Tensor):
            try:
                op.op(sample.input, *sample.args, **sample.kwargs)
            except Exception as error:
                yield sample, str(error).partition("\n")[0]


@pytest.mark.sample(48, seed=0)
@pytest.mark.parametrize("part", range(PARTS))
def test_error_inputs_of_torch_are_refused_in_its_words(part: int) -> None:
    entries = operations.entries()
    names = [n for n in sorted(entries) if entries[n].error_inputs_func is not None]
    assert len(names) > PARTS
    runtime = os.environ.get("XFUNC_BACKEND") or "torch_xla"
    most = MOST_DIMENSIONS if runtime == "torch_xla" else {}
    for name in names[part::PARTS]:
        accepted, reworded = tried(entries[name])
        assert len(accepted) == (VALUES | most).get(name, 0), (name, accepted)
        assert len(reworded) <= OTHER_WORDS.get(name, 0), (name, reworded)


def tried(op: Any) -> tuple[list[Any], list[tuple[str, Exception]]]:
    """The wrong samples that a trace does not refuse, and refusals in other words than torch's.

    What a trace refuses for a reason of its own, as it does random numbers, may be in its words.
    """
    accepted: list[Any] = []
    reworded: list[tuple[str, Exception]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample, said in wrong_inputs(op):
            args, kwargs = sample.args, sample.kwargs
            try:
                xf.jit(lambda x, op=op, a=args, k=kwargs: op.op(x, *a, **k))(sample.input)
            except Exception as error:
                if said not in str(error) and (
                    isinstance(error, CompileError) or not isinstance(error, XfuncError)
                ):
                    reworded.append((said, error))
                continue
            accepted.append(sample)
    return accepted, reworded


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


@pytest.mark.parametrize("spatial", [1, 2])
def test_convolution_refuses_the_sizes_that_torch_refuses(spatial: int) -> None:
    numbers = itertools.product((1, 2, 3), (1, 2, 3), (1, 2), (0, 1, 2), (1, 2), (0, 1))
    refused = 0
    for size, kernel, stride, padding, dilation, beyond in numbers:
        x = torch.randn(2, 2, *[size] * spatial)
        w = torch.randn(2, 2, *[kernel] * spatial)
        settings = {"stride": stride, "padding": padding, "dilation": dilation}
        for name in ("conv", "conv_transpose"):
            given = settings if name == "conv" else {**settings, "output_padding": beyond}
            f = functools.partial(getattr(F, f"{name}{spatial}d"), **given)
            try:
                expected = f(x, w)
            except RuntimeError as error:
                refused += 1
                words = re.escape(str(error).partition(",")[0].partition("(")[0])
                if re.search(r"output size per channel: \((\d+ x )*0", str(error)):
                    assert 0 in xf.eval_shape(f, x, w).shape  # as with oneDNN
                    continue
                with pytest.raises(RuntimeError, match=words):
                    xf.eval_shape(f, x, w)
            else:
                assert xf.eval_shape(f, x, w).shape == expected.shape
    assert refused > 50


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("pool", [F.avg_pool1d, F.max_pool1d, F.lp_pool1d])
def test_pool_refuses_arrays_smaller_than_its_window(pool: Any, ceil_mode: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return pool(x, *[2] * (pool is F.lp_pool1d), 3, ceil_mode=ceil_mode)

    for size in (1, 2, 3, 4):
        x = torch.rand(1, 1, size)
        try:
            expected = f(x)
        except RuntimeError:
            words = "Output size is too small|Invalid computed output size"
            with pytest.raises(RuntimeError, match=words):
                xf.jit(f)(x)
        else:
            torch.testing.assert_close(xf.jit(f)(x).cpu(), expected)


M = torch.eye(3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.linear(M, M, torch.ones(4)),
        lambda: F.linear(M, M[:1], torch.ones(4)),
        lambda: F.layer_norm(M, (3,), torch.ones(2)),
        lambda: F.layer_norm(M, (3,), torch.ones(3), torch.ones(1)),
        lambda: F.conv1d(M[None], torch.ones(4, 3, 2), torch.ones(3)),
        lambda: F.conv1d(M[None], torch.ones(4, 3, 2), torch.ones(1)),
        lambda: torch.baddbmm(torch.ones(2, 3), M[None], M[None]),
        lambda: torch.addr(torch.ones(2, 3), M[0], M[0]),
        lambda: torch.linalg.solve(torch.ones(4, 3), torch.ones(3)),
        lambda: torch.linalg.solve_triangular(M, torch.ones(4, 2), upper=True),
        lambda: torch.linalg.lu_solve(M, torch.ones(2, dtype=torch.int32), M),
        lambda: torch.linalg.cholesky(torch.ones(4, 3)),
        lambda: torch.linalg.eigvalsh(torch.ones(4, 3)),
        lambda: torch.linalg.slogdet(torch.ones(4, 3)),
        lambda: torch.linalg.householder_product(M, torch.ones(4)),
        lambda: torch.ormqr(M, torch.ones(3), torch.ones(4, 3)),
        lambda: torch.cholesky_solve(torch.ones(4, 2), M),
    ],
)
def test_shapes_that_torch_refuses(call: Callable[[], torch.Tensor]) -> None:
    """Some failed in XLA's compiler, ended the process in LAPACK, or were broadcast."""
    said = r"shape|size|dimension|square|batches"
    for run in (call, xf.jit(call), lambda: xf.vmap(lambda _: call())(torch.ones(2))):
        with pytest.raises(RuntimeError, match=said) as found:
            run()
        assert not isinstance(found.value, XfuncError)
