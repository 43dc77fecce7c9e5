"""Constraints, groups and manual regions, as Shardy reads them."""

from __future__ import annotations

import pytest
import torch

from tests.internals.hlo.builder import Builder, constrain, finished, tie
from tests.internals.hlo.computation import Function, Value
from xfunc.hlo import Module, Shape, verify
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.flat import inline_calls
from xfunc.hlo.passes.shardy import to_shardy
from xfunc.hlo.spmd.annotations import MANUAL_BODY, unspecified
from xfunc.hlo.spmd.tiles import parse

pytestmark = pytest.mark.quick

WHOLE, ROWS = Shape(torch.float32, (8, 4)), Shape(torch.float32, (2, 4))
MANUAL = pb.OpSharding(type=pb.OpSharding.MANUAL)
SUBGROUP = pb.OpSharding(
    type=pb.OpSharding.OTHER,
    tile_assignment_dimensions=[1, 1, 4, 2],
    last_tile_dims=[pb.OpSharding.MANUAL, pb.OpSharding.REPLICATED],
    iota_reshape_dims=[8],
    iota_transpose_perm=[0],
)
BLOCKS = "{devices=[4,2]<=[8]}"
ON_ROWS = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"


def sharding(text: str) -> pb.OpSharding:
    found = parse(text)
    assert found is not None
    return found.to_proto()


def region(b: Builder, inputs: int, outputs: int, manual: pb.OpSharding = MANUAL) -> Function:
    """The sum of each device's rows, by way of a computation that it calls."""
    free = [] if manual is MANUAL else [0, 1]
    inner = b.computation("inner")
    total = inner.zeros(ROWS)
    for _ in range(inputs):
        total = inner.add(total, inner.parameter(ROWS))
    inside = inner.build(total)
    body = b.computation("region")
    entered: list[Value] = []
    for _ in range(inputs):
        x = constrain(body, body.parameter(WHOLE), sharding(ON_ROWS), free)
        config = unspecified(free)
        entered.append(
            body.custom_call("SPMDFullToShardShape", [x], ROWS, sharding=manual, config=config)
        )
    result = body.call(inside, entered)
    left: list[Value] = []
    for _ in range(outputs):
        x = constrain(body, result, manual, free)
        on_rows = sharding(ON_ROWS)
        left.append(
            body.custom_call(
                "SPMDShardToFullShape", [x], WHOLE, sharding=on_rows, config=unspecified(free)
            )
        )
    return body.build(body.tuple(left))


def program(f: Function, b: Builder, parameters: int) -> pb.HloModuleProto:
    entry = b.computation("entry")
    result = entry.call(f, [entry.parameter(WHOLE) for _ in range(parameters)])
    return b.build(entry.build(result)).proto


def given_to_shardy(proto: pb.HloModuleProto) -> pb.HloModuleProto:
    """A program written for Shardy, its functions inlined, as XLA does before it runs Shardy."""
    assert to_shardy(proto, 8) is not None
    verify(Module(proto))
    found = inline_calls(Module(proto))
    verify(found)
    return found.proto


def attributes(proto: pb.HloModuleProto, name: str) -> list[str]:
    every = (i for c in proto.computations for i in c.instructions)
    return [i.frontend_attributes.map[name] for i in every if name in i.frontend_attributes.map]


def targets(proto: pb.HloModuleProto) -> list[str]:
    every = (i for c in proto.computations for i in c.instructions)
    return [i.custom_call_target for i in every if i.opcode == "custom-call"]


def test_to_shardy_constraint() -> None:
    b = Builder("program")
    entry = b.computation("entry")
    x, y = entry.parameter(WHOLE), entry.parameter(Shape(torch.float32))
    found = constrain(entry, x, sharding(BLOCKS)), constrain(entry, x, sharding(ON_ROWS), [1])
    proto = b.build(entry.build(entry.tuple([*found, y]))).proto
    proto.computations[0].instructions[0].sharding.CopyFrom(sharding(ON_ROWS))
    mesh = to_shardy(proto, 8)
    verify(Module(proto))
    assert mesh is not None
    assert mesh.sizes == (4, 2)
    meshes = '{mesh = #sdy.mesh<["axis_0"=4, "axis_1"=2]>}'
    assert proto.frontend_attributes.map["xla.sdy.meshes"] == meshes
    assert attributes(proto, "xla.sdy.sharding") == [
        '#sdy.sharding<@mesh, [{"axis_0"}, {}]>',
        "#sdy.sharding<@mesh, []>",
        '#sdy.sharding_per_value<[<@mesh, [{"axis_0"}, {"axis_1"}]>]>',
        '#sdy.sharding_per_value<[<@mesh, [{"axis_0"}, {?}]>]>',
    ]
    assert not any(i.HasField("sharding") for i in proto.computations[0].instructions)


def test_to_shardy_sharding_groups() -> None:
    """Of a pair that is called twice; the values of a group are open."""
    b = Builder("program")
    both = b.computation("both")
    first, second = tie(both, both.parameter(WHOLE), both.parameter(WHOLE))
    f = both.build(both.add(first, second))
    entry = b.computation("entry")
    x = constrain(entry, entry.parameter(WHOLE), sharding(BLOCKS))
    module = b.build(entry.build(entry.call(f, [x, entry.call(f, [x, x])])))
    proto = given_to_shardy(finished(module))
    (entry_proto,) = proto.computations
    by_id = {i.id: i for i in entry_proto.instructions}
    members: dict[str, list[int]] = {}
    for i in entry_proto.instructions:
        if i.custom_call_target == "xla.sdy.ShardingGroup":
            (operand,) = i.operand_ids
            number = i.frontend_attributes.map["xla.sdy.sharding_group_id"]
            members.setdefault(number, []).append(operand)
            open_ = "#sdy.sharding_per_value<[<@mesh, [{?}, {?}]>]>"
            assert by_id[operand].frontend_attributes.map["xla.sdy.sharding"] == open_
            assert i.custom_call_has_side_effect
    assert {n: len(ids) for n, ids in members.items()} == {"1 : i64": 2, "2 : i64": 2}
    sums = [[*i.operand_ids] for i in entry_proto.instructions if i.opcode == "add"]
    assert sorted(map(sorted, sums)) == sorted(map(sorted, members.values()))


@pytest.mark.parametrize("manual", [MANUAL, SUBGROUP], ids=["whole", "partly"])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (2, 1), (1, 2), (2, 3), (0, 1)])
def test_to_shardy_manual_region(inputs: int, outputs: int, manual: pb.OpSharding) -> None:
    b = Builder("program")
    proto = given_to_shardy(program(region(b, inputs, outputs, manual), b, inputs))
    body, entry = proto.computations
    assert body.name.startswith(MANUAL_BODY)
    assert sum(i.opcode == "parameter" for i in body.instructions) == inputs
    assert sum(i.opcode == "add" for i in body.instructions) == inputs
    crossing = ["xla.sdy.GlobalToLocalShape"] * (inputs > 0) + ["xla.sdy.LocalToGlobalShape"]
    assert targets(proto) == crossing
    call = next(i for i in entry.instructions if i.opcode == "call")
    assert call.frontend_attributes.map["inlineable"] == "false"
    rows = '<@mesh, [{"axis_0"}, {}]>' if manual is MANUAL else '<@mesh, [{"axis_0", ?}, {?}]>'
    for name, n in (("in", inputs), ("out", outputs)):
        several = f"#sdy.sharding_per_value<[{', '.join([rows] * n)}]>"
        assert attributes(proto, f"xla.sdy.{name}_shardings") == [several] * (n > 0)
    axes = '"axis_0", "axis_1"' if manual is MANUAL else '"axis_0"'
    assert {*attributes(proto, "xla.sdy.manual_axes")} == {f"#sdy<manual_axes{{{axes}}}>"}


def test_to_shardy_region_called_twice() -> None:
    """Shardy wants a program for each call."""
    b = Builder("program")
    f = region(b, 1, 1)
    entry = b.computation("entry")
    x = entry.parameter(WHOLE)
    for _ in range(2):
        x = entry.get_tuple_element(entry.call(f, [x]), 0)
    proto = given_to_shardy(b.build(entry.build(x)).proto)
    bodies = [c for c in proto.computations if c.name.startswith(MANUAL_BODY)]
    assert len({c.name for c in bodies}) == 2
    calls = [i for i in proto.computations[-1].instructions if i.opcode == "call"]
    assert [i.called_computation_ids[0] for i in calls] == [c.id for c in bodies]


def test_to_shardy_without_common_mesh_changes_nothing() -> None:
    b = Builder("program")
    entry = b.computation("entry")
    x = entry.parameter(Shape(torch.float32, (6,)))
    x = constrain(entry, x, sharding("{devices=[6]0,1,2,4,3,5}"))
    proto = b.build(entry.build(x)).proto
    before = proto.SerializeToString(deterministic=True)
    assert to_shardy(proto, 6) is None
    assert proto.SerializeToString(deterministic=True) == before
