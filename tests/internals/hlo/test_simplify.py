import math
import random
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from tests.internals.hlo.builder import Builder, constrain, finished, named
from tests.internals.hlo.computation import ComputationBuilder, Value
from xfunc.graph import simplify as graphs
from xfunc.hlo import Module, Shape, verify
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.write import write

from .conftest import Run

pytestmark = pytest.mark.quick

F32, F64, BF16, S32 = torch.float32, torch.float64, torch.bfloat16, torch.int32
Make = Callable[[ComputationBuilder, Value], Value | list[Value]]


def module_of(make: Make, dtype: torch.dtype = F32, dims: Sequence[int] = (2, 3)) -> Module:
    b = Builder("f")
    c = b.computation("f")
    made = make(c, c.parameter(Shape(dtype, dims)))
    return b.build(c.build(c.tuple(made if isinstance(made, list) else [made])))


def simplify(module: Module, *, bodies: bool = False) -> Module:
    assert module.graph is not None
    return Module.from_bytes(write(graphs.simplify(module.graph, bodies=bodies)))


def left(module: Module) -> str:
    """The opcodes of a simplified entry, without parameters and the root."""
    found = simplify(module)
    verify(found)
    assert simplify(found).to_bytes() == found.to_bytes()
    return " ".join(i.opcode for i in found.entry.instructions[:-1] if i.opcode != "parameter")


def fill(c: ComputationBuilder, x: Value, number: float) -> Value:
    return c.broadcast(c.constant(number, x.shape.dtype), x.shape.dims)


def add(
    c: ComputationBuilder, opcode: str, shape: Shape, *operands: Value, **fields: Sequence[int]
) -> Value:
    value, proto = c.instruction(opcode, shape, operands)
    for name, numbers in fields.items():
        getattr(proto, name).extend(numbers)
    return value


def transpose(c: ComputationBuilder, x: Value, order: Sequence[int]) -> Value:
    shape = Shape(x.shape.dtype, [x.shape.dims[d] for d in order])
    return add(c, "transpose", shape, x, dimensions=order)


def spread(c: ComputationBuilder, x: Value, dims: Sequence[int], places: Sequence[int]) -> Value:
    return add(c, "broadcast", Shape(x.shape.dtype, dims), x, dimensions=places)


def full(c: ComputationBuilder, x: Value) -> Value:
    value, proto = c.instruction("slice", x.shape, [x])
    for n in x.shape.dims:
        proto.slice_dimensions.add(start=0, limit=n, stride=1)
    return value


def reduce(c: ComputationBuilder, x: Value, start: Value, dim: int, opcode: str) -> Value:
    kept = [n for d, n in enumerate(x.shape.dims) if d != dim]
    inner, scalar = c.module.computation(opcode), Shape(x.shape.dtype)
    pair = [inner.parameter(scalar), inner.parameter(scalar)]
    combine = inner.build(inner.instruction(opcode, scalar, pair)[0])
    value, proto = c.instruction("reduce", Shape(x.shape.dtype, kept), [x, start])
    proto.dimensions.append(dim)
    proto.called_computation_ids.append(combine.id)
    return value


def copy(c: ComputationBuilder, x: Value) -> Value:
    return add(c, "copy", x.shape, x)


def bits(c: ComputationBuilder, x: Value) -> Value:
    return add(c, "rng", x.shape)


def zeros(c: ComputationBuilder, x: Value) -> list[Value]:
    return [c.constant(0, S32) for _ in x.shape.dims]


def via(*dtypes: torch.dtype) -> Make:
    def make(c: ComputationBuilder, x: Value) -> Value:
        for d in dtypes:
            x = c.convert(x, d)
        return x

    return make


# Of an argument f32[2,3]; what is left.
CASES: dict[str, tuple[Make, str]] = {
    "reshape to the same shape": (lambda c, x: c.reshape(x, (2, 3)), ""),
    "reshape and back": (lambda c, x: c.reshape(c.reshape(x, (6,)), (2, 3)), ""),
    "reshape twice": (lambda c, x: c.reshape(c.reshape(x, (6,)), (3, 2)), "reshape"),
    "transpose by nothing": (lambda c, x: transpose(c, x, (0, 1)), ""),
    "transpose and back": (lambda c, x: transpose(c, transpose(c, x, (1, 0)), (1, 0)), ""),
    "transpose twice": (
        lambda c, x: transpose(c, transpose(c, c.reshape(x, (1, 2, 3)), (2, 0, 1)), (0, 2, 1)),
        "reshape transpose",
    ),
    "convert to the same type": (via(F32), ""),
    "convert to a wider type and back": (via(F64, F32), ""),
    "convert to a narrower type and back": (via(BF16, F32), "convert convert"),
    "convert to a narrower, a wider, a narrower type": (via(BF16, F32, BF16), "convert"),
    "convert to a type of less range and back": (
        via(BF16, torch.float16, BF16),
        "convert convert convert",
    ),
    "convert a bool to a number and back": (via(torch.bool, S32, torch.bool), "convert"),
    "convert to a type of too few digits": (via(S32, F32, S32), "convert convert convert"),
    "broadcast to the same shape": (lambda c, x: spread(c, x, (2, 3), (0, 1)), ""),
    "broadcast twice": (
        lambda c, x: spread(c, spread(c, x, (4, 2, 3), (1, 2)), (4, 2, 5, 3), (0, 1, 3)),
        "broadcast",
    ),
    "a slice of everything": (full, ""),
    "a dynamic slice of everything": (lambda c, x: c.dynamic_slice(x, zeros(c, x), (2, 3)), ""),
    "an update of everything": (
        lambda c, x: c.dynamic_update_slice(fill(c, x, 2), x, zeros(c, x)),
        "",
    ),
    "concatenate one": (lambda c, x: add(c, "concatenate", x.shape, x, dimensions=[0]), ""),
    "copy": (lambda c, x: copy(c, x), ""),
    "select between equals": (lambda c, x: c.select(c.compare(x, x, "LT"), copy(c, x), x), ""),
    "select by a constant": (
        lambda c, x: c.select(c.constant(False, torch.bool), fill(c, x, 2), x),
        "",
    ),
    "compare whole numbers": (
        lambda c, x: c.compare(c.constant(1, S32), c.constant(2, S32), "LT"),
        "constant",
    ),
    "compare floats": (
        lambda c, x: c.compare(c.constant(1, F32), c.constant(2, F32), "LT"),
        "constant constant compare",
    ),
    "a bool that is not false, or true": (
        lambda c, x: [
            c.compare(c.compare(x, x, "LT"), c.broadcast(c.constant(k, torch.bool), (2, 3)), how)
            for k, how in ((False, "NE"), (True, "EQ"))
        ],
        "compare",
    ),
    "select by what is known": (
        lambda c, x: c.select(
            c.broadcast(c.compare(c.constant(3, S32), c.constant(0, S32), "NE"), x.shape.dims),
            x,
            fill(c, x, math.nan),
        ),
        "",
    ),
    "a bool that is not false": (
        lambda c, x: c.compare(b := c.compare(x, x, "LT"), fill(c, b, False), "NE"),
        "compare",
    ),
    "a bool that is true": (
        lambda c, x: c.compare(fill(c, b := c.compare(x, x, "LT"), True), b, "EQ"),
        "compare",
    ),
    "a bool that is not true": (
        lambda c, x: c.compare(b := c.compare(x, x, "LT"), fill(c, b, True), "NE"),
        "compare constant broadcast compare",
    ),
    "an element of a tuple": (lambda c, x: c.get_tuple_element(c.tuple([x, x]), 1), ""),
    "times one": (lambda c, x: c.multiply(fill(c, x, 1), c.multiply(x, fill(c, x, 1))), ""),
    "divided by one": (lambda c, x: add(c, "divide", x.shape, x, fill(c, x, 1)), ""),
    "minus zero": (lambda c, x: c.subtract(x, fill(c, x, 0)), ""),
    "minus negative zero": (
        lambda c, x: c.subtract(x, fill(c, x, -0.0)),
        "constant broadcast subtract",
    ),
    "plus zero": (lambda c, x: c.add(x, fill(c, x, 0)), "constant broadcast add"),
    "scalars": (
        lambda c, x: c.broadcast(
            c.add(c.convert(c.constant(3, S32), F32), c.multiply(*[c.constant(0.5, F32)] * 2)),
            (2,),
        ),
        "constant broadcast",
    ),
    "scalars out of range": (
        lambda c, x: c.convert(c.constant(1e30, F32), S32),
        "constant convert",
    ),
    "the same twice": (
        lambda c, x: [c.multiply(x, x), c.multiply(x, x), c.add(x, c.reshape(x, (2, 3)))],
        "multiply add",
    ),
    "other attributes": (
        lambda c, x: [c.compare(x, x, "LT"), c.compare(x, x, "LE")],
        "compare compare",
    ),
    "dead code": (lambda c, x: [c.multiply(x, x), c.add(x, x)][1], "add"),
    "the same name": (lambda c, x: [named(c, x, "a"), named(c, x, "a")], "copy"),
    "names": (lambda c, x: [named(c, x, "a"), named(c, x, "b")], "copy copy"),
    "a barrier": (
        lambda c, x: [c.add(x, x), c.add(*c.opt_barrier([x, x]))],
        "add tuple opt-barrier get-tuple-element get-tuple-element add",
    ),
    "custom calls": (
        lambda c, x: [c.custom_call("f", [x], x.shape) for _ in range(2)],
        "custom-call custom-call",
    ),
    "an effect": (
        lambda c, x: [c.custom_call("f", [x], x.shape, side_effect=True), x][1],
        "custom-call",
    ),
    "random bits": (lambda c, x: [bits(c, x), bits(c, x)], "rng rng"),
    "devices that communicate": (
        lambda c, x: [add(c, "all-gather", x.shape, x), add(c, "all-gather", x.shape, x)],
        "all-gather all-gather",
    ),
    "a sharding": (
        lambda c, x: constrain(c, constrain(c, x, pb.OpSharding()), pb.OpSharding()),
        "custom-call custom-call",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_simplify_remaining_opcodes(name: str):
    make, want = CASES[name]
    assert left(module_of(make)) == want


def test_simplify_integers_plus_and_minus_zero():
    both = lambda c, x: [c.subtract(x, fill(c, x, 0)), c.add(fill(c, x, 0), x)]  # noqa: E731
    assert left(module_of(both, S32)) == ""


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_simplify_16_bit_times_one(dtype: torch.dtype):
    assert left(module_of(lambda c, x: c.multiply(x, fill(c, x, 1)), dtype)) == ""
    assert left(module_of(lambda c, x: c.multiply(x, fill(c, x, 1.5)), dtype)) != ""
    scalar = module_of(lambda c, x: c.reshape(c.broadcast(c.constant(1.5, dtype), (1,)), ()))
    number = next(i for i in simplify(scalar).entry.instructions if i.opcode == "constant")
    assert left(scalar) == "constant"
    assert bytes(number.proto.literal.bf16s or number.proto.literal.f16s) in (b"\xc0?", b"\x00>")


def test_simplify_ignores_empty_frontend_attributes():
    # torch_xla says of all that it makes that it has frontend attributes: none.
    module = module_of(CASES["reshape and back"][0])
    for i in module.proto.computations[0].instructions:
        i.frontend_attributes.SetInParent()
    assert left(Module(module.proto)) == ""


def test_simplify_merges_equal_reductions(run: Run):
    b = Builder("f")
    c = b.computation("f")
    x = c.parameter(Shape(F32, (2, 3)))
    zero = c.constant(0, F32)
    # Each has a computation of its own, and those that do the same become one.
    sums = [reduce(c, x, zero, d, "add") for d in (0, 0, 1)]
    module = b.build(c.build(c.tuple([*sums, reduce(c, x, zero, 0, "maximum")])))
    found = simplify(module)
    verify(found)
    assert [i.opcode for i in found.entry.instructions].count("reduce") == 3
    assert len(found.computations) == 3
    x = torch.randn(2, 3)
    assert all(map(torch.equal, run(found, [x]), run(module, [x])))


def test_simplify_bodies_option():
    b = Builder("f")
    state = Shape.of_tuple([Shape(S32), Shape(F32)])
    body = b.computation("body")
    p = body.parameter(state)
    k, x = (body.get_tuple_element(p, n) for n in range(2))
    k = body.add(k, body.constant(1, S32))
    step = body.build(body.tuple([k, body.multiply(x, body.constant(1, F32))]))
    cond = b.computation("cond")
    k = cond.get_tuple_element(cond.parameter(state), 0)
    more = cond.build(cond.compare(k, cond.constant(3, S32), "LT"))
    entry = b.computation("f")
    start = entry.tuple([entry.constant(0, S32), entry.parameter(Shape(F32))])
    module = b.build(entry.build(entry.while_(more, step, start)))
    assert "multiply" in (i.opcode for c in simplify(module).computations for i in c.instructions)
    found = simplify(module, bodies=True)
    verify(found)
    assert "multiply" not in (i.opcode for c in found.computations for i in c.instructions)
    assert simplify(found, bodies=True).to_bytes() == found.to_bytes()


# -- programs of random operations, and arguments on which they are likely to go wrong ------------

DIMS = [(6,), (2, 3), (3, 2), (1, 6), (2, 1, 3)]
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.bool]
NUMBERS = [0, -0.0, 1, -1, 2, 0.5]
SPECIAL = torch.tensor([0.0, -0.0, 1.5, -3.0, float("inf"), float("nan")], dtype=torch.float64)


def arguments(rng: random.Random) -> list[torch.Tensor]:
    """One of each float type and an int64."""
    order = torch.tensor(rng.sample(range(6), 6))
    floats = [SPECIAL[order].to(t) for t in TYPES[:3]]
    return [*floats, torch.tensor([rng.randint(-5, 5) for _ in range(6)])]


def program(rng: random.Random, size: int = 40) -> Module:
    """A function of `arguments`."""
    b = Builder("random")
    c = b.computation("random")
    values = [c.parameter(Shape(t, (6,))) for t in (*TYPES[:3], torch.int64)]
    while len(values) < size:
        values.append(_operation(rng, c, values))
    chosen = rng.sample(values, 8)
    return b.build(c.build(c.tuple([v for v in chosen if v.shape.dtype != torch.bool])))


def _operation(rng: random.Random, c: ComputationBuilder, values: list[Value]) -> Value:
    x = rng.choice(values)
    dims, dtype = x.shape.dims, x.shape.dtype
    match rng.randrange(13):
        case 0:
            return c.convert(x, rng.choice(TYPES))
        case 1:
            return c.reshape(x, rng.choice(DIMS))
        case 2:
            return _transpose(rng, c, x)
        case 3:
            number = c.convert(c.constant(rng.choice(NUMBERS), torch.float32), dtype)
            return c.broadcast(number, dims)
        case 4:  # the same again
            return _raw(c, "negate", x) if dtype != torch.bool else c.multiply(x, x)
        case 5:
            packed = c.tuple([x, rng.choice(values)])
            return c.get_tuple_element(packed, rng.randrange(2))
        case 6:
            return rng.choice([c.reshape(x, dims), named(c, x, "name"), c.opt_barrier([x])[0]])
        case 7:
            start = [c.constant(0, torch.int32)] * len(dims)
            return c.dynamic_slice(x, start, dims)
        case 8:
            same = _alike(rng, x, values)
            start = [c.constant(0, torch.int32)] * len(dims)
            return c.dynamic_update_slice(x, same, start)
        case 9:
            predicate = c.compare(x, _alike(rng, x, values), "LT")
            return c.select(predicate, x, _alike(rng, x, values))
        case 10 if dtype in (torch.float32, torch.float64):
            number = c.broadcast(c.constant(rng.choice([1, -1, 2]), dtype), dims)
            return _raw(c, "divide", x, number)
        case _:
            number = c.broadcast(c.constant(rng.choice(NUMBERS), dtype), dims)
            other = rng.choice([number, number, _alike(rng, x, values)])
            pair = (x, other) if rng.random() < 0.7 else (other, x)
            kinds = [c.add, c.multiply] if dtype == torch.bool else [c.add, c.subtract, c.multiply]
            return rng.choice(kinds)(*pair)


def _alike(rng: random.Random, x: Value, values: list[Value]) -> Value:
    return rng.choice([v for v in values if v.shape == x.shape])


def _transpose(rng: random.Random, c: ComputationBuilder, x: Value) -> Value:
    order = rng.sample(range(len(x.shape.dims)), len(x.shape.dims))
    dims = [x.shape.dims[d] for d in order]
    value, proto = c.instruction("transpose", Shape(x.shape.dtype, dims), [x])
    proto.dimensions.extend(order)
    return value


def _raw(c: ComputationBuilder, opcode: str, *operands: Value) -> Value:
    return c.instruction(opcode, operands[0].shape, operands)[0]


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("seed", range(30))
def test_simplify_random_modules_bitwise_equal(seed: int, run: Run):
    rng = random.Random(seed)
    module, args = program(rng), arguments(rng)
    found = simplify(module)
    verify(found)
    assert len(found.entry.instructions) < len(module.entry.instructions)
    assert simplify(found).to_bytes() == found.to_bytes()
    whole = [Module(finished(m)) for m in (found, module)]
    for a, b in zip(*[run(m, args) for m in whole], strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def attention(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    q, k, v = (x @ w).chunk(3, -1)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return [F.layer_norm(x + F.gelu(y), (8,)), y.square().mean()]


def gradient(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    loss = lambda x, w: sum(y.sum() for y in attention(x, w))  # noqa: E731
    return [*xf.grad(loss, (0, 1))(x, w)]


@pytest.mark.parametrize("fun", [attention, gradient])
def test_simplify_attention_and_gradient_bitwise_equal(
    fun: Callable[..., list[torch.Tensor]], run: Run
):
    args = [torch.randn(2, 4, 8), torch.randn(8, 24)]
    lowered = xf.jit(fun).lower(*args)
    module = lowered.module
    args = [args[k] for k in lowered.traced.parts.lowering.inputs]
    found = simplify(module)
    assert len(found.entry.instructions) < len(module.entry.instructions)
    assert all(map(torch.equal, run(found, args), run(module, args)))
