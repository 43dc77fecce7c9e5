"""Products with a transposed left operand are computed the way that transposes the smaller one."""

import pytest
import torch

from tests.internals.hlo.builder import Builder
from xfunc.hlo import Module, Shape, verify
from xfunc.hlo.passes.orient import orient_products

from .conftest import Lower, Run

pytestmark = pytest.mark.quick


def oriented(module: Module) -> Module:
    found = Module.from_bytes(module.to_bytes())
    orient_products(found.proto)
    found = Module(found.proto)
    verify(found)
    return found


def products(module: Module) -> list[tuple[int, ...]]:
    return [i.shape.dims for c in module.computations for i in c.instructions if i.opcode == "dot"]


def barriers(module: Module) -> int:
    return str(module).count("opt-barrier(")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.int32])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_orient_products_transposes_smaller_operand(lower: Lower, run: Run, batch, dtype) -> None:
    shape = torch.Size((*batch, 16, 256))
    g = (torch.arange(float(shape.numel())) % 7).to(dtype).reshape(shape)
    x = g[..., :16].contiguous() + 1
    expected = torch.einsum("...ki,...kj->...ij", g, x)
    contract = torch.bmm if batch else torch.mm
    module = lower(lambda g, x: [contract(g.mT, x)], [g, x])
    found = oriented(module)
    assert products(module) == [(*batch, 256, 16)]
    assert products(found) == [(*batch, 16, 256)]
    assert barriers(found) == 1
    assert torch.equal(run(found, [g, x])[0], expected)


def test_orient_products_several_contracted_dims(run: Run) -> None:
    a = (torch.arange(3 * 2 * 8 * 256.0) % 7).reshape(3, 2, 8, 256)
    b = a[..., :16].contiguous() + 1
    made = Builder("product")
    body = made.computation("product")
    operands = [body.parameter(Shape(x.dtype, x.shape)) for x in (a, b)]
    product, proto = body.instruction("dot", Shape(a.dtype, (3, 256, 16)), operands)
    d = proto.dot_dimension_numbers
    for batch in (d.lhs_batch_dimensions, d.rhs_batch_dimensions):
        batch.append(0)
    for contracted in (d.lhs_contracting_dimensions, d.rhs_contracting_dimensions):
        contracted.extend((1, 2))
    module = made.build(body.build(body.tuple([product])))
    found = oriented(module)
    assert products(found) == [(3, 16, 256)]
    expected = torch.einsum("bhki,bhkj->bij", a, b)
    assert torch.equal(run(found, [a, b])[0], expected)


@pytest.mark.parametrize("shape", [(3, 2, 256), (3, 16, 300)])
def test_orient_products_leaves_batches_that_gain_nothing(lower: Lower, shape) -> None:
    g = torch.ones(shape)
    module = lower(lambda g: [torch.bmm(g.mT, g[..., :16])], [g])
    assert str(oriented(module)) == str(module)


def test_orient_products_keeps_dot_transposed_afterwards(lower: Lower, run: Run) -> None:
    x, g = torch.rand(4, 2), torch.rand(4, 6)
    found = oriented(lower(lambda x, g: [torch.mm(x.mT, g).mT], [x, g]))
    assert products(found) == [(2, 6)]
    assert barriers(found) == 1
    torch.testing.assert_close(run(found, [x, g])[0], g.mT @ x)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: [torch.mm(a, b.mT)],
        lambda a, b: [torch.mm(a.mT, b)],
        lambda a, b: [torch.mm(b.mT, a)],
    ],
)
def test_orient_products_leaves_other_dots(lower: Lower, function) -> None:
    a = torch.rand(4, 4)
    module = lower(function, [a, a + 1])
    assert str(oriented(module)) == str(module)
