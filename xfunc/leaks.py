"""What becomes of traced values that outlive their trace."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from xfunc import functorch, purity, runtime
from xfunc.errors import LeakError, report
from xfunc.purity import Kind
from xfunc.values import refill, tensors_in


class Leaked(torch.Tensor):
    """A traced value whose trace has ended: any use raises."""

    _xfunc_leak: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if purity.kind_of(func) is Kind.REPR:
            return "<traced value that outlived its trace>"
        flat = [a for a in tensors_in(args, kwargs or {}) if isinstance(a, Leaked)]
        raise LeakError(flat[0]._xfunc_leak if flat else "a traced value outlived its trace")


class Token(Leaked):
    """What is left of a value that a cached function holds: see NOTE [tokens] in `tracing`."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if purity.kind_of(func) is Kind.METADATA:
            if func in purity.DEVICE:
                return runtime.device() if func == purity.DEVICE[0] else True
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


def defuse(tensor: torch.Tensor, text: str) -> None:
    """Let any use of a leaked value raise a `LeakError` with this text."""
    refill(tensor)
    tensor.__class__ = Leaked
    vars(tensor)["_xfunc_leak"] = text


def empty(token: torch.Tensor, name: str) -> None:
    """Make a `Token` of a value that a cached function holds; `name` is of the traced function."""
    with contextlib.suppress(RuntimeError):  # Shared with C++: defused all the same.
        nothing = torch.empty(token.shape, dtype=token.dtype, device="meta")
        functorch.swap_contents(token, nothing)
    token.__class__ = Token
    vars(token)["_xfunc_leak"] = report(
        "a traced value, kept by a cached function, was used outside of its trace",
        "return the value from the function instead of storing it outside.",
        function=name,
    )
