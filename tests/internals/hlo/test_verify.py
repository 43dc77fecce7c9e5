import copy
from collections.abc import Callable

import pytest
import torch

import xfunc as xf
from tests.internals.hlo.builder import Builder
from xfunc.hlo import InvalidHloError, Module, Shape, verify
from xfunc.hlo import hlo_pb2 as pb

pytestmark = pytest.mark.quick

X = Shape(torch.float32, (2,))


@pytest.fixture(scope="module")
def good() -> pb.HloModuleProto:
    """A module that has one of everything that is checked."""
    b = Builder("m")
    c = b.computation("same")
    same = c.build(c.parameter(X))
    c = b.computation("never")
    c.parameter(X)
    never = c.build(c.constant(False, torch.bool))
    c = b.computation("main")
    i, x = c.parameter(Shape(torch.int32)), c.parameter(X)
    called = c.call(same, [x])
    looped = c.while_(never, same, called)
    chosen = c.conditional(i, [same, same], [looped, x])
    (barred,) = c.opt_barrier([c.add(chosen, x)])
    return b.build(c.build(c.tuple([barred]))).proto


class Broken:
    """A copy, to be broken."""

    def __init__(self, good: pb.HloModuleProto) -> None:
        self.proto = copy.deepcopy(good)
        self.same, self.never, self.main = self.proto.computations

    def __getattr__(self, opcode: str) -> pb.HloInstructionProto:
        """The first instruction of this opcode in `main`."""
        opcode = opcode.rstrip("_").replace("_", "-")
        return next(i for i in self.main.instructions if i.opcode == opcode)

    def swap(self) -> None:
        """Exchange `never` and `main`."""
        never = copy.deepcopy(self.never)
        self.never.CopyFrom(self.main)
        self.main.CopyFrom(never)


F32 = Shape(torch.float32).to_proto()
IN_MAIN = r"in computation 'main.\d+': "


def assign(field: str, value: int | str | pb.ShapeProto) -> Callable[[object], None]:
    def do(m: object) -> None:
        *path, last = field.split(".")
        for name in path:
            m = m[int(name)] if name.lstrip("-").isdigit() else getattr(m, name)  # type: ignore[index]
        if isinstance(value, pb.ShapeProto):
            getattr(m, last).CopyFrom(value)
        elif last.lstrip("-").isdigit():
            m[int(last)] = value  # type: ignore[index]
        else:
            setattr(m, last, value)

    return do


# What is done to the module, and what verify says of it.
CORRUPTIONS: dict[str, tuple[Callable[[Broken], object], str]] = {
    "two instructions, one id": (
        lambda m: setattr(m.add, "id", m.call.id),
        rf"instruction 'add.\d+' {IN_MAIN}its id \d+ is that of call.\d+ too",
    ),
    "a computation with the id of an instruction": (
        lambda m: setattr(m.main, "id", m.same.instructions[0].id),
        r"computation 'main.\d+': its id \d+ is that of parameter.\d+ too",
    ),
    "two instructions, one name": (
        lambda m: setattr(m.add, "name", m.call.name),
        rf"instruction 'call.\d+' {IN_MAIN}there is another instruction of this name",
    ),
    "two computations, one name": (
        lambda m: setattr(m.never, "name", m.same.name),
        r"there are 2 computations of the name 'same.\d+'",
    ),
    "operand unknown": (
        assign("add.operand_ids.0", 999),
        rf"instruction 'add.\d+' {IN_MAIN}operand 999 is not defined before it",
    ),
    "operand after its user": (
        lambda m: assign("call.operand_ids.0", m.add.id)(m),
        rf"instruction 'call.\d+' {IN_MAIN}operand \d+ is not defined before it",
    ),
    "operand of another computation": (
        lambda m: assign("call.operand_ids.0", m.same.instructions[0].id)(m),
        rf"instruction 'call.\d+' {IN_MAIN}operand \d+ is not defined before it",
    ),
    "root": (assign("main.root_id", 999), r"computation 'main.\d+': the root 999 is missing"),
    "entry": (
        assign("proto.entry_computation_id", 999),
        r"module 'm': the entry computation 999 is missing",
    ),
    "callee unknown": (
        assign("call.called_computation_ids.0", 999),
        rf"instruction 'call.\d+' {IN_MAIN}it calls computation 999, which is missing",
    ),
    "callee after its caller": (
        lambda m: m.swap(),
        r"instruction 'while.\d+' in .*'main.\d+': it calls 'never.\d+', which is defined after it",
    ),
    "recursion": (
        lambda m: m.same.instructions[0].called_computation_ids.append(m.main.id),
        r"instruction 'parameter.\d+' in .*'same.\d+': it calls 'main.\d+', which is recursion",
    ),
    "parameter twice": (
        lambda m: setattr(m.main.instructions[1], "parameter_number", 0),
        rf"instruction 'parameter.\d+' {IN_MAIN}'parameter.\d+' is parameter 0 too",
    ),
    "parameter gap": (
        lambda m: setattr(m.main.instructions[1], "parameter_number", 2),
        rf"instruction 'parameter.\d+' {IN_MAIN}it is parameter 2 of only 2",
    ),
    "element type": (
        assign("call.shape.element_type", 0),
        rf"instruction 'call.\d+' {IN_MAIN}unknown element type 0",
    ),
    "tuple": (
        assign("tuple.shape.tuple_shapes.0.element_type", pb.S32),
        rf"instruction 'tuple.\d+' {IN_MAIN}its result is \(s32\[2\]\), but its operands make",
    ),
    "element": (
        assign("get_tuple_element.tuple_index", 1),
        rf"instruction 'get-tuple-element.\d+' {IN_MAIN}there is no element 1 in \(f32\[2\]\)",
    ),
    "element shape": (
        assign("get_tuple_element.shape", F32),
        rf"'get-tuple-element.\d+' {IN_MAIN}its result is f32\[\], but the element is f32\[2\]",
    ),
    "element of an array": (
        lambda m: assign("get_tuple_element.operand_ids.0", m.add.id)(m),
        rf"instruction 'get-tuple-element.\d+' {IN_MAIN}its operand is no tuple but f32\[2\]",
    ),
    "arity": (
        lambda m: m.get_tuple_element.operand_ids.append(m.add.id),
        rf"instruction 'get-tuple-element.\d+' {IN_MAIN}it has 2 operands, not 1",
    ),
    "callees": (
        lambda m: m.while_.called_computation_ids.append(m.same.id),
        rf"instruction 'while.\d+' {IN_MAIN}it calls 3 computations, not 2",
    ),
    "call result": (
        assign("call.shape", F32),
        rf"instruction 'call.\d+' {IN_MAIN}its result is f32\[\], but the callee returns f32\[2\]",
    ),
    "call operands": (
        lambda m: m.call.operand_ids.pop(),
        rf"instruction 'call.\d+' {IN_MAIN}it has 0 operands, the callee 1 parameters",
    ),
    "call operand": (
        lambda m: assign("call.operand_ids.0", m.parameter.id)(m),
        rf"instruction 'call.\d+' {IN_MAIN}operand 0 is s32\[\], parameter 0 of the callee",
    ),
    "while": (
        lambda m: assign("while_.called_computation_ids.0", m.never.id)(m),
        rf"instruction 'while.\d+' {IN_MAIN}its initial value is f32\[2\], but the body returns",
    ),
    "while condition": (
        lambda m: assign("while_.called_computation_ids.1", m.same.id)(m),
        rf"instruction 'while.\d+' {IN_MAIN}its condition is f32\[2\], but it should be pred\[\]",
    ),
    "conditional index": (
        lambda m: assign("conditional.operand_ids.0", m.call.id)(m),
        rf"instruction 'conditional.\d+' {IN_MAIN}the branch index is f32\[2\]",
    ),
    "conditional without index": (
        lambda m: m.conditional.ClearField("operand_ids"),
        rf"instruction 'conditional.\d+' {IN_MAIN}it has no branch index",
    ),
    "conditional arguments": (
        lambda m: m.conditional.operand_ids.pop(),
        rf"instruction 'conditional.\d+' {IN_MAIN}it has 2 branches and 1 arguments",
    ),
    "conditional branch": (
        lambda m: assign("conditional.called_computation_ids.1", m.never.id)(m),
        rf"instruction 'conditional.\d+' {IN_MAIN}its result is f32\[2\], but branch 1 returns",
    ),
    "barrier": (
        assign("opt_barrier.shape", F32),
        rf"instruction 'opt-barrier.\d+' {IN_MAIN}its result is f32\[\], but its operand is \(f32",
    ),
    "program shape": (
        assign("main.program_shape.result", F32),
        r"entry computation 'main.\d+': its result is \(f32\[2\]\), its program shape says f32\[\]",
    ),
    "host program shape": (
        assign("proto.host_program_shape.parameters.0.element_type", pb.F32),
        r"entry .* parameter 0 is s32\[\], its host program shape says f32\[\]",
    ),
    "parameters of the program shape": (
        lambda m: m.proto.host_program_shape.parameters.pop(),
        r"entry .* its host program shape has 1 parameters, the computation 2",
    ),
}


def test_verify_valid_module(good: pb.HloModuleProto):
    verify(Module(good))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_verify_names_corruption(good: pb.HloModuleProto, name: str):
    corrupt, message = CORRUPTIONS[name]
    broken = Broken(good)
    corrupt(broken)
    with pytest.raises(InvalidHloError, match=message):
        verify(Module(broken.proto))


def test_verify_torch_xla_lowering():
    def fun(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [torch.softmax(x @ y, -1), *torch.sort(x, 0), torch.cumsum(y, 0), y[:, 1:].amax()]

    verify(xf.jit(fun).lower(torch.zeros(3, 4), torch.zeros(4, 3)).traced.parts.lowering.module)


def test_verify_module_broken_after_first_check(good: pb.HloModuleProto):
    b = Builder("outer")
    module = Module(copy.deepcopy(good))
    assert "conditional" in str(module)
    b.embed(module)
    module.proto.computations[-1].instructions[0].name = "x"
    message = "instruction 'x' in .* its name does not end in a number"
    with pytest.raises(InvalidHloError, match=message):
        str(module)
    with pytest.raises(InvalidHloError, match=message):
        Builder("another").embed(module)
