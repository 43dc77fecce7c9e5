from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.hlo import Builder, ComputationBuilder, Module, Shape, Value, verify
from xfunc.hlo.contents import Contents
from xfunc.hlo.passes.narrow import narrow_products

from .conftest import Lower, Run

pytestmark = pytest.mark.quick

F16, F32, F64, BF16 = torch.float16, torch.float32, torch.float64, torch.bfloat16
Make = Callable[[ComputationBuilder, Value, Value], list[Value]]

NARROW = pytest.mark.parametrize("dtype", [BF16, F16])


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y


def numbers(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of numbers of all sizes, whose products are rounded, overflow or vanish."""
    make = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**15), 2**15, (2, 10_000), generator=make, dtype=torch.int16)
    special = torch.tensor([0.0, -0.0, 1.0, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    x, y = bits.view(dtype)
    return flushed(torch.cat([x, special])), flushed(torch.cat([y, special.flip(0)]))


def flushed(x: torch.Tensor) -> torch.Tensor:
    """Without numbers that are subnormal in float32: XLA takes them for zero on the CPU."""
    return x.masked_fill(x.abs().float() < torch.finfo(F32).smallest_normal, 0.0)


def bits_of(x: torch.Tensor) -> torch.Tensor:
    """The bits; those of all NaNs count as one."""
    return flushed(x).masked_fill(x.isnan(), torch.nan).view(torch.int16)


def shapes(module: Module, opcode: str) -> list[torch.dtype | None]:
    """The types of what instructions make."""
    found = (i for c in module.computations for i in c.instructions if i.opcode == opcode)
    return [i.shape.dtype for i in found]


def made(make: Make, dtype: torch.dtype = BF16) -> Module:
    b = Builder("f")
    c = b.computation("f")
    x, y = c.parameter(Shape(dtype, (4,))), c.parameter(Shape(dtype, (4,)))
    return b.build(c.build(c.tuple(make(c, x, y))))


def narrowed(module: Module) -> Module:
    """A copy of the module after the pass."""
    found = Module.from_bytes(module.to_bytes())
    narrow_products(Contents(found.proto))
    found = Module(found.proto)
    verify(found)
    return found


def wide_product(c: ComputationBuilder, x: Value, y: Value) -> Value:
    return c.multiply(c.convert(x, F32), c.convert(y, F32))


@NARROW
def test_narrow_products_undoes_torch_xla_widening(lower: Lower, dtype: torch.dtype) -> None:
    x = torch.ones(4, dtype=dtype)
    module = lower(lambda x, y: [x * y], [x, x])
    assert shapes(module, "multiply") == [F32]  # else the pass is no longer needed
    assert sorted(map(str, shapes(module, "convert"))) == sorted(map(str, [F32, F32, dtype]))
    module = narrowed(module)
    assert shapes(module, "multiply") == [dtype]
    assert shapes(module, "convert") == []


@NARROW
def test_narrow_products_values_unchanged(lower: Lower, run: Run, dtype: torch.dtype) -> None:
    x, y = numbers(dtype)
    module = lower(lambda x, y: [x * y], [x, y])
    for program in (module, narrowed(module)):
        (found,) = run(program, [x, y])
        assert torch.equal(bits_of(found), bits_of(x * y))
    assert torch.equal(bits_of(xf.jit(product)(x, y).cpu()), bits_of(x * y))


@NARROW
@pytest.mark.parametrize("transform", [lambda f: f, xf.grad], ids=["value", "gradient"])
def test_narrow_products_in_program_and_gradient(
    dtype: torch.dtype, transform: Callable[..., Any]
) -> None:
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, _ = xf.scan(lambda x, y: (x * y * x, None), x, y)
        return (x * x).sum()

    x = torch.ones(4, dtype=dtype)
    module = xf.make_hlo(transform(loss))(x, x.expand(3, 4))
    products = shapes(module, "multiply")
    assert dtype in products
    assert F32 not in products


def test_narrow_products_keeps_product_used_in_float32(run: Run) -> None:
    def both(c: ComputationBuilder, x: Value, y: Value) -> list[Value]:
        wide = wide_product(c, x, y)
        return [c.convert(wide, BF16), wide]

    module = narrowed(made(both))
    assert shapes(module, "multiply") == [F32, BF16]
    assert shapes(module, "convert") == [F32, F32]
    x, y = torch.tensor([[1.1, 2.3, -3.7, 1e20], [0.3, -5.9, 7.7, 1e20]]).to(BF16)
    narrow, wide = run(module, [x, y])
    assert torch.equal(narrow, x * y)
    assert torch.equal(wide, x.float() * y.float())
    assert not torch.equal(wide, narrow.float())


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda c, x, y: [wide_product(c, x, y)], id="result in float32"),
        pytest.param(
            lambda c, x, y: [c.convert(wide_product(c, x, y), F16)], id="another narrow type"
        ),
        pytest.param(
            lambda c, x, y: [c.convert(c.multiply(c.convert(x, F32), wide_product(c, x, y)), BF16)],
            id="a factor in float32",
        ),
        pytest.param(
            lambda c, x, y: [c.convert(c.add(c.convert(x, F32), c.convert(y, F32)), BF16)],
            id="a sum",
        ),
    ],
)
def test_narrow_products_leaves_other_operations(make: Make) -> None:
    module = made(make)
    assert narrowed(module).to_bytes() == module.to_bytes()


@pytest.mark.parametrize("dtype", [F32, F64])
def test_narrow_products_leaves_wide_programs(lower: Lower, dtype: torch.dtype) -> None:
    x = torch.ones(4, dtype=dtype)
    module = lower(lambda x, y: [x * y, (x.to(BF16) * y.to(BF16)).to(dtype)], [x, x])
    narrow = narrowed(module)
    assert shapes(narrow, "multiply") == [dtype, BF16]
    plain = lower(lambda x, y: [x * y + x], [x, x])
    assert narrowed(plain).to_bytes() == plain.to_bytes()


def test_narrow_products_removes_unused_converts() -> None:
    def make(c: ComputationBuilder, x: Value, y: Value) -> list[Value]:
        left = c.convert(x, F32)
        narrow = c.convert(c.multiply(left, c.convert(y, F32)), BF16)
        return [narrow, c.add(left, left), c.add(narrow, x)]

    module = narrowed(made(make))
    opcodes = [i.opcode for i in module.entry.instructions]
    assert sorted(opcodes) == sorted(
        ["parameter", "parameter", "convert", "multiply", "add", "add", "tuple"]
    )
