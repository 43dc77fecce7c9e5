"""Constants of a program made from host data, without a transfer."""

from __future__ import annotations

import torch

from xfunc import runtime
from xfunc.avals import Aval, hlo_shape
from xfunc.hlo import Builder


def literal(value: torch.Tensor) -> torch.Tensor:
    """A traced tensor that is the constant `value` (a CPU tensor)."""
    if value.numel() == 0 or value.ndim == 0:
        fill = value.item() if value.ndim == 0 else 0
        return torch.full(value.shape, fill, dtype=value.dtype, device=runtime.device())
    b = Builder("literal")
    body = b.computation("literal")
    body.parameter(hlo_shape(Aval((), torch.bool)))
    module = b.build(body.build(body.tuple([body.literal(value)])))
    xb = runtime.builder()
    computation = xb.computation_from_module_proto("literal", module.to_bytes())
    # A user computation needs an input, to know its device by.
    anchor = torch.zeros((), dtype=torch.bool, device=runtime.device())
    return runtime.user_computation("literal", [anchor], computation)[0]
