from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import model, train
from examples.llama.model import plan
from tests.internals.hlo.builder import Builder
from tests.internals.hlo.computation import ComputationBuilder, Value
from xfunc.hlo import Module, Shape
from xfunc.hlo.estimate.buffers import flow, leaves
from xfunc.hlo.estimate.liveness import peak, prepared
from xfunc.hlo.estimate.occupancy import Task, best, last_reads

F32, S32 = torch.float32, torch.int32
N = 64
X, ONE = Shape(F32, (N, N)), 4 * N * N
STACK = Shape(F32, (5, N, N))


def dot(c: ComputationBuilder, x: Value, y: Value) -> Value:
    value, proto = c.instruction("dot", X, [x, y])
    proto.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    proto.dot_dimension_numbers.rhs_contracting_dimensions.append(0)
    return value


def unary(c: ComputationBuilder, opcode: str, x: Value) -> Value:
    return c.instruction(opcode, x.shape, [x])[0]


def arrays(module: Module, *donated: int) -> float:
    """What is held at most beside the arguments, in arrays of 64 by 64."""
    found = peak(module, donated)
    assert found.arguments == sum(p.bytes for p in module.entry.parameters)
    assert max(p.bytes for p in found.timeline) == found.bytes == found.at.bytes
    assert sum(h.bytes for h in found.largest) >= found.bytes
    return (found.bytes - found.arguments) // ONE


def of(*results: Value) -> Module:
    c = results[0].owner
    return c.module.build(c.build(c.tuple(results)))


def begin() -> tuple[ComputationBuilder, Value]:
    c = Builder("f").computation("f")
    return c, c.parameter(X)


def test_peak_fused_elementwise_not_written():
    c, x = begin()
    y = c.add(c.multiply(x, x), unary(c, "tanh", x))
    assert arrays(of(unary(c, "exponential", y))) == 1  # the result alone


def test_peak_expensive_operand_written_cheap_fused():
    for opcode, written in {"tanh": 1, "negate": 0}.items():
        c, x = begin()
        y = unary(c, opcode, x)
        rows = [c.dynamic_slice(y, [c.constant(k, S32)] * 2, (1, N)) for k in range(2)]
        assert arrays(of(*rows)) == written


def test_peak_dots_written_and_freed():
    c, x = begin()
    y = x
    for _ in range(5):
        y = dot(c, y, x)
    assert arrays(of(y)) == 2


def test_peak_elementwise_in_place():
    c, x = begin()
    assert arrays(of(unary(c, "exponential", dot(c, x, x)))) == 1


def test_peak_temporary_shares_result_buffer():
    c, x = begin()
    first = dot(c, x, x)
    result = dot(c, first, first)
    other = dot(c, result, x)
    assert arrays(of(result, other)) == 2


def test_peak_aliases_take_no_memory():
    c, x = begin()
    y = dot(c, x, x)
    flat = c.reshape(y, (N * N,))
    packed = c.tuple([flat, x])
    (behind,) = c.opt_barrier([c.get_tuple_element(packed, 0)])
    z = c.reshape(behind, (N, N))
    value, proto = c.instruction("transpose", X, [z])
    proto.dimensions.extend([1, 0])
    assert arrays(of(dot(c, value, x))) == 2


def test_peak_broadcast_written_unless_fused():
    c, x = begin()
    zero = c.zeros(X)
    assert arrays(of(c.add(x, zero))) == 1
    c, x = begin()
    assert arrays(of(dot(c, x, c.zeros(X)))) == 2


def test_peak_reorders_steps():
    # All factors first, though each is needed once.
    c, x = begin()
    ys = [dot(c, x, c.multiply(x, fill(c, float(k)))) for k in range(2, 8)]
    total = x
    for y in ys:
        total = dot(c, total, y)
    # The product so far, the next one, its factor, and the result's own memory.
    assert arrays(of(total)) == 4


def fill(c: ComputationBuilder, number: float) -> Value:
    return c.broadcast(c.constant(number, F32), X.dims)


# -- arguments and results ------------------------------------------------------------------------


def test_peak_donated_arguments_are_reused():
    c, x = begin()
    module = of(unary(c, "tanh", x))
    assert (arrays(module), arrays(module, 0)) == (1, 0)
    # Not while they are still read.
    c, x = begin()
    y = dot(c, x, x)
    assert arrays(of(y), 0) == 1
    # One for each result, in order, if it has the same size.
    c, x = begin()
    y, z = c.parameter(STACK), c.parameter(X)
    module = of(unary(c, "tanh", x), unary(c, "tanh", z), unary(c, "tanh", y))
    assert [arrays(module, *d) for d in ((), (0,), (1,), (0, 1, 2))] == [7, 6, 2, 0]


def test_peak_results_are_arguments_or_constants():
    c, x = begin()
    one = c.constant(1, F32)
    assert arrays(of(x, one, x)) == 0


# -- loops and branches ---------------------------------------------------------------------------


def loop(c: ComputationBuilder, state: list[Value], step, length: int = 5) -> list[Value]:
    """A loop over `state`; ``step(body, k, *state)`` returns the new one."""
    b = c.module
    init = c.tuple([c.constant(0, S32), *state])
    body = b.computation("body")
    p = body.parameter(init.shape)
    k, *values = (body.get_tuple_element(p, n) for n in range(len(state) + 1))
    new = step(body, k, *values)
    done = body.build(body.tuple([body.add(k, body.constant(1, S32)), *new]))
    cond = b.computation("cond")
    k = cond.get_tuple_element(cond.parameter(init.shape), 0)
    more = cond.build(cond.compare(k, cond.constant(length, S32), "LT"))
    out = c.while_(more, done, init)
    return [c.get_tuple_element(out, n + 1) for n in range(len(state))]


def row(c: ComputationBuilder, stack: Value, k: Value) -> Value:
    zero = c.constant(0, S32)
    return c.reshape(c.dynamic_slice(stack, [k, zero, zero], (1, N, N)), (N, N))


def with_row(c: ComputationBuilder, stack: Value, k: Value, x: Value) -> Value:
    zero = c.constant(0, S32)
    return c.dynamic_update_slice(stack, c.reshape(x, (1, N, N)), [k, zero, zero])


def test_peak_while_state_in_place():
    c, x = begin()

    def step(body, k, x):
        return [unary(body, "tanh", x)]

    assert arrays(of(*loop(c, [dot(c, x, x)], step))) == 1
    # A product cannot be written over what it reads.
    c, x = begin()
    assert arrays(of(*loop(c, [dot(c, x, x)], lambda body, k, x: [dot(body, x, x)]))) == 2


def test_peak_while_invariant_carry_held_once():
    c, x = begin()
    xs = c.parameter(STACK)

    def step(body, k, x, xs):
        return [dot(body, x, row(body, xs, k)), xs]

    # The state and the new one; the slice is written, because a product reads it.
    assert arrays(of(loop(c, [x, xs], step)[0])) == 3


def test_peak_while_stacking_results():
    c, x = begin()

    def step(body, k, x, stack):
        y = dot(body, x, x)
        return [y, with_row(body, stack, k, y)]

    x, stack = loop(c, [x, c.zeros(STACK)], step)
    assert arrays(of(stack)) == 5 + 2
    # The stack of the step before is needed as well: there are two.
    c, x = begin()
    zeros = c.zeros(STACK)
    out = loop(c, [x, zeros, zeros], lambda body, k, x, a, b: [x, with_row(body, a, k, x), a])
    assert arrays(of(*out[1:])) >= 10


def test_peak_while_swapping_state():
    c, x = begin()
    y = dot(c, x, x)
    assert arrays(of(*loop(c, [y, dot(c, y, y)], lambda body, k, x, y: [y, x]))) >= 2


def test_peak_nested_while():
    c, x = begin()

    def outer(body, k, x):
        return loop(body, [x], lambda inner, k, x: [dot(inner, dot(inner, x, x), x)])

    # The state, which is that of both, and two products.
    assert arrays(of(*loop(c, [x], outer))) == 3


def test_peak_conditional_takes_larger_branch():
    c, x = begin()
    b = c.module
    branches = []
    for times in (1, 4):
        branch = b.computation("branch")
        first = y = branch.parameter(X)
        for _ in range(times):
            y = dot(branch, y, first)
        branches.append(branch.build(y))
    k = c.parameter(Shape(S32))
    y = c.conditional(k, branches, [x, x])
    assert arrays(of(y)) == 3  # the result, and two products before it


# -- what is told ---------------------------------------------------------------------------------


def test_peak_source_lines_and_names():
    def fun(x):
        y = x @ x
        return torch.exp(y) @ y

    found = peak(xf.jit(fun).lower(xf.ShapeDtypeStruct((N, N), F32)).module)
    line = f"{__file__}:{fun.__code__.co_firstlineno + 2}"
    assert found.at.line == line
    assert [h.bytes for h in found.largest] == [ONE] * 4
    assert {h.name for h in found.largest if h.line == line} == {"aten__mm", "aten__exp"}
    assert found.timeline[0].line == f"{__file__}:{fun.__code__.co_firstlineno + 1}"


def test_last_reads_of_buffers():
    c, x = begin()
    y = dot(c, x, x)
    z = dot(c, y, x)
    out = dot(c, z, y)
    memory = flow(prepared(of(out)).entry)
    order, _ = best(Task(memory, {}, True, {}))
    last = last_reads(order, memory)
    start = {leaf[0]: -1 for a in memory.arguments for leaf in leaves(a)}
    start |= {b: t for t, step in enumerate(order) for b in step.writes}
    found = [(b.instruction.id, b.bytes, t, last[b]) for b, t in start.items()]
    assert found == [(x.id, ONE, -1, 1), (y.id, ONE, 0, 2), (z.id, ONE, 1, 2), (out.id, ONE, 2, 3)]


# -- against the compiler -------------------------------------------------------------------------

# Recorded: bytes of the train step that donates its state, arguments and all, as `memory_analysis`
# tells them of jaxlib 0.10's compiler for the CPU, at its default level of optimisation. The
# model's vocabulary, hidden, intermediate, layers, heads, heads of keys; the batch and its length.
MODELS = {
    "wide": ((2048, 192, 512, 3, 6, 3), (2, 384)),
    "deep": ((512, 64, 256, 10, 4, 4), (8, 64)),
    "tied": ((300, 96, 200, 5, 3, 1, True), (3, 200)),
}
POLICIES = xf.checkpoint_policies
RECORDED = [
    ("wide", POLICIES.everything_saveable, 24063756, 114780405),
    ("wide", POLICIES.nothing_saveable, 24063756, 66402293),
    ("deep", POLICIES.everything_saveable, 8675084, 55269685),
    ("deep", POLICIES.dots_saveable, 8675084, 39839925),
    ("deep", POLICIES.nothing_saveable, 8675084, 19253301),
    ("tied", POLICIES.min_cut(), 5298444, 31735197),
    ("tied", POLICIES.nothing_saveable, 5298444, 17034269),
]


@pytest.mark.sample(9, seed=0)
@pytest.mark.parametrize(("name", "policy", "arguments", "total"), RECORDED)
def test_peak_of_train_step_matches_compiler(
    name: str, policy: Any, arguments: int, total: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(plan.POLICIES, "full", policy)
    sizes, (rows, length) = MODELS[name]
    dense = plan.Plan(attention="dense", loss_chunk=length)
    recipe = train.Recipe(model.Config(*sizes), 100, dense, skip_bad=False)
    state = train.init(recipe)
    tokens: Any = xf.ShapeDtypeStruct((rows, length), torch.int64)
    xf.clear_caches()  # The key of the step knows nothing of what the policy's name means.
    lowered = train.train_step.lower(state, model.Batch(tokens, tokens), recipe=recipe)
    inputs = lowered.traced.parts.lowering.inputs
    donated = [inputs.index(k) for k in range(len(xf.tree.leaves(state))) if k in inputs]
    found = peak(lowered.module, donated)
    assert found.arguments == arguments
    assert found.bytes == pytest.approx(total, rel=0.14)
