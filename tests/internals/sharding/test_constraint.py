"""The instruction that `with_sharding_constraint` makes."""

from __future__ import annotations

import math

import pytest
import torch

import xfunc as xf
from tests.support.divided import on
from xfunc.hlo import hlo_pb2 as pb
from xfunc.sharding import with_sharding_constraint
from xfunc.torchlib.values import SUPPORTED


@pytest.mark.parametrize("dtype", sorted(SUPPORTED, key=str), ids=str)
@pytest.mark.parametrize("shape", [(), (0, 4), (8,), (4, 2, 8)], ids=str)
def test_sharding_constraint_is_one_instruction(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """It is no call of another computation, has the name of no other, and changes nothing."""
    x = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    f = xf.jit(lambda x: with_sharding_constraint(x, on(*("fsdp",) * (len(shape) == 1))))
    (computation,) = f.lower(x).module.computations
    (call,) = [i for i in computation.instructions if i.opcode == "custom-call"]
    assert call.proto.custom_call_target == "Sharding"
    assert call.proto.metadata.op_name == "xfunc__constraint"
    assert not call.proto.frontend_attributes.map
    kind = pb.OpSharding.OTHER if len(shape) == 1 else pb.OpSharding.REPLICATED
    assert call.proto.sharding.type == kind
    made = f(x)
    assert (made.dtype, made.shape) == (dtype, x.shape)
    assert torch.equal(made.cpu().to(torch.complex128), x.to(torch.complex128))
