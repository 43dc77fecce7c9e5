"""`x.new_tensor(data)` and `x.new(...)`, which torch makes by the device's name.

The values that functorch wraps, in `vmap` and derivatives, have no such name: torch says that
"DispatchKey Undefined doesn't correspond to a device".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor


def new_tensor(
    self: Tensor,
    data: Any,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
    **_: object,
) -> Tensor:
    """``torch.Tensor.new_tensor``."""
    dtype = self.dtype if dtype is None else dtype
    return torch.tensor(data, dtype=dtype, device=device, requires_grad=requires_grad)


def new(self: Tensor, *args: Any, device: torch.device | str | None = None) -> Tensor:
    """``torch.Tensor.new``: of sizes, of data, or the same as another tensor."""
    if len(args) == 1 and not isinstance(args[0], (torch.Size, int)):
        (data,) = args
        if not isinstance(data, Tensor):
            if not hasattr(data, "__getitem__"):
                raise TypeError(f"new(): data must be a sequence (got {type(data).__name__})")
            return torch.tensor(data, dtype=self.dtype, device=device)
        if data.dtype != self.dtype:
            raise TypeError(f"new(): expected {self.dtype} (got {data.dtype})")
        return data.view_as(data)
    return self.new_empty(*args, device=device) if args else self.new_empty(0, device=device)


NEW: dict[object, Callable[..., Tensor]] = {Tensor.new_tensor: new_tensor, Tensor.new: new}
"""The replacement for each of torch's two functions."""
"""What traced code calls in place of these functions of torch."""
