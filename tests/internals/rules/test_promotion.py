"""`result_type` of operands that are arrays, or scalars, which count less."""

import pytest
import torch

from xfunc.rules.operands import result_type

pytestmark = pytest.mark.quick

HALF = torch.tensor([1.5, 2.0]).bfloat16()
INTS = torch.tensor([1, 2], dtype=torch.int32)


def test_result_type_of_several_operands() -> None:
    scalar, half, whole = torch.tensor(1.0), HALF, INTS
    assert result_type([half, scalar]) == torch.bfloat16
    assert result_type([whole, scalar]) == torch.float32
    assert result_type([whole, torch.tensor(2), half]) == torch.bfloat16
    assert result_type([scalar, torch.tensor(1.0, dtype=torch.float64)]) == torch.float64
    assert result_type([whole, torch.tensor(1j)]) == torch.complex64
