"""Tracing, compiling and running in a process that cannot import torch_xla."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.quick

CODE = """
import sys
sys.modules["torch_xla"] = None
import torch, xfunc as xf

x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3)

def f(x):
    return (torch.softmax(x, -1) * x.cumsum(0)).sum()

def written(x):
    y = x * 2
    y[0].add_(1)
    y.t()[2].copy_(y[:, 0].sin())
    return y

def last(x):
    return xf.scan(lambda c, row: (torch.tanh(c * row), c), x[0], x)[0]

close = torch.testing.assert_close
close(xf.jit(xf.grad(f))(x), torch.func.grad(f)(x))
close(xf.jit(written)(x), written(x))
close(xf.vmap(xf.hessian(lambda r: (r**3).sum()))(x)[0], torch.diag(6 * x[0]))
close(xf.grad(lambda x: last(x).sum())(x), torch.func.grad(
    lambda x: torch.tanh(torch.tanh(x[0] * x[0]) * x[1]).sum())(x))
lowered = xf.jit(f).lower(xf.ShapeDtypeStruct((2, 3), torch.float64))
assert "f64[2,3]" in lowered.as_text()
assert "stablehlo.exponential" in lowered.as_text("stablehlo")
try:
    xf.jit(lambda x: x if x.sum() > 0 else -x)(x)
except xf.errors.ConcretizationError as error:
    assert "line" in str(error) or " in <lambda>" in str(error), error
else:
    raise AssertionError("a traced value was read")
"""


def test_trace_and_run_without_torch_xla() -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    env.pop("XFUNC_BACKEND", None)
    done = subprocess.run([sys.executable, "-c", CODE], env=env, text=True, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
