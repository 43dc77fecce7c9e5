import pytest
import torch

from xfunc.hlo import (
    Builder,
    InvalidHloError,
    Module,
    Shape,
    verify,
)
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.passes.common import dead_code_elimination, extract

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


@pytest.mark.parametrize("barrier", [False, True])
def test_extract_forward_and_backward_compose(lower: Lower, run: Run, barrier: bool):
    module = lower(layer, [X, Y])
    outputs = [o.id for o in module.entry.root.operands]
    x, y = (p.id for p in module.entry.parameters)
    tanh = of_opcode(module, "tanh")
    forward = extract(module, [tanh], [x, y], name="forward", barrier=barrier)
    backward = extract(module, outputs, [y, tanh], name="backward", barrier=barrier)
    hidden = run(forward, [X, Y])
    found = run(backward, [Y, *hidden])
    torch.testing.assert_close(hidden, [torch.tanh(X @ Y)])
    torch.testing.assert_close(found, layer(X, Y))
    opcodes = [i.opcode for i in backward.entry.instructions]
    assert not {"tanh", "dot"} & set(opcodes)
    assert opcodes.count("opt-barrier") == barrier
    assert len(forward.computations) == 1
    assert len(backward.computations) == len(module.computations)
    assert backward.output_dependencies() == (
        frozenset({1}),
        frozenset({1}),
        frozenset({0}),
    )


def test_extract_keeps_instruction_ids(lower: Lower):
    module = lower(layer, [X, Y])
    x, y = (p.id for p in module.entry.parameters)
    tanh = of_opcode(module, "tanh")
    plain = extract(module, [tanh], [y, x], name="plain")
    assert [p.id for p in plain.entry.parameters] == [y, x]
    assert plain.name == "plain"
    assert plain.instruction(tanh).opcode == "tanh"
    barred = extract(module, [tanh], [y, x], name="barred", barrier=True)
    assert [barred.instruction(k).opcode for k in (y, x)] == ["get-tuple-element"] * 2
    assert [p.shape for p in barred.entry.parameters] == [
        plain.instruction(k).shape for k in (y, x)
    ]
    verify(barred)


def test_extract_repeated_and_parameter_outputs(lower: Lower, run: Run):
    module = lower(layer, [X, Y])
    x, _ = (p.id for p in module.entry.parameters)
    tanh = of_opcode(module, "tanh")
    found = extract(module, [tanh, x, tanh], [tanh, x], name="f")
    hidden = torch.randn(3, 3)
    torch.testing.assert_close(run(found, [hidden, X]), [hidden, X, hidden])


def test_extract_keeps_unused_parameter(lower: Lower, run: Run):
    module = lower(layer, [X, Y])
    x, y = (p.id for p in module.entry.parameters)
    total = module.entry.root.operands[2].id
    found = extract(module, [total], [x, y], name="f")
    torch.testing.assert_close(run(found, [X, Y]), [Y.sum()])
    assert found.output_dependencies() == (frozenset({1}),)


def test_extract_parameter_keeps_sharding():
    b = Builder("f")
    c = b.computation("f")
    x = c.parameter(Shape(F32))
    kept = c.custom_call(
        "Sharding", [x], x.shape, sharding=pb.OpSharding(type=pb.OpSharding.MANUAL)
    )
    tied = pb.OpSharding(type=pb.OpSharding.UNKNOWN, is_shard_group=True)
    lost = c.custom_call("Sharding", [x], x.shape, sharding=tied)
    module = b.build(c.build(c.tuple([c.add(kept, lost)])))
    total = of_opcode(module, "add")
    found = extract(module, [total], [kept.id, lost.id], name="g")
    assert found.instruction(kept.id).proto.sharding.type == pb.OpSharding.MANUAL
    assert not found.instruction(lost.id).proto.HasField("sharding")


def test_extract_errors(lower: Lower):
    module = lower(layer, [X, Y])
    x, y = module.entry.parameters
    tanh = of_opcode(module, "tanh")
    missing = f"instruction '{y.name}' in .* is needed, but not among the new parameters"
    with pytest.raises(InvalidHloError, match=missing):
        extract(module, [tanh], [x.id], name="f")
    with pytest.raises(InvalidHloError, match=f"instruction '{x.name}' in .* is listed twice"):
        extract(module, [tanh], [x.id, y.id, x.id], name="f")
    with pytest.raises(InvalidHloError, match=r"no instruction 999 in .* to be a parameter"):
        extract(module, [tanh], [999], name="f")
    with pytest.raises(InvalidHloError, match=r"no instruction 999 in .* to be an output"):
        extract(module, [999], [x.id, y.id], name="f")


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
