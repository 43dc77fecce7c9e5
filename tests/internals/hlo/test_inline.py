import pytest
import torch

from tests.internals.hlo.builder import Builder, constrain, tie
from tests.internals.hlo.computation import Function
from xfunc.hlo import Module, Shape, verify
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.flat import inline_calls, inlined
from xfunc.hlo.spmd.annotations import is_pair

from .conftest import Run

pytestmark = pytest.mark.quick

X = Shape(torch.float32, (4,))
S32 = Shape(torch.int32)
PAIR = Shape.of_tuple([X, X])
TILED = pb.OpSharding(type=pb.OpSharding.OTHER, tile_assignment_dimensions=[2])


def swapped_sum(b: Builder) -> Function:
    """``(x, y) -> (y, x + y)``"""
    body = b.computation("swapped_sum")
    x, y = body.parameter(X), body.parameter(X)
    return body.build(body.tuple([y, body.add(x, y)]))


def twice(b: Builder, f: Function) -> Function:
    body = b.computation("twice")
    x, y = body.parameter(X), body.parameter(X)
    once = body.call(f, [x, y])
    again = body.call(f, [body.get_tuple_element(once, 0), body.get_tuple_element(once, 1)])
    return body.build(again)


def opcodes(module: Module) -> list[str]:
    return [i.opcode for i in module.entry.instructions]


def instructions(module: Module) -> list[pb.HloInstructionProto]:
    return [i.proto for c in module.computations for i in c.instructions]


def test_inline_nested_calls(run: Run):
    b = Builder("f")
    four = twice(b, twice(b, swapped_sum(b)))
    entry = b.computation("f")
    x, y = entry.parameter(X), entry.parameter(X)
    out = entry.call(four, [x, y])
    root = entry.tuple([entry.get_tuple_element(out, 1), x, entry.get_tuple_element(out, 0)])
    module = b.build(entry.build(root))
    found = inline_calls(module)
    verify(found)
    assert opcodes(found) == ["parameter", "parameter", "add", "add", "add", "add", "tuple"]
    assert len(found.computations) == 1
    args = [torch.arange(4.0), torch.ones(4)]
    assert all(map(torch.equal, run(found, args), run(module, args)))


def test_inline_instructions_without_origin_get_that_of_the_call():
    b = Builder("f")
    four = twice(b, twice(b, swapped_sum(b)))
    entry = b.computation("f")
    module = b.build(entry.build(entry.call(four, [entry.parameter(X), entry.parameter(X)])))
    (call,) = [i.proto for i in module.entry.instructions if i.opcode == "call"]
    call.metadata.op_name, call.metadata.source_file, call.metadata.source_line = "loop", "a.py", 3
    (add,) = [i for i in instructions(module) if i.opcode == "add"]

    def origins() -> set[tuple[str, str, int]]:
        entry = inline_calls(Module(module.proto)).entry
        found = [i.proto.metadata for i in entry.instructions if i.opcode == "add"]
        return {(m.op_name, m.source_file, m.source_line) for m in found}

    assert origins() == {("loop", "a.py", 3)}
    add.metadata.op_name, add.metadata.source_file, add.metadata.source_line = "add", "b.py", 7
    assert origins() == {("add", "b.py", 7)}


def test_inline_without_calls_changes_nothing():
    b = Builder("f")
    f = swapped_sum(b)
    graph = b.build(f).graph
    assert graph is not None
    assert inlined(graph) is graph


def test_inline_root_call_and_identity_callee(run: Run):
    b = Builder("f")
    body = b.computation("same")
    same = body.build(body.parameter(X))
    entry = b.computation("f")
    x = entry.parameter(X)
    module = b.build(entry.build(entry.call(twice(b, swapped_sum(b)), [entry.call(same, [x]), x])))
    found = inline_calls(module)
    verify(found)
    assert opcodes(found) == ["parameter", "add", "add", "tuple"]
    assert all(map(torch.equal, run(found, [torch.ones(4)]), run(module, [torch.ones(4)])))


def test_inline_in_while_and_conditional(run: Run):
    b = Builder("f")
    f = twice(b, swapped_sum(b))
    state = Shape.of_tuple([S32, X, X])
    body = b.computation("body")
    p = body.parameter(state)
    k, x, y = (body.get_tuple_element(p, n) for n in range(3))
    out = body.call(f, [x, y])
    k = body.add(k, body.constant(1, torch.int32))
    values = [body.get_tuple_element(out, n) for n in range(2)]
    step = body.build(body.tuple([k, *values]))
    cond = b.computation("cond")
    k = cond.get_tuple_element(cond.parameter(state), 0)
    more = cond.build(cond.compare(k, cond.constant(3, torch.int32), "LT"))
    branches: list[Function] = []
    for _ in range(2):
        branch = b.computation("branch")
        p = branch.parameter(PAIR)
        values = [branch.get_tuple_element(p, n) for n in range(2)]
        branches.append(branch.build(branch.call(f, values)))
    entry = b.computation("f")
    x, y = entry.parameter(X), entry.parameter(X)
    loop = entry.while_(more, step, entry.tuple([entry.constant(0, torch.int32), x, y]))
    both = entry.tuple([entry.get_tuple_element(loop, n) for n in (1, 2)])
    where = entry.get_tuple_element(loop, 0)
    module = b.build(entry.build(entry.conditional(where, branches, [both, both])))
    found = inline_calls(module)
    verify(found)
    names = [c.name.partition(".")[0] for c in found.computations]
    assert sorted(names) == ["body", "branch", "branch", "cond", "f"]
    assert not any(i.opcode == "call" for i in instructions(found))
    args = [torch.arange(4.0), torch.ones(4)]
    assert all(map(torch.equal, run(found, args), run(module, args)))


def test_inline_keeps_metadata_shardings_and_attributes():
    b = Builder("f")
    body = b.computation("inner")
    x = body.parameter(X)
    divided = constrain(body, x, TILED, [0])
    effect = body.custom_call("effect", [x], X, side_effect=True, attributes={"a": "b"})
    first, second = tie(body, divided, effect)
    inner = body.build(body.add(first, second))
    entry = b.computation("f")
    x = entry.parameter(X)
    module = b.build(entry.build(entry.tuple([entry.call(inner, [x]), entry.call(inner, [x])])))
    for i in instructions(module):
        i.metadata.op_name, i.metadata.source_line = i.name, 7
        if i.opcode == "custom-call":
            i.channel_id = 5
    found = inline_calls(Module(module.proto))
    verify(found)

    def stated(module: Module, name: str) -> bytes:
        i = next(i for i in instructions(module) if i.metadata.op_name == name)
        copy = pb.HloInstructionProto()
        copy.CopyFrom(i)
        for field in ("id", "name", "operand_ids", "called_computation_ids"):
            copy.ClearField(field)
        return copy.SerializeToString(deterministic=True)

    for name in (divided.name, effect.name):
        assert stated(found, name) == stated(module, name)
        assert sum(i.metadata.op_name == name for i in instructions(found)) == 2
    # A tie stays a call of its own.
    calls = [i for i in found.entry.instructions if i.opcode == "call"]
    assert [is_pair(c.proto) for i in calls for c in i.called_computations] == [True, True]
