"""`xfunc.hlo.read`: modules as graphs."""

import pytest
import torch

from tests.internals.hlo.builder import Builder
from xfunc.hlo import Module, Shape, verify
from xfunc.hlo.write import write

from .conftest import Run

pytestmark = pytest.mark.quick

F32, S32 = Shape(torch.float32), Shape(torch.int32)


def test_read_module_with_an_order_of_its_own_has_no_graph() -> None:
    b = Builder("f")
    c = b.computation("f")
    x = c.parameter(F32)
    first, last = c.add(x, x), c.multiply(x, x)
    module = b.build(c.build(c.tuple([first, last])))
    protos = {i.id: i for i in module.proto.computations[0].instructions}
    protos[last.id].control_predecessor_ids.append(first.id)
    assert Module(module.proto).graph is None


def test_read_nested_tuples(run: Run) -> None:
    """A graph has no tuples."""
    b = Builder("f")
    c = b.computation("inner")
    pair = c.parameter(Shape.of_tuple([F32, Shape.of_tuple([F32, F32])]))
    x, rest = c.get_tuple_element(pair, 0), c.get_tuple_element(pair, 1)
    y, z = c.get_tuple_element(rest, 0), c.get_tuple_element(rest, 1)
    inner = c.build(c.tuple([c.tuple([c.add(x, y)]), z]))
    c = b.computation("f")
    x, y = c.parameter(F32), c.parameter(F32)
    found = c.call(inner, [c.tuple([x, c.tuple([y, x])])])
    total = c.get_tuple_element(c.get_tuple_element(found, 0), 0)
    module = b.build(c.build(c.tuple([total, c.get_tuple_element(found, 1)])))
    graph = module.graph
    assert graph is not None
    assert [n.opcode for n in graph.nodes] == [
        *("parameter", "parameter", "call", "get-tuple-element", "get-tuple-element")
    ]
    written = Module.from_bytes(write(graph))
    verify(written)
    args = [torch.tensor(2.0), torch.tensor(5.0)]
    assert [t.item() for t in run(written, args)] == [7.0, 2.0]


def test_read_written_program_is_the_same_program() -> None:
    """Numbers and names apart, for loops and branches too."""
    b = Builder("f")
    state = Shape.of_tuple([S32, F32])
    c = b.computation("more")
    k = c.get_tuple_element(c.parameter(state), 0)
    more = c.build(c.compare(k, c.constant(3, torch.int32), "LT"))
    c = b.computation("step")
    p = c.parameter(state)
    k, x = (c.get_tuple_element(p, n) for n in range(2))
    step = c.build(c.tuple([c.add(k, c.constant(1, torch.int32)), c.add(x, x)]))
    c = b.computation("branch")
    branch = c.build(c.tuple([c.get_tuple_element(c.parameter(Shape.of_tuple([F32])), 0)]))
    c = b.computation("f")
    x, i = c.parameter(F32), c.parameter(S32)
    last = c.get_tuple_element(c.while_(more, step, c.tuple([i, x])), 1)
    chosen = c.conditional(i, [branch, branch], [c.tuple([last]), c.tuple([x])])
    module = b.build(c.build(c.tuple([c.get_tuple_element(chosen, 0)])))
    once = write(_graph(module))
    again = write(_graph(Module.from_bytes(once)))
    verify(Module.from_bytes(once))
    assert again == once


def _graph(module: Module):
    assert module.graph is not None
    return module.graph
