"""Products of float32 ask for all digits; others are left as they are."""

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from xfunc.hlo import Module, verify
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.passes.precise import ask_for_float32

pytestmark = pytest.mark.quick

HIGHEST = [pb.PrecisionConfig.HIGHEST] * 2
UNSAID: list[int] = []  # which XLA takes as DEFAULT


def asked(f, *args) -> list[list[int]]:
    """What the products of a function ask for, after the pass."""
    module = Module.from_bytes(xf.jit(f).lower(*args).module.to_bytes())
    ask_for_float32(module.proto)
    verify(Module(module.proto))
    products = ("dot", "convolution")
    found = [i for c in module.proto.computations for i in c.instructions if i.opcode in products]
    return [[*i.precision_config.operand_precision] for i in found]


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        (torch.float32, HIGHEST),
        (torch.complex64, HIGHEST),
        (torch.float64, UNSAID),
        (torch.bfloat16, UNSAID),
        (torch.float16, UNSAID),
    ],
)
def test_ask_for_float32_by_dtype(dtype, wanted):
    x, w = torch.ones(3, 4, dtype=dtype), torch.ones(4, 5, dtype=dtype)
    assert asked(torch.matmul, x, w) == [wanted]
    if not dtype.is_complex:
        assert asked(F.conv1d, x[None], w[None, :3, :2]) == [wanted]


def test_ask_for_float32_in_scan_and_grad():
    def loss(w, xs):
        return xf.scan(lambda c, x: (torch.tanh(c @ w + x), None), torch.ones(3, 4), xs)[0].sum()

    found = asked(xf.grad(loss), torch.ones(4, 4), torch.ones(2, 3, 4))
    assert len(found) >= 3
    assert found == [HIGHEST] * len(found)
