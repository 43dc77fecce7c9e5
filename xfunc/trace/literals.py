"""Host data as constants of a program, without a transfer."""

from __future__ import annotations

import torch

from xfunc.backends.active import tracer
from xfunc.core.avals import Aval, hlo_shape
from xfunc.hlo import Builder
from xfunc.torchlib import functorch


def literal(value: torch.Tensor) -> torch.Tensor:
    """A traced tensor that is the constant `value` (a CPU tensor)."""
    with functorch.bottom_level():  # In a jvp, what is made would be a value of its level.
        return _literal(value)


def _literal(value: torch.Tensor) -> torch.Tensor:
    if value.numel() == 0 or value.ndim == 0:
        with torch._C.DisableTorchFunction():  # It is not a traced value: it may be read.
            fill = value.item() if value.ndim == 0 else 0
        return torch.full(value.shape, fill, dtype=value.dtype, device=tracer().device())
    b = Builder("literal")
    body = b.computation("literal")
    body.parameter(hlo_shape(Aval((), torch.bool)))
    with torch._C.DisableTorchFunction():
        module = b.build(body.build(body.tuple([body.literal(value)])))
    computation = tracer().computation("literal", module.to_bytes())
    # A user computation needs an input to determine its device.
    anchor = torch.zeros((), dtype=torch.bool, device=tracer().device())
    return tracer().apply("literal", [anchor], computation)[0]
