"""Reductions of narrow numbers accumulate in float32."""

import pytest
import torch

import xfunc as xf
from xfunc.core.device import TRACER
from xfunc.hlo import Builder, Module, Shape, verify
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import ops as hlo
from xfunc.hlo.contents import Contents
from xfunc.hlo.passes.accumulate import accumulate_wide, compute_wide

from .conftest import Lower, Run

pytestmark = pytest.mark.quick

F16, F32, BF16 = torch.float16, torch.float32, torch.bfloat16
NARROW = pytest.mark.parametrize("dtype", [BF16, F16])


def widened(module: Module, change=accumulate_wide) -> Module:
    """A copy of the module after the pass."""
    found = Module.from_bytes(module.to_bytes())
    change(Contents(found.proto))
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
def test_accumulate_wide_sums_and_products(lower: Lower, run: Run, opcode, function, dtype) -> None:
    x = torch.tensor([1.5, 2.25, -0.75, 3.0]).to(dtype)
    module = Module.from_bytes(xf.jit(function).trace(x).lower().traced.parts.lowering.hlo)
    # Rules of our own tracer widen; for torch_xla, the pass is not needed if this fails.
    assert set(types(module, opcode)) == {F32 if TRACER == "own" else dtype}
    wide = widened(module)
    assert set(types(wide, opcode)) == {F32}
    for found, expected in zip(run(wide, [x]), function(x), strict=True):
        assert torch.equal(found, expected)


def reduction(opcode: str, dtype: torch.dtype) -> Module:
    b = Builder("f")
    c = b.computation("f")
    x = c.parameter(Shape(dtype, (4, 3)))
    made = hlo.reduce(c, x, c.constant(0, dtype), [1], opcode)
    again = hlo.reduce(c, x, c.constant(1, dtype), [0], opcode)
    return b.build(c.build(c.tuple([made, again])))


@pytest.mark.parametrize(
    ("opcode", "dtype"), [("maximum", BF16), ("minimum", F16), ("add", F32), ("add", torch.int32)]
)
def test_accumulate_wide_leaves_other_reductions(opcode: str, dtype: torch.dtype) -> None:
    module = reduction(opcode, dtype)
    assert widened(module).to_bytes() == module.to_bytes()


def test_accumulate_wide_converts_operand_once() -> None:
    wide = widened(reduction("add", BF16))
    assert types(wide, "convert") == [F32, F32, BF16, F32, BF16]  # x, 0, rounded; 1, rounded
    assert set(types(wide, "add")) == {F32}
    assert wide.entry.root.shape == Shape.of_tuple([Shape(BF16, (4,)), Shape(BF16, (3,))])


def test_accumulate_wide_keeps_shardings() -> None:
    module = reduction("add", BF16)
    first = next(i for i in module.entry.proto.instructions if i.opcode == "reduce")
    first.sharding.type = pb.OpSharding.REPLICATED
    wide = widened(Module.from_bytes(module.to_bytes()))
    said = [i.opcode for i in wide.entry.proto.instructions if i.HasField("sharding")]
    assert said == ["reduce", "convert"]


@pytest.mark.parametrize(("dtype", "inside"), [(F16, F32), (BF16, BF16), (F32, F32)])
def test_compute_wide_float16_dot(run: Run, dtype: torch.dtype, inside: torch.dtype) -> None:
    x = torch.rand(8, 3000, generator=torch.Generator().manual_seed(0)).to(dtype)
    module = Module.from_bytes(
        xf.jit(lambda x: torch.rsqrt(x @ x.T)).lower(x).traced.parts.lowering.hlo
    )
    wide = widened(module, compute_wide)
    assert types(wide, "dot") == types(wide, "rsqrt") == [inside]
    (found,) = run(wide, [x])
    exact = torch.rsqrt((x.double() @ x.double().T).to(dtype).double()).to(dtype)
    if dtype != F32:
        assert torch.equal(found, exact)
