"""The devices that traced code names.

NOTE [devices of a trace]: a program has one device. Where traced code names an accelerator
(`"cuda"`, `"xla"`), or asks for the device of a tensor from outside, it gets that one, so code that
was written for one machine is traced on any. The CPU is the host: a tensor made there is a
constant, and to move a traced value there is to read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from xfunc.core import device
from xfunc.trace import recorder
from xfunc.trace.leaks import Leaked

if TYPE_CHECKING:
    from xfunc.trace.tracing import Trace

_WITH_DATA = ("cpu", *device.ACCELERATORS)


def of_trace(where: Any) -> Any:
    """The device of traced values in place of an accelerator; anything else as it is."""
    if type(where) in (str, int):
        try:
            named = torch.device(where)
        except RuntimeError:  # `where` may be a type of tensors, or wrong.
            return where
    else:
        named = where
    is_here = isinstance(named, torch.device) and named.type in device.ACCELERATORS
    return recorder.device() if is_here else where


def of_tensor(trace: Trace, x: torch.Tensor) -> torch.device:
    """The device of a tensor, as traced code sees it."""
    if isinstance(x, Leaked):
        return x.device  # as it says itself
    with torch._C.DisableTorchFunction():
        found = x.device
    is_outside = found.type in _WITH_DATA and not trace.has_made(x)
    return recorder.device() if is_outside else found


def of_move(
    trace: Trace, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of ``x.to(...)`` and ``x.type(...)``, with devices as of the trace."""
    given = dict(kwargs)
    if "tensor" in given:
        args = (*args, given.pop("tensor"))
    if len(args) > 1 and isinstance(args[1], torch.Tensor):
        x, other, *rest = args
        return (x, of_tensor(trace, other), other.dtype, *rest), given
    return (*args[:1], *map(of_trace, args[1:])), given
