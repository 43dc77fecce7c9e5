"""`xfunc.hlo.write`: graphs in HLO's wire format."""

import pytest
import torch

from xfunc.graph import build
from xfunc.graph.graph import Graph
from xfunc.graph.node import Node, array_type, reached
from xfunc.hlo import Module
from xfunc.hlo.write import write

pytestmark = pytest.mark.quick
MATRIX = array_type(torch.float32, (2, 3))


def parameter() -> Node:
    return Node("parameter", MATRIX)


def written(inputs: list[Node], outputs: list[Node]) -> Module:
    return Module.from_bytes(write(Graph.between("f", inputs, outputs)[0]))


def test_array_types_that_are_equal_are_one_object() -> None:
    assert array_type(torch.float32, (2, 3)) is MATRIX
    assert array_type(torch.float64, (2, 3)) is not MATRIX


def test_reached_nodes_come_after_their_operands() -> None:
    x, unused = parameter(), parameter()
    y = build.add(build.multiply(x, 2.0), x)
    build.subtract(y, 1.0)
    found = reached([y], [x, unused])
    assert [n.opcode for n in found if n.opcode != "constant"] == [
        *("parameter", "broadcast", "multiply", "add")
    ]
    places = {id(n): k for k, n in enumerate(found)}
    assert all(places[id(o)] < places[id(n)] for n in found for o in n.operands)


def test_write_takes_only_inputs_that_are_used() -> None:
    x, unused = parameter(), parameter()
    graph, taken = Graph.between("f", [unused, x], [build.add(x, x)])
    assert taken == (1,)
    assert len(Module.from_bytes(write(graph)).entry.parameters) == 1


def test_write_parameters_have_the_order_of_inputs() -> None:
    x, y = parameter(), Node("parameter", array_type(torch.int64, ()))
    module = written([y, x], [x, y])
    assert [str(p.shape) for p in module.entry.parameters] == ["s64[]", "f32[2,3]"]
    assert [o.opcode for o in module.entry.root.operands] == ["parameter", "parameter"]


def test_write_reducers_of_one_kind_are_one_computation() -> None:
    x = parameter()
    rows, columns = (build.reduce("add", x, 0, (k,)) for k in (0, 1))
    module = written([x], [rows, columns, build.reduce("maximum", x, 0, (0,))])
    assert len(module.computations) == 3
    assert [str(o.shape) for o in module.entry.root.operands] == ["f32[3]", "f32[2]", "f32[3]"]


def test_write_applied_module_has_numbers_of_its_own() -> None:
    x = parameter()
    inner = written([x], [build.reduce("add", x, 0, (1,))])
    y = parameter()
    (first,) = build.several("call", [array_type(torch.float32, (2,))], (y,), None, (inner,))
    (second,) = build.several("call", [array_type(torch.float32, (2,))], (y,), None, (inner,))
    module = written([y], [build.add(first, second)])
    ids = [i.id for c in module.proto.computations for i in c.instructions]
    ids += [c.id for c in module.proto.computations]
    assert len(set(ids)) == len(ids)
    assert [i.opcode for i in module.entry.instructions].count("call") == 2
    assert len(module.computations) == 3


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda x: build.transpose(x, (1, 0)), "f32[3,2]"),
        (lambda x: build.reshape(x, (6,)), "f32[6]"),
        (lambda x: build.broadcast(x, (4, 2, 3)), "f32[4,2,3]"),
        (lambda x: build.slice_in(x, 1, 0, 3, 2), "f32[2,2]"),
        (lambda x: build.concatenate([x, x], 0), "f32[4,3]"),
        (lambda x: build.compare(x, 0.0, "LT"), "pred[2,3]"),
        (lambda x: build.convert(x, torch.bfloat16), "bf16[2,3]"),
        (lambda x: build.complex_(x, x), "c64[2,3]"),
        (lambda x: build.pad(x, build.constant(0.0, torch.float32), ((1, 0, 0), (0, -1, 1))),
         "f32[3,4]"),
        (lambda x: build.dot(x, x, ((1,), (1,))), "f32[2,2]"),
        (lambda x: build.reduce("add", x, 0, (0, 1)), "f32[]"),
    ],
)  # fmt: skip
def test_build_infers_the_type_that_is_written(make, text) -> None:
    x = parameter()
    y = make(x)
    (root,) = written([x], [y]).entry.root.operands
    assert str(root.shape) == text
    assert root.shape.dims == y.dims
