import pytest
import torch

from tests.internals.hlo.builder import Builder
from tests.internals.hlo.computation import ComputationBuilder, Function, Value
from xfunc.graph.dependencies import dependencies
from xfunc.hlo import Module, Shape

from .conftest import Lower

pytestmark = pytest.mark.quick

S = Shape(torch.float32)
I = Shape(torch.int32)  # noqa: E741


def depends(b: Builder, c: ComputationBuilder, root: Value) -> list[set[int]]:
    return of(b.build(c.build(root)))


def of(module: Module) -> list[set[int]]:
    assert module.graph is not None
    return [set(d) for d in dependencies(module.graph)]


def test_dependencies_of_elementwise_operations(lower: Lower):
    x = torch.zeros(3)
    module = lower(lambda x, y, z: [x + y, z.sum(), torch.ones_like(x), x], [x, x, x])
    assert of(module) == [{0, 1}, {2}, set(), {0}]


def test_dependencies_opt_barrier_non_tuple_root():
    b = Builder("f")
    c = b.computation("f")
    x, y, z = (c.parameter(S) for _ in range(3))
    x, y, z = c.opt_barrier([x, y, z])
    assert depends(b, c, c.add(x, z)) == [{0, 2}]


def test_dependencies_opaque_tuple():
    b = Builder("f")
    c = b.computation("f")
    x, y = c.parameter(S), c.parameter(S)
    both = c.custom_call("two", [x, y], Shape.of_tuple([S, S]))
    assert depends(b, c, both) == [{0, 1}, {0, 1}]


def test_dependencies_nested_calls_and_tuples():
    b = Builder("f")
    c = b.computation("swap")
    pair = c.parameter(Shape.of_tuple([S, S]))
    third = c.parameter(S)
    first, second = c.get_tuple_element(pair, 0), c.get_tuple_element(pair, 1)
    swap = c.build(c.tuple([c.tuple([second, first]), c.add(third, second)]))
    c = b.computation("twice")
    pair, third = c.parameter(Shape.of_tuple([S, S])), c.parameter(S)
    once = c.call(swap, [pair, third])
    twice = c.build(c.call(swap, [c.get_tuple_element(once, 0), c.get_tuple_element(once, 1)]))
    c = b.computation("f")
    x, y, z = (c.parameter(S) for _ in range(3))
    found = c.call(twice, [c.tuple([x, y]), z])
    inner = c.get_tuple_element(found, 0)
    outputs = [c.get_tuple_element(inner, 0), c.get_tuple_element(inner, 1)]
    outputs += [c.get_tuple_element(found, 1), c.constant(1, torch.int32)]
    assert depends(b, c, c.tuple(outputs)) == [{0}, {1}, {0, 1, 2}, set()]


def loop(b: Builder, bound: int | None) -> tuple[Function, Function, Shape]:
    """A carry ``(i, a, b, c, w)``: a <- b, b <- c, c <- c * w, while i < `bound` or a."""
    carry = Shape.of_tuple([I, S, S, S, S])
    c = b.computation("more")
    i, first, *_ = (c.get_tuple_element(p, k) for p in [c.parameter(carry)] for k in range(5))
    limit = c.convert(first, torch.int32) if bound is None else c.constant(bound, torch.int32)
    more = c.build(c.compare(i, limit, "LT"))
    c = b.computation("step")
    i, _, second, third, w = (
        c.get_tuple_element(p, k) for p in [c.parameter(carry)] for k in range(5)
    )
    i = c.add(i, c.constant(1, torch.int32))
    return more, c.build(c.tuple([i, second, third, c.multiply(third, w), w])), carry


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (5, [set(), {1, 2, 3, 4}, {2, 3, 4}, {3, 4}, {4}]),
        (None, [{1, 2, 3, 4}] * 5),  # the condition reads a, which becomes b, which becomes ...
    ],
)
def test_dependencies_while(bound: int | None, expected: list[set[int]]):
    b = Builder("f")
    more, step, _ = loop(b, bound)
    c = b.computation("f")
    c.parameter(I)
    carry = [c.constant(0, torch.int32), *(c.parameter(S) for _ in range(4))]
    assert depends(b, c, c.while_(more, step, c.tuple(carry))) == expected


def test_dependencies_while_opaque_carry():
    b = Builder("f")
    more, step, shape = loop(b, 5)
    c = b.computation("f")
    x, y = c.parameter(I), c.parameter(S)
    assert depends(b, c, c.while_(more, step, c.custom_call("init", [x, y], shape))) == [{0, 1}] * 5


def test_dependencies_conditional_all_operands():
    b = Builder("f")
    c = b.computation("same")
    same = c.build(c.parameter(S))
    c = b.computation("f")
    i, x, y, z = c.parameter(I), *(c.parameter(S) for _ in range(3))
    assert depends(b, c, c.tuple([c.conditional(i, [same, same], [x, y]), z])) == [{0, 1, 2}, {3}]
