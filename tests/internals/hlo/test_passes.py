import pytest
import torch

from tests.internals.hlo.builder import Builder
from xfunc.hlo import Module, Shape, verify
from xfunc.hlo.passes.common import dead_code_elimination

from .conftest import Lower, Run

pytestmark = pytest.mark.quick

F32 = torch.float32
X, Y = torch.randn(3, 4), torch.randn(4, 3)


def layer(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    hidden = torch.tanh(x @ y)
    return [hidden.sum(0), hidden + hidden, y.sum()]


def of_opcode(module: Module, opcode: str) -> int:
    (found,) = (i.id for i in module.entry.instructions if i.opcode == opcode)
    return found


@pytest.mark.one_device
def test_dead_code_elimination_removes_unused(run: Run):
    b = Builder("f")
    c = b.computation("unused")
    c.build(c.parameter(Shape(F32)))
    c = b.computation("only the dead call it")
    doomed = c.build(c.parameter(Shape(F32)))
    c = b.computation("effect")
    p = c.parameter(Shape(F32))
    c.multiply(p, p)
    marked = c.custom_call("Sharding", [p], p.shape, side_effect=True)
    effect = c.build(p)
    c = b.computation("f")
    x, y = c.parameter(Shape(F32)), c.parameter(Shape(F32))
    c.call(doomed, [c.add(x, x)])
    called = c.call(effect, [x])
    module = b.build(c.build(c.tuple([c.multiply(x, x)])))
    found = dead_code_elimination(module)
    verify(found)
    assert [c.name for c in found.computations] == [effect.name, module.entry.name]
    entry = [i.opcode for i in found.entry.instructions]
    assert entry == ["parameter", "parameter", "call", "multiply", "tuple"]
    assert found.instruction(called.id).operands[0].id == x.id
    assert [i.id for i in found.computations[0].instructions] == [p.id, marked.id]
    assert [p.id for p in found.entry.parameters] == [x.id, y.id]
    args = [torch.tensor(3.0), torch.tensor(4.0)]
    torch.testing.assert_close(run(found, args), run(module, args))
    assert dead_code_elimination(found).to_bytes() == found.to_bytes()


def test_dead_code_elimination_keeps_live_code(lower: Lower, run: Run):
    module = lower(layer, [X, Y])
    found = dead_code_elimination(module)
    gone = {i.id for i in module.entry.instructions} - {i.id for i in found.entry.instructions}
    dead = {i.id for i in module.entry.instructions if not i.users} - {module.entry.root.id}
    assert gone == dead
    assert len(found.computations) == len(module.computations)
    torch.testing.assert_close(run(found, [X, Y]), layer(X, Y))
    assert dead_code_elimination(found).to_bytes() == found.to_bytes()
