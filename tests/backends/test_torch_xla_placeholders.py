"""Placeholders of torch_xla's own transforms, which outlive a trace that has failed."""

from __future__ import annotations

import pytest

from tests.support.fresh import Server

BEGIN = """
import torch
{first}
from torch_xla.core import xla_builder
import xfunc as xf

f = xf.jit(lambda x: x * 2)
theirs = torch.ones(3).to("xla")
bare = xla_builder.create_placeholder_tensor((3,), torch.float32)
derived = bare + theirs
watched = (derived * torch.ones(3, device="xla", requires_grad=True)).sum()
pending = theirs + 4

class Placeless(torch.Tensor):  # One whose device cannot be asked for.
    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (2,), dispatch_device=True)

    @classmethod
    def __torch_dispatch__(cls, *args, **kwargs):
        raise RuntimeError("tensor does not have a device")

placeless = Placeless()

def in_place(x):  # It leaves values in a cycle of C++.
    y = x * 2
    y[0] = y[1] * y[0]
    return (x * 3).sum()

assert xf.grad(in_place)(torch.ones(2)).tolist() == [3, 3]
leaked = []
try:
    xf.jit(lambda x: leaked.append(x * 2))(torch.ones(2))
except xf.errors.XfuncError:
    pass
bare_too = xla_builder.create_placeholder_tensor((3,), torch.float32)
fake = torch._subclasses.FakeTensorMode().from_tensor(torch.empty(2, device="xla"))

def refused(fun, *args):
    try:
        fun(*args)
    except xf.errors.UnsupportedOpError as error:
        assert "was given a tensor without data" in str(error), error
    else:
        raise AssertionError("not refused")
"""
USES = {
    "a trace": "assert f(torch.ones(3)).tolist() == [2, 2, 2]",
    "what is their own": "assert f(pending).tolist() == [10, 10, 10]",
    "a placeholder as argument": "refused(f, bare)",
    "an argument computed from one": "refused(f, derived)",
    "a captured placeholder": "refused(xf.jit(lambda x: x + bare), torch.ones(3))",
    "a captured one computed from it": "refused(xf.jit(lambda x: x + derived), torch.ones(3))",
    "a gradient": "assert xf.grad(lambda x: (x * x).sum())(theirs).tolist() == [2, 2, 2]",
}
END = """
more = bare * 2
assert xf.jit(torch.neg)(torch.ones(3)).tolist() == [-1, -1, -1]
del bare
still = more + 1
assert xf.jit(torch.exp)(torch.zeros(3)).tolist() == [1, 1, 1]
assert pending.tolist() == [5, 5, 5]
"""


@pytest.mark.slow
@pytest.mark.torch_xla
@pytest.mark.parametrize("first", ["import torch_xla", "import xfunc; xfunc.devices()"])
@pytest.mark.parametrize("use", USES)
def test_torch_xla_placeholders_beside_traces(use: str, first: str, fresh: Server) -> None:
    found = fresh.run(BEGIN.format(first=first) + USES[use] + END)
    assert found.returncode == 0, found.stderr


@pytest.mark.slow
@pytest.mark.torch_xla
def test_torch_xla_failed_scan_leaves_traces_intact(fresh: Server) -> None:
    code = """
import sys, torch, torch_xla
import xfunc as xf

module, x = torch.nn.GRU(4, 5), torch.randn(3, 7, 4)
try:
    module(x)
except RuntimeError as error:
    kept = error
assert "Expected all tensors in the given list to be XLA tensors" in str(kept)
assert xf.jit(torch.neg)(torch.ones(3)).tolist() == [-1, -1, -1]
apply, params, buffers = xf.functional(module)
(out, _), _ = xf.jit(apply)(params, buffers, x)
assert out.shape == (3, 7, 5) and out.isfinite().all()
"""
    found = fresh.run(code)
    assert found.returncode == 0, found.stderr
