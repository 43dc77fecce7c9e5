"""Host data as tensors: as constants of a program, without a transfer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from xfunc.backends.torch_xla import runtime
from xfunc.core.avals import Aval, hlo_shape
from xfunc.hlo import Builder


def from_numpy(x: Any) -> Any:
    """A NumPy array or scalar as a tensor of the CPU, with data of its own; else `x` itself."""
    if not isinstance(x, (np.ndarray, np.generic)):
        return x
    array = np.asarray(x)
    if array.dtype.name == "bfloat16":  # of ml_dtypes, as JAX hands out
        return torch.from_numpy(np.array(array, order="C").view(np.int16)).view(torch.bfloat16)
    try:
        # A copy: torch takes no negative strides, and warns of memory that it may not write.
        return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
    except TypeError:  # of strings or objects
        return x


def literal(value: torch.Tensor) -> torch.Tensor:
    """A traced tensor that is the constant `value` (a CPU tensor)."""
    if value.numel() == 0 or value.ndim == 0:
        with torch._C.DisableTorchFunction():  # It is no traced value: it may be read.
            fill = value.item() if value.ndim == 0 else 0
        return torch.full(value.shape, fill, dtype=value.dtype, device=runtime.device())
    b = Builder("literal")
    body = b.computation("literal")
    body.parameter(hlo_shape(Aval((), torch.bool)))
    with torch._C.DisableTorchFunction():
        module = b.build(body.build(body.tuple([body.literal(value)])))
    xb = runtime.builder()
    computation = xb.computation_from_module_proto("literal", module.to_bytes())
    # A user computation needs an input, to know its device by.
    anchor = torch.zeros((), dtype=torch.bool, device=runtime.device())
    return runtime.user_computation("literal", [anchor], computation)[0]
