"""Options of XLA for one program."""

from __future__ import annotations

import math

import pytest
import torch

import xfunc as xf
from xfunc.errors import CompileError

pytestmark = pytest.mark.usefixtures("pjrt")

FAST = {"xla_cpu_enable_fast_min_max": True}
"""With it, NaN is lost from maxima."""
X, Y = torch.tensor([math.nan, 1.0]), torch.tensor([1.0, math.nan])


def test_jit_compiler_options() -> None:
    x, y = X, Y
    fast, kept = xf.jit(torch.maximum, compiler_options=FAST), xf.jit(torch.maximum)
    assert fast(x, y).isnan().sum() < 2
    assert kept(x, y).isnan().all()
    compiled = kept.lower(x, y).compile(compiler_options=FAST)
    assert compiled(x, y).isnan().sum() < 2
    assert kept.lower(x, y).compile()(x, y).isnan().all()
    assert xf.trace_count(kept) == 1
    for name, value, says, hint in (
        ("xla_fast", True, "No such compile option: 'xla_fast'", "'xla_fast' out, or give it the"),
        (*FAST, "so", "'so' is not a valid bool value", f"{next(iter(FAST))!r} a value"),
    ):
        message = rf"{says}(.|\n)*Hint: (leave|give) the compiler option {hint}"
        with pytest.raises(CompileError, match=message):
            xf.jit(torch.sin, compiler_options={name: value})(x)
    with pytest.raises(ValueError, match=r"jit\(sin\): compiler_options has 'a': \[1\](.|\n)*Hint"):
        xf.jit(torch.sin, compiler_options={"a": [1]})  # pyright: ignore[reportArgumentType]
    assert xf.eval_shape(fast, x, y).shape == (2,)
    assert "maximum" in str(xf.make_hlo(fast)(x, y))
    for outer in (xf.jit(lambda x: fast(x, x)), xf.grad(lambda x: fast(x, x).sum())):
        with pytest.raises(ValueError, match=r"maximum has compiler_options, (.|\n)*outermost jit"):
            outer(torch.ones(2))
    with pytest.raises(ValueError, match="compiler_options together with memory_limit"):
        xf.jit(torch.sin, compiler_options=FAST, memory_limit=10**9)


@pytest.mark.torch_xla
def test_jit_compiler_options_on_torch_xla_are_refused() -> None:
    xf.config.set_backend("torch_xla")
    with pytest.raises(ValueError, match=r"no compiler options(.|\n)*backend 'pjrt'"):
        xf.jit(torch.sin, compiler_options=FAST)(torch.ones(3))


def test_memory_report_ignores_compiler_options() -> None:
    def fun(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sin().sum()

    x, fast = torch.ones(8), xf.jit(fun, compiler_options=FAST)
    assert xf.memory_report(fast, x).rows == xf.memory_report(xf.jit(fun), x).rows


def test_jit_compiler_options_under_autograd() -> None:
    """XLA loses NaN from maxima in both passes, or in neither."""

    def fun(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        high = torch.maximum(x, y)
        return torch.maximum(high**3, high)

    checkpointed = xf.checkpoint(fun)  # The backward pass computes the maxima again.
    for options, lost in ((FAST, True), (None, False)):
        jitted = xf.jit(checkpointed, compiler_options=options)
        compiled = xf.jit(checkpointed).lower(X, Y).compile(compiler_options=options)
        for f in (jitted, compiled):
            x = X.clone().requires_grad_()
            value = f(x, Y)
            (grad,) = torch.autograd.grad(value.sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(grad.sum(), x)
            found = [value, grad, second, torch.func.jvp(f, (X, Y), (Y, X))[0]]
            assert [v.isnan().sum().item() < 2 for v in found] == [lost] * 4
    batched = torch.func.vmap(xf.jit(checkpointed, compiler_options=FAST))
    assert batched(X[None], Y[None]).isnan().sum() < 2
    wrong = xf.jit(torch.sin, compiler_options={"xla_fast": True})
    with pytest.raises(CompileError, match="No such compile option: 'xla_fast'"):
        wrong(torch.ones(2, requires_grad=True))
