"""Names of torch's functions in messages."""

import pytest
import torch

import xfunc as xf
from xfunc.torchlib.torch_functions import operation_name


def test_functions_of_autograd_are_named_by_their_module() -> None:
    assert operation_name(torch.autograd.grad) == "torch.autograd.grad"
    assert operation_name(torch.nn.functional.relu) == "torch.relu"
    assert operation_name(torch.nn.functional.silu) == "torch.nn.functional.silu"


def test_property_that_python_defines_is_torchs_error() -> None:
    assert xf.jit(lambda x: x + hasattr(x, "__cuda_array_interface__"))(torch.ones(())).item() == 1
    with pytest.raises(AttributeError, match="Can't get __cuda_array_interface__ on non-CUDA"):
        xf.jit(lambda x: x.__cuda_array_interface__)(torch.ones(()))
