"""Tensors without memory of their own, and modes that only imagine or record what is computed.

To upload a tensor, we read the memory at its storage's address. torch's wrappers (FakeTensor,
DTensor, MaskedTensor and others), which handle each operation in Python, have no memory: reading it
would crash the process.
"""

# torch does not declare these in its type stubs.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import torch
from torch._C import _functorch

from xfunc.core import ambient, device
from xfunc.core.avals import short
from xfunc.errors import UnsupportedOpError, fail, format_error
from xfunc.torchlib import functorch

_PYTHON: Any = torch._C.DispatchKey.Python
_FUNCTIONAL: Any = torch._C.DispatchKey.Functionalize
_keys_of = torch._C._dispatch_keys

_NEVER = ("FakeTensor", "FunctionalTensor")
_INSIDE = (
    "pass the plain tensors inside it (x.to_local() of a DTensor, x.get_data() of a MaskedTensor)."
)
_ABSTRACT = (
    "call the function with real tensors, outside of torch.jit.trace, torch.export, make_fx and "
    "FakeTensorMode; xf.export writes its program, and xf.eval_shape finds the shapes of its "
    "results."
)
_ENDED = "return the value from the function that torch.func transforms, and use the result."
_EMPTY = "pass a tensor that has its memory."


HELD_ELSEWHERE: set[type] = set()
"""Classes of tensors without memory that torch's operations can read nevertheless."""


def is_without_memory(x: torch.Tensor) -> bool:
    """Whether a strided tensor of the CPU has elements, and no memory for them."""
    with torch._C.DisableTorchFunction():
        return not _has_address(x) and x.numel() > 0


def is_handled_in_python(x: torch.Tensor) -> bool:
    """Whether a tensor's class handles the operations on it."""
    return _keys_of(x).has(_PYTHON)


def with_memory(x: torch.Tensor) -> torch.Tensor:
    """The values of a tensor for which `is_without_memory` is true.

    Raises:
        UnsupportedOpError: it has none.
    """
    with torch._C.DisableTorchFunction():
        found = why_no_data(x)
        if found is not None:
            problem = f"a tensor that a program takes ({short(x)}) cannot be used: {found[0]}"
            raise UnsupportedOpError(format_error(problem, found[1]))
        x = functorch.innermost(x)
        return x.clone() if x._is_zerotensor() else x


def why_no_data(x: torch.Tensor) -> tuple[str, str] | None:
    """Why a strided tensor of the CPU or the device has no data, and a hint; None: it has."""
    with torch._C.DisableTorchFunction():
        if _has_escaped(x):
            return "it belongs to a transform of torch.func that has ended", _ENDED
        x = functorch.innermost(x)
        keys, on_device = _keys_of(x), x.device.type in ("xla", device.TYPE)
        kind = type(x).__name__
        if kind in _NEVER:  # First: to ask for its address gives a warning.
            return f"it is a {kind}, which has no data", _ABSTRACT
        if is_handled_in_python(x):
            if type(x) in HELD_ELSEWHERE:
                return None
            # torch_xla's own tensors, which have no address, all have the other key.
            if keys.has(_FUNCTIONAL) if on_device else _has_address(x):
                return None
            return f"it is a {kind}, which has no memory of its own", _INSIDE
        if on_device or x._is_zerotensor() or not is_without_memory(x):
            return None
        if keys.has(_FUNCTIONAL):
            return "a tracer of torch's has made it, and it has no data", _ABSTRACT
        return "its storage has been released", _EMPTY


def _has_escaped(x: torch.Tensor) -> bool:
    """Whether a wrapper has left its transform.

    False for the wrapper of a gradient, because torch then takes its value; and inside of a trace,
    because the levels around the trace are hidden there.
    """
    if not functorch.is_wrapped(x) or _functorch.is_gradtrackingtensor(x) or ambient.is_busy():
        return False
    top = functorch.top_level()
    return _functorch.maybe_get_level(x) > (0 if top is None else top.level())


def _has_address(x: torch.Tensor) -> bool:
    try:
        return torch.Tensor.data_ptr(x) != 0
    except RuntimeError:  # A wrapper says that it has no storage.
        return False


def check_surroundings(name: str) -> None:
    """Raise if torch is recording this thread's operations, or running them without data.

    The recorder would not see the operations of a program; in torch.jit.trace, moreover, sizes are
    tensors.

    Args:
        name: name of the function that was called.
    """
    if (found := _tracer_of_torch()) is not None:
        problem = f"{name} was called inside of {found}, which does not see what a program does"
        fail(UnsupportedOpError, problem, _ABSTRACT)


def _tracer_of_torch() -> str | None:
    if torch._C._is_tracing():
        return "torch.jit.trace"
    if functorch.top_level() is not None and functorch.FUNCTIONALIZE in functorch.levels():
        return "torch.func.functionalize"
    if not torch._C._len_torch_dispatch_stack():
        return None
    modes = (key for key in _MODES if torch._C._get_dispatch_mode(key) is not None)
    return next((_MODES[key] for key in modes), None)


_KEYS = torch._C._TorchDispatchModeKey
_MODES = {
    _KEYS.PROXY: "make_fx or torch.export",
    _KEYS.FUNCTIONAL: "FunctionalTensorMode",
    _KEYS.FAKE: "FakeTensorMode",
}
