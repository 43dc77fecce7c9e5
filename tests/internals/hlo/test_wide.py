"""Reductions of narrow numbers accumulate in float32."""

import pytest
import torch

from xfunc.hlo import Module, verify
from xfunc.hlo.contents import Contents
from xfunc.hlo.passes.wide import upcast_f16

from .conftest import Lower, Run

pytestmark = pytest.mark.quick

F16, F32, BF16 = torch.float16, torch.float32, torch.bfloat16
NARROW = pytest.mark.parametrize("dtype", [BF16, F16])


def widened(module: Module) -> Module:
    """A copy of the module after the pass."""
    found = Module.from_bytes(module.to_bytes())
    upcast_f16(Contents(found.proto))
    found = Module(found.proto)
    verify(found)
    return found


def types(module: Module, opcode: str) -> list[torch.dtype | None]:
    """The types of what instructions make."""
    found = (i for c in module.computations for i in c.instructions if i.opcode == opcode)
    return [i.shape.dtype for i in found]


@NARROW
@pytest.mark.parametrize(
    ("opcode", "function"),
    [
        ("reduce", lambda x: [x.sum(), x.prod()]),
        ("reduce-window", lambda x: [x.cumsum(0), x.cumprod(0)]),
        (
            "scatter",
            lambda x: [x[:2].index_put((torch.zeros(4, dtype=torch.int64),), x, accumulate=True)],
        ),
    ],
)
def test_sums_and_products_of_narrow_numbers_accumulate_in_float32(
    lower: Lower, run: Run, opcode, function, dtype
) -> None:
    x = torch.tensor([1.5, 2.25, -0.75, 3.0]).to(dtype)
    module = lower(function, [x])
    assert set(types(module, opcode)) == {F32}
    for found, expected in zip(run(module, [x]), function(x), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize(("dtype", "inside"), [(F16, F32), (BF16, BF16), (F32, F32)])
def test_compute_wide_float16_dot(
    lower: Lower, run: Run, dtype: torch.dtype, inside: torch.dtype
) -> None:
    x = torch.rand(8, 3000, generator=torch.Generator().manual_seed(0)).to(dtype)
    module = lower(lambda x: [torch.rsqrt(x @ x.T)], [x])
    wide = widened(module)
    assert types(wide, "dot") == types(wide, "rsqrt") == [inside]
    (found,) = run(wide, [x])
    exact = torch.rsqrt((x.double() @ x.double().T).to(dtype).double()).to(dtype)
    if dtype != F32:
        assert torch.equal(found, exact)
