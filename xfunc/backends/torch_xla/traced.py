"""What torch_xla knows of the tensors that it traces."""

from __future__ import annotations

import torch

from xfunc.backends.torch_xla import runtime
from xfunc.core.avals import Aval
from xfunc.torchlib import functorch


def number_of(tensor: torch.Tensor) -> int:
    """torch_xla's number of an unwrapped tensor."""
    # Asking for the number brings views up to date, by operations that must not be transformed.
    with functorch.bottom_level():
        return runtime.xla()._xla_get_tensor_id(tensor)


def refill(tensor: torch.Tensor) -> None:
    """Give a leaked tensor placeholder data.

    One whose reading was refused half-way has neither data nor a computation: any later
    synchronisation would fail on it.
    """
    with torch._C.DisableTorchFunction(), functorch.bottom_level():
        while functorch.is_wrapped(tensor):
            tensor = functorch.unwrapped(tensor)
        if tensor.device.type == "xla":
            # Of any shape: nothing will look at it, and a broken one does not know its own.
            runtime.xla()._replace_xla_tensor(tensor, runtime.placeholder(Aval((), tensor.dtype)))


def as_said(t: torch.Tensor) -> torch.Tensor:
    """A plain traced tensor that holds what its dtype says: where no operand told of it."""
    if t.device.type != "xla":
        return t
    held = _HELD.get(runtime.xla()._get_xla_tensor_shape_type(t), t.dtype)
    if held == t.dtype:
        return t
    with torch._C.DisableTorchFunction():
        return t.to(held).to(t.dtype)


_HELD = {
    "pred": torch.bool, "s8": torch.int8, "s16": torch.int16, "s32": torch.int32,
    "s64": torch.int64, "u8": torch.uint8, "f16": torch.float16, "bf16": torch.bfloat16,
    "f32": torch.float32, "f64": torch.float64, "c64": torch.complex64, "c128": torch.complex128,
}  # fmt: skip
