import subprocess
import sys

import pytest
import torch
from google.protobuf.unknown_fields import UnknownFieldSet

from xfunc.hlo import InvalidHloError, Module
from xfunc.hlo import hlo_pb2 as pb

from .conftest import Lower

X = torch.zeros(4, 4)


def test_module_views_of_a_lowering(lower: Lower):
    module = lower(lambda x, y: [torch.tanh(x @ y) + x, y.sum()], [X, X])
    entry = module.entry
    assert module.name.endswith("<lambda>")
    assert module.computations[-1] is entry
    assert module.computation(entry.id) is entry
    assert repr(module) == f"<HLO module {module.name}: {len(module.computations)} computations>"
    assert repr(entry) == f"<computation {entry.name}: {len(entry.instructions)} instructions>"

    by_opcode = {i.opcode: i for i in entry.instructions}
    dot, tanh, reduce = by_opcode["dot"], by_opcode["tanh"], by_opcode["reduce"]
    x, y = entry.parameters
    assert (x.parameter_number, y.parameter_number) == (0, 1)
    assert dot.operands == (x, y)
    assert tanh.operands == (dot,)
    assert dot.users == (tanh,)
    assert set(y.users) == {dot, reduce}
    assert entry.root.users == ()
    assert entry.root is by_opcode["tuple"]
    assert dot.computation is entry
    assert module.instruction(dot.id) is dot
    assert repr(dot) == f"<{dot.name} = dot>"
    (add,) = reduce.called_computations
    assert add is not entry
    assert add.root.opcode == "add"
    assert dot.called_computations == ()
    position = {i: k for k, i in enumerate(entry.instructions)}
    assert all(position[o] < position[i] for i in entry.instructions for o in i.operands)


def test_instruction_users_without_duplicates(lower: Lower):
    module = lower(lambda x: [x * x], [X])
    (x,) = module.entry.parameters
    assert len(x.users) == 1
    assert x.users[0].operands == (x, x)


def test_module_str_is_xla_text(lower: Lower):
    text = str(lower(lambda x: [torch.tanh(x)], [X]))
    assert text.startswith("HloModule test_module_str_is_xla_text")
    assert "tanh(" in text


def test_module_str_of_broken_module_raises(lower: Lower):
    module = lower(lambda x: [torch.tanh(x)], [X])
    module.proto.computations[-1].root_id = 999
    with pytest.raises(InvalidHloError, match="the root 999 is missing"):
        str(module)


def test_module_lookup_errors(lower: Lower):
    module = lower(lambda x: [torch.tanh(x)], [X])
    with pytest.raises(InvalidHloError, match=r"module '.*<lambda>' has no computation 999"):
        module.computation(999)
    with pytest.raises(InvalidHloError, match=r"module '.*<lambda>' has no instruction 999"):
        module.instruction(999)
    with pytest.raises(InvalidHloError, match=r"instruction 'tuple.\d+' in .* is no parameter"):
        _ = module.entry.root.parameter_number
    broken = Module.from_bytes(module.to_bytes())
    broken.proto.computations[-1].root_id = 999
    with pytest.raises(InvalidHloError, match="has no root 999"):
        _ = broken.entry.root
    broken.proto.computations[-1].instructions[-1].operand_ids[0] = 999
    with pytest.raises(InvalidHloError, match=r"'tuple.\d+' .* operand 999 is not defined before"):
        _ = Module(broken.proto).entry.instructions
    first = Module.from_bytes(module.to_bytes())
    first.proto.computations[-1].instructions[0].shape.element_type = pb.PRIMITIVE_TYPE_INVALID
    with pytest.raises(InvalidHloError, match=r"'parameter.\d+' in .* unknown element type 0"):
        _ = first.entry.instructions[0].shape


def test_module_unknown_fields_round_trip(lower: Lower):
    image, kernel = torch.zeros(1, 2, 8, 8), torch.zeros(3, 2, 3, 3)
    module = lower(lambda a, b: [torch.nn.functional.conv2d(a, b, padding=1)], [image, kernel])
    again = Module.from_bytes(module.to_bytes())
    (conv,) = (i.proto for i in module.entry.instructions if i.opcode == "convolution")
    (same,) = (i.proto for i in again.entry.instructions if i.opcode == "convolution")
    known = {f.number for f in pb.HloInstructionProto.DESCRIPTOR.fields}
    window, dimension_numbers = 15, 16
    assert not known & {window, dimension_numbers}
    fields = [(f.field_number, f.wire_type) for f in UnknownFieldSet(conv)]
    assert {window, dimension_numbers} <= {number for number, _ in fields}
    assert [(f.field_number, f.wire_type) for f in UnknownFieldSet(same)] == fields
    assert same.SerializeToString() == conv.SerializeToString()
    assert str(again) == str(module)
    assert "window={size=3x3 pad=1_1x1_1}" in str(again)


def test_module_unknown_field_bytes_round_trip():
    # Field 1000 of the module, of an instruction: length-delimited, any bytes.
    unknown = b"\xc2\x3e\x05\x00\xff\x01\x02\x80"
    instruction = pb.HloInstructionProto.FromString(unknown)
    instruction.name = "x.1"
    module = pb.HloModuleProto.FromString(unknown)
    module.computations.add(instructions=[instruction])
    data = Module(module).to_bytes()
    assert data.count(unknown) == 2
    assert Module.from_bytes(data).to_bytes() == data


def test_module_to_bytes_is_deterministic():
    def module(keys: str) -> Module:
        proto = pb.HloModuleProto()
        i = proto.computations.add().instructions.add()
        for key in keys:
            i.frontend_attributes.map[key] = "1"
        return Module(proto)

    assert module("abcdefgh").to_bytes() == module("hgfedcba").to_bytes()


def test_hlo_import_without_warnings_or_torch_xla():
    # A fresh process, since this one has imported it; without the rest of the package.
    code = (
        "import importlib, sys, types; p = types.ModuleType('xfunc'); p.__path__ = ['xfunc']; "
        "sys.modules['xfunc'] = p; h = importlib.import_module('xfunc.hlo'); "
        "h.Module.from_bytes(b'').to_bytes(); assert 'torch_xla' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
