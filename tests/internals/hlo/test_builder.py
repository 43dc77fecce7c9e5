import pytest
import torch

from tests.internals.hlo.builder import Builder
from tests.internals.hlo.computation import Function, Value
from xfunc.hlo import InvalidHloError, Module, Shape
from xfunc.hlo import hlo_pb2 as pb

from .conftest import Lower, Run

pytestmark = pytest.mark.quick

F32 = torch.float32
ANCHOR = torch.zeros(())  # torch_xla runs only computations of at least one parameter


def sum_of_slices(b: Builder, n: int, width: int) -> Function:
    """The sum of the rows of an array, row by row."""
    xs, row = Shape(F32, (n, width)), Shape(F32, (width,))
    carry = Shape.of_tuple([Shape(torch.int32), row, xs])

    c = b.computation("more")
    p = c.parameter(carry)
    more = c.build(c.compare(c.get_tuple_element(p, 0), c.constant(n, torch.int32), "LT"))

    c = b.computation("step")
    p = c.parameter(carry)
    i, total, x = (c.get_tuple_element(p, k) for k in range(3))
    found = c.dynamic_slice(x, [i, c.constant(0, torch.int32)], [1, width])
    total = c.add(total, c.reshape(found, (width,)))
    step = c.build(c.tuple([c.add(i, c.constant(1, torch.int32)), total, x]))

    c = b.computation("sum")
    x = c.parameter(xs)
    init = c.tuple([c.constant(0, torch.int32), c.zeros(row), x])
    return c.build(c.tuple([c.get_tuple_element(c.while_(more, step, init), 1)]))


def test_builder_while_sums_slices(run: Run):
    b = Builder("loop")
    module = b.build(sum_of_slices(b, 5, 3))
    x = torch.randn(5, 3)
    (found,) = run(module, [x])
    torch.testing.assert_close(found, x.sum(0))
    assert "while(" in str(module)


def test_builder_names_end_in_unique_ids():
    b = Builder("loop")
    module = b.build(sum_of_slices(b, 5, 3))
    everything = [*module.computations, *(i for c in module.computations for i in c.instructions)]
    assert all(x.name.endswith(f".{x.id}") for x in everything)
    assert len({x.id for x in everything}) == len(everything)


@pytest.mark.parametrize("choice", [True, False, 0, 1, 2, -1, 7])
def test_builder_conditional(run: Run, choice: int):
    dtype = torch.bool if isinstance(choice, bool) else torch.int32
    b = Builder("choose")
    branches = []
    for k in range(2 if dtype == torch.bool else 3):
        c = b.computation(f"branch{k}")
        x = c.parameter(Shape(F32))
        branches.append(c.build(c.multiply(x, c.constant(10.0**k, F32))))
    c = b.computation("choose")
    index, x = c.parameter(Shape(dtype)), c.parameter(Shape(F32))
    module = b.build(c.build(c.tuple([c.conditional(index, branches, [x] * len(branches))])))
    (found,) = run(module, [torch.tensor(choice, dtype=dtype), torch.tensor(2.0)])
    # Out of range means the last branch; with a boolean, the first is for True.
    taken = {0: 1, 1: 0}[choice] if dtype == torch.bool else {0: 0, 1: 1}.get(choice, 2)
    assert found == 2 * 10**taken


@pytest.mark.parametrize(
    "dtype",
    (
        "bool int8 int16 int32 int64 uint8 float16 bfloat16 float32 float64 complex64 complex128"
    ).split(),
)
def test_builder_literal(run: Run, dtype: str):
    kind = getattr(torch, dtype)
    value = torch.tensor([[0, 1, 3], [-7 if kind.is_signed else 7, 100, 2]]).to(kind)
    if kind.is_complex:
        value = value + 2.5j * value.flip(0)
    elif kind.is_floating_point:
        value[0] = torch.tensor([torch.inf, torch.nan, 1 / 3])
    transposed = value.conj().t()  # neither contiguous nor, if complex, resolved
    b = Builder("literal")
    c = b.computation("literal")
    c.parameter(Shape(F32))
    scalar = c.constant(1, kind)
    outputs = [c.literal(value), c.literal(transposed), scalar, c.zeros(Shape(kind, (2,)))]
    expected = [value, transposed, torch.ones((), dtype=kind), torch.zeros(2, dtype=kind)]
    found = run(b.build(c.build(c.tuple(outputs))), [ANCHOR])
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "dtype",
    "uint16 uint32 uint64 float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz".split(),
)
def test_builder_literal_of_dtypes_torch_xla_lacks(run: Run, dtype: str):
    kind = getattr(torch, dtype)
    value = torch.tensor([0.0, 1.0, 2.0, 104.0]).to(kind)
    b = Builder("literal")
    c = b.computation("literal")
    c.parameter(Shape(F32))
    module = b.build(c.build(c.tuple([c.convert(c.literal(value), F32)])))
    (found,) = run(module, [ANCHOR])
    torch.testing.assert_close(found, value.to(F32), rtol=0, atol=0)


def test_builder_constant_keeps_all_digits(run: Run):
    b = Builder("constants")
    c = b.computation("constants")
    c.parameter(Shape(F32))
    big, fine = 2**62 + 1, 0.1 + 1e-16
    values = [c.constant(big, torch.int64), c.constant(fine, torch.float64)]
    found = run(b.build(c.build(c.tuple(values))), [ANCHOR])
    assert [f.item() for f in found] == [big, fine]


def test_builder_constant_inside_torch_func_transforms():
    def fun(x: torch.Tensor) -> torch.Tensor:
        c = Builder("constants").computation("constants")
        c.constant(1.0, F32)
        c.zeros(Shape(torch.bfloat16, (2,)))
        return x.sum()

    x = torch.ones(3)
    torch.func.grad(fun)(x)
    torch.func.jvp(fun, (x,), (x,))
    torch.func.vmap(fun)(x)
    with torch.device("meta"):
        fun(x)


def test_builder_arithmetic(run: Run):
    b = Builder("arithmetic")
    c = b.computation("arithmetic")
    x, y = c.parameter(Shape(F32, (4,))), c.parameter(Shape(F32, (4,)))
    less, yes = c.compare(x, y, "LT"), c.constant(True, torch.bool)
    outputs: dict[str, Value] = {
        "x - y": c.subtract(x, y),
        "x * y": c.multiply(x, y),
        "x < y": less,
        "torch.where(x < y, x, y)": c.select(less, x, y),
        "x + 0": c.select(yes, x, y),
        "x.long()": c.convert(x, torch.int64),
        "torch.full((2, 3), 7.0)": c.broadcast(c.constant(7.0, F32), (2, 3)),
        "torch.cat([x[:1], y[:2], x[3:]])": c.dynamic_update_slice(
            x, c.dynamic_slice(y, [c.constant(-5, torch.int64)], [2]), [c.constant(1, torch.int64)]
        ),
    }
    module = b.build(c.build(c.tuple(list(outputs.values()))))
    args = {"x": torch.tensor([1.0, -2.5, 3, 4]), "y": torch.tensor([2.0, -3, 3, 5])}
    expected = [eval(text, {"torch": torch}, args) for text in outputs]
    torch.testing.assert_close(run(module, list(args.values())), expected)


def test_builder_zeros_of_nested_tuple(run: Run):
    shape = Shape.of_tuple([Shape(F32, (2,)), Shape.of_tuple([Shape(torch.int32)])])
    b = Builder("zeros")
    c = b.computation("zeros")
    c.parameter(Shape(F32))
    zeros = c.zeros(shape)
    assert zeros.shape == shape
    inner = c.get_tuple_element(c.get_tuple_element(zeros, 1), 0)
    module = b.build(c.build(c.tuple([c.get_tuple_element(zeros, 0), inner])))
    expected = [torch.zeros(2), torch.zeros((), dtype=torch.int32)]
    torch.testing.assert_close(run(module, [ANCHOR]), expected)


def test_builder_opt_barrier(run: Run):
    b = Builder("barrier")
    c = b.computation("barrier")
    x, y = c.opt_barrier([c.parameter(Shape(F32)), c.parameter(Shape(F32))])
    assert c.opt_barrier([]) == []
    module = b.build(c.build(c.tuple([c.subtract(x, y)])))
    assert str(module).count("opt-barrier(") == 1
    assert run(module, [torch.tensor(5.0), torch.tensor(3.0)])[0] == 2


def test_builder_custom_call(run: Run):
    b = Builder("sharding")
    c = b.computation("sharding")
    x = c.parameter(Shape(F32, (4,)))
    replicated = pb.OpSharding(type=pb.OpSharding.REPLICATED)
    y = c.custom_call(
        "Sharding", [x], x.shape, side_effect=True, attributes={"a": "1"}, sharding=replicated
    )
    module = b.build(c.build(c.tuple([y])))
    text = str(module)
    assert 'custom_call_target="Sharding", custom_call_has_side_effect=true' in text
    assert "sharding={replicated}" in text
    assert 'frontend_attributes={a="1"}' in text
    torch.testing.assert_close(run(module, [torch.arange(4.0)]), [torch.arange(4.0)])


def test_builder_embed_twice(run: Run, lower: Lower):
    x = torch.randn(3, 4)
    module = lower(lambda x: [torch.tanh(x).sum(0), x + x], [x])
    before = module.to_bytes()
    b = Builder("twice")
    target = b.embed(module)
    assert b.embed(module) is target
    other = b.embed(Module.from_bytes(before))
    assert other is not target
    assert other.parameters == target.parameters == (Shape(F32, (3, 4)),)
    c = b.computation("twice")
    p = c.parameter(Shape(F32, (3, 4)))
    once = c.get_tuple_element(c.call(target, [p]), 1)
    again = c.call(other, [once])
    built = b.build(c.build(c.tuple([once, *(c.get_tuple_element(again, k) for k in (0, 1))])))
    found = run(built, [x])
    torch.testing.assert_close(found, [x * 2, torch.tanh(x * 2).sum(0), x * 4])
    assert len(built.computations) == 2 * len(module.computations) + 1
    assert module.to_bytes() == before


def test_builder_embed_built_while(run: Run):
    inner = Builder("inner")
    module = inner.build(sum_of_slices(inner, 5, 3))
    b = Builder("outer")
    c = b.computation("outer")
    x = c.parameter(Shape(F32, (5, 3)))
    built = b.build(c.build(c.call(b.embed(module), [x])))
    x = torch.randn(5, 3)
    torch.testing.assert_close(run(built, [x]), [x.sum(0)])


def test_builder_entry_need_not_be_last(run: Run):
    b = Builder("entry")
    c = b.computation("entry")
    entry = c.build(c.tuple([c.add(x := c.parameter(Shape(F32)), x)]))
    c = b.computation("other")
    c.build(c.parameter(Shape(F32)))
    assert run(b.build(entry), [torch.tensor(2.0)])[0] == 4


class World:
    """Values of every kind, for the errors."""

    def __init__(self) -> None:
        self.b = Builder("m")
        c = self.b.computation("same")
        self.same = c.build(c.parameter(Shape(F32, (2,))))
        c = self.b.computation("truth")
        c.parameter(Shape(F32, (2,)))
        self.truth = c.build(c.constant(True, torch.bool))
        self.c = self.b.computation("main")
        self.x = self.c.parameter(Shape(F32, (2,)))
        self.y = self.c.parameter(Shape(F32, (3,)))
        self.i = self.c.parameter(Shape(torch.int32))
        self.t = self.c.tuple([self.x, self.y])
        other = self.b.computation("other")
        self.foreign = other.parameter(Shape(F32, (2,)))
        elsewhere = Builder("n").computation("f")
        self.alien = elsewhere.build(elsewhere.parameter(Shape(F32, (2,))))
        self.meta = torch.empty(2, device="meta")


ERRORS = {
    "add(x, y)": r"'add.\d+' in computation 'main.\d+': its operands are f32\[2\] and f32\[3\]",
    "add(t, t)": r"'add.\d+' .*: its operands are \(f32\[2\], f32\[3\]\) and",
    "add(x, foreign)": r"'add.\d+' in .*'main.\d+': operand 'parameter.\d+' is from .*'other.\d+'",
    "build(foreign)": r"'main.\d+': the root 'parameter.\d+' is from computation 'other.\d+'",
    "get_tuple_element(t, 2)": r"'get-tuple-element.\d+' .* there is no element 2 in \(f32",
    "get_tuple_element(x, 0)": r"'get-tuple-element.\d+' .* its operand is no tuple but f32\[2\]",
    "call(same, [])": r"'call.\d+' .* it has 0 operands, the callee 1 parameters",
    "call(same, [y])": r"'call.\d+' .* operand 0 is f32\[3\], parameter 0 of the callee f32\[2\]",
    "call(alien, [x])": r"'call.\d+' .* 'f.\d+' is part of module 'n'",
    "while_(truth, same, y)": r"'while.\d+' .* value is f32\[3\], but the body takes f32\[2\]",
    "while_(truth, truth, x)": r"'while.\d+' .* f32\[2\], but the body returns pred\[\]",
    "while_(same, same, x)": r"'while.\d+' .* condition is f32\[2\], but it should be pred\[\]",
    "conditional(x, [same], [x])": r"'conditional.\d+' .* the branch index is f32\[2\]",
    "conditional(i, [], [])": r"'conditional.\d+' .* it has no branches",
    "conditional(i, [same], [])": r"'conditional.\d+' .* 1 branches and 0 arguments",
    "conditional(i, [same], [y])": r"'conditional.\d+' .* argument of branch 0 is f32\[3\], but",
    "conditional(i, [same, truth], [x, x])": r"'conditional.\d+' .* but branch 1 returns pred\[\]",
    "conditional(compare(i, i, 'EQ'), [same], [x])": r"a pred\[\] chooses among 2 branches",
    "compare(x, x, 'LESS')": r"'compare.\d+' .* there is no direction 'LESS'",
    "select(i, x, x)": r"'select.\d+' .* its predicate is s32\[\], its choices are f32\[2\]",
    "convert(t, torch.int32)": r"'convert.\d+' .* its operand is no array but \(f32",
    "broadcast(x, (2, 2))": r"'broadcast.\d+' .* its operand is no scalar but f32\[2\]",
    "reshape(x, (3,))": r"'reshape.\d+' .* f32\[2\] does not fit into dimensions \[3\]",
    "dynamic_slice(x, [], [1])": r"'dynamic-slice.\d+' .* 1 dimensions, there are 0 start indices",
    "dynamic_slice(x, [i], [3])": r"'dynamic-slice.\d+' .* sizes \[3\] do not fit into .* \[2\]",
    "dynamic_slice(x, [x], [1])": r"'dynamic-slice.\d+' .* start indices are f32\[2\], not integer",
    "dynamic_update_slice(x, i, [])": r"'dynamic-update-slice.\d+' .* s32\[\] cannot be written",
    "literal(meta)": r"'constant.\d+' .* its tensor is on meta, not on the CPU",
}


@pytest.mark.parametrize("text", ERRORS)
def test_builder_errors_name_instruction(text: str):
    world = World()
    c = world.c
    methods = {n: getattr(c, n) for n in dir(c) if not n.startswith("_")}
    with pytest.raises(InvalidHloError, match=ERRORS[text]):
        eval(text, {"torch": torch}, {**methods, **vars(world)})


def test_builder_finished_computation_raises():
    w = World()
    w.c.build(w.x)
    with pytest.raises(InvalidHloError, match=r"'add.\d+' in .* the computation is finished"):
        w.c.add(w.x, w.x)
    with pytest.raises(InvalidHloError, match=r"computation 'main.\d+': it is finished"):
        w.c.build(w.x)
    with pytest.raises(InvalidHloError, match=r"module 'm': the entry 'f.\d+' is part of .* 'n'"):
        w.b.build(w.alien)
