"""Small predicates and checks on tensors for tracing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from xfunc.core import device
from xfunc.core.avals import short
from xfunc.core.types import Shaped
from xfunc.errors import UnsupportedOpError, format_error
from xfunc.torchlib import functorch, storageless

FLOAT8 = frozenset((torch.float8_e4m3fn, torch.float8_e5m2))
"""Dtypes that are held, but hardly computed with: see `xfunc.torchlib.float8`."""
SUPPORTED = FLOAT8 | {
    torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
}  # fmt: skip


def unseen() -> contextlib.AbstractContextManager[None]:
    """Hide the calls in a block from all torch function modes."""
    return torch._C.DisableTorchFunction()


def is_tracked(tensor: torch.Tensor) -> bool:
    """Whether some differentiation, at any level of torch.func, is watching a tensor."""
    with torch._C.DisableTorchFunction():
        while True:
            if tensor.requires_grad:
                return True
            if not functorch.is_wrapped(tensor):
                return False
            tensor = functorch.unwrapped(tensor)


_DENSE = "convert it to a dense tensor of a supported dtype first."


def check_array(x: Shaped, name: str | None, label: str = "a captured tensor") -> None:
    """Raise unless `x` is an array that XLA can hold.

    Args:
        x: a tensor, or its description.
        name: of the function that is being traced, if one is.
        label: what the message calls `x`.
    """
    if (why := why_no_array(x)) is not None:
        problem, hint = why
        raise _refused(f"{label}{problem}", name, hint)


def why_no_array(x: Shaped) -> tuple[str, str] | None:
    """Why XLA cannot hold `x` (a tensor, or its description), and a hint; None if it can."""
    problem, hint = None, _DENSE
    if isinstance(x, torch.Tensor):
        if torch.nn.parameter.is_lazy(x):  # It has no shape either.
            hint = "call the module once on an example, which makes its parameters."
            return " cannot be used: it is not initialised yet", hint
        if x.is_nested and x.layout is torch.strided:
            return " cannot be used: it is a nested tensor", hint
    if x.dtype not in SUPPORTED:
        problem = f"its dtype {x.dtype} is not supported"
    elif isinstance(x, torch.Tensor):
        if x.layout is not torch.strided:
            problem = f"its layout {x.layout} is not supported"
        elif x.device.type == "meta":
            problem = "it is on the meta device and has no data"
            hint = "make it on another device, or use its shape and dtype only."
        elif (found := storageless.why_no_data(x)) is not None:
            problem, hint = found
    return None if problem is None else (f" ({short(x)}) cannot be used: {problem}", hint)


def check_dtype(dtype: torch.dtype, others: Iterable[object], name: str) -> None:
    """Raise unless XLA supports a dtype that an operation was given, or it is one of `others`."""
    known = dtype in SUPPORTED or dtype is torch.complex32  # refused where it is used
    if known or any(_is_of_host(v) for v in others):
        return
    raise _not_an_array(f"{dtype} is not supported", name)


def _is_of_host(x: object) -> bool:
    if isinstance(x, torch.Tensor):
        return x.device.type == "cpu"
    return isinstance(x, (str, torch.device)) and str(x) == "cpu"


def _not_an_array(problem: str, name: str | None) -> UnsupportedOpError:
    return _refused(problem, name, _DENSE)


def _refused(problem: str, name: str | None, hint: str) -> UnsupportedOpError:
    return UnsupportedOpError(format_error(problem, hint, function=name))


def tensors_in(args: Sequence[object], kwargs: Mapping[str, object]) -> Iterator[torch.Tensor]:
    """The tensors among the arguments of a call, inside tuples and lists too."""
    for a in (*args, *kwargs.values()):
        if isinstance(a, torch.Tensor):
            yield a
        elif isinstance(a, (tuple, list)):
            yield from tensors_in(a, {})


def find_traced(data: object) -> torch.Tensor | None:
    """A tensor on the device somewhere in Python data, if there is one."""
    return next((t for t in tensors_in([data], {}) if t.device.type == device.TYPE), None)


def on_device(where: Any) -> bool:
    """Whether a `device` argument, as of the trace, means the device that programs run on."""
    return where is None or torch.device(where).type == device.TYPE
