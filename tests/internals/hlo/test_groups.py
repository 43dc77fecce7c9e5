import pytest
import torch

from tests.internals.hlo.builder import Builder, constrain, finished, tie
from tests.internals.hlo.computation import Function
from xfunc.hlo import Module, Shape, verify
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.spmd.annotations import is_tie
from xfunc.hlo.write import write
from xfunc.sharding.manual_region import without_ties

pytestmark = pytest.mark.quick

SMALL, LARGE = Shape(torch.float32, (4,)), Shape(torch.float32, (8, 2))
TILED = pb.OpSharding(type=pb.OpSharding.OTHER, tile_assignment_dimensions=[2, 1])


def pair(b: Builder, shape: Shape, automatic: bool = False) -> Function:
    body = b.computation("pair")
    x = body.parameter(shape)
    first, _ = tie(body, x, body.add(x, x), automatic=automatic)
    return body.build(first)


def twice(b: Builder, f: Function) -> Function:
    body = b.computation("twice")
    x = body.parameter(f.result)
    return body.build(body.call(f, [body.call(f, [x])]))


def program(divided: bool, automatic: bool = False) -> Module:
    """Two pairs in one function, each called in four places; one of them is automatic."""
    b = Builder("program")
    small = twice(b, twice(b, pair(b, SMALL)))
    large = twice(b, twice(b, pair(b, LARGE, automatic)))
    entry = b.computation("entry")
    x, y = entry.parameter(SMALL), entry.parameter(LARGE)
    if divided:
        y = constrain(entry, y, TILED, [1])
    root = entry.tuple([entry.call(small, [x]), entry.call(large, [y])])
    return b.build(entry.build(root))


def groups(proto: pb.HloModuleProto) -> dict[int, list[tuple[int, ...]]]:
    verify(Module(proto))
    found: dict[int, list[tuple[int, ...]]] = {}
    for c in proto.computations:
        for i in filter(is_tie, c.instructions):
            found.setdefault(i.sharding.shard_group_id, []).append(tuple(i.shape.dimensions))
    return found


def test_finished_numbers_each_call_of_pair():
    proto = finished(program(divided=True))
    found = groups(proto)
    assert sorted(found) == [*range(1, 9)]
    assert sorted(found.values()) == [[(4,)] * 2] * 4 + [[(8, 2)] * 2] * 4
    called = [
        k for c in proto.computations for i in c.instructions for k in i.called_computation_ids
    ]
    assert len(called) == len(set(called))


def test_finished_again_is_same():
    proto = finished(program(divided=True))
    assert finished(Module(proto)) == proto


def test_finished_without_sharding_has_no_ties_and_each_function_once():
    proto = finished(program(divided=False))
    assert groups(proto) == {}
    assert "custom-call" not in {i.opcode for c in proto.computations for i in c.instructions}
    assert len(proto.computations) == 7  # three functions of each shape, and the entry


def test_finished_without_automatic_ties():
    proto = finished(program(divided=True, automatic=True), keeps_automatic=False)
    assert list(groups(proto).values()) == [[(4,)] * 2] * 4
    # For each of the four calls of a pair, it and its tie; three functions that call these; the
    # three functions without ties, once; and the entry.
    assert len(proto.computations) == 4 * 2 + 3 + 3 + 1


def test_without_ties():
    graph = program(divided=True).graph
    assert graph is not None
    assert groups(Module.from_bytes(write(graph)).proto)
    assert groups(Module.from_bytes(write(without_ties(graph))).proto) == {}


def test_finished_replicated_is_not_sharded():
    proto = program(divided=True).proto
    for c in proto.computations:
        for i in c.instructions:
            if i.HasField("sharding") and not is_tie(i):
                i.sharding.CopyFrom(pb.OpSharding(type=pb.OpSharding.REPLICATED))
    assert groups(finished(Module(proto))) == {}


def test_constrain_unspecified_dims():
    (found,) = (
        i
        for c in program(divided=True).proto.computations
        for i in c.instructions
        if i.backend_config
    )
    assert found.backend_config == b"unspecified_dims=[1]"
