"""Conversions between dtypes, and transfers between the device and the host.

NOTE [floating numbers as integers]: torch truncates towards zero and keeps the low bits that fit
the dtype: -1.0 is 255 as uint8. Values that overflow int32 (for int64: int64) become its least
number; torch leaves that undefined, and x86 processors do so. XLA saturates instead, and converts
NaN to 0.

NOTE [rounding to 8 bits once]: XLA's CPU client may convert float32 to float8 by way of float16,
and round twice: 25.002 becomes 25.0, which is as near to 24 as to 26. It gets numbers of 5 bits of
mantissa instead, whose last bit is set if anything was cut off: they pass float16 unchanged, and
are rounded as the original is. Those that do not pass it are so small that they become 0.

NOTE [reads of traced values]: torch_xla refuses to run a computation while a trace is open, but has
taken it from its tensor by then. Such a tensor has neither data nor a computation, and as long as
it lives, no synchronisation of live tensors succeeds. So what reads asks first.

NOTE [complex128 on its way to the host]: torch_xla 2.9 loses the imaginary part.

NOTE [reads beside other threads]: to read a value, torch_xla 2.9 takes a lock of the device, and
then Python's (the GIL); to launch a program, it keeps Python's and waits for the device's. So a
thread reads under the lock that launches take, `xfunc.backends.lock.lock`.
"""

from __future__ import annotations

from typing import Any

import torch

from xfunc.backends import forks
from xfunc.backends.active import tracer
from xfunc.backends.lock import lock
from xfunc.hlo import ComputationBuilder, Value
from xfunc.ops.emit import instruction
from xfunc.ops.registry import above, bare, theirs
from xfunc.torchlib.values import FLOAT8
from xfunc.trace import tracing

Tensor = torch.Tensor


def _convert(body: ComputationBuilder, x: Value, *, dtype: torch.dtype) -> Value:
    return body.convert(x, dtype)


def converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert floating or complex to integers or bool; see NOTE [floating numbers as integers].

    Or anything to float8; see NOTE [rounding to 8 bits once].
    """
    if dtype in FLOAT8:
        return instruction(_convert, _shortened(x.float()), dtype=dtype)
    if dtype is torch.bool:
        return (x.real != 0) | (x.imag != 0) if x.is_complex() else x != 0
    x = x.real if x.is_complex() else x
    x = x.to(torch.float32) if x.dtype.itemsize < 4 else x
    held = torch.int64 if dtype is torch.int64 else torch.int32
    end = -float(torch.iinfo(held).min)
    x = torch.where((x >= -end) & (x < end), x, -end)
    return instruction(_convert, instruction(_convert, x, dtype=held), dtype=dtype)


def _shortened(x: Tensor) -> Tensor:
    bits = x.view(torch.int32)
    cut = 0x3FFFF
    sticky = ((bits & cut) + cut) & (cut + 1)
    return ((bits & ~cut) | sticky).view(torch.float32)


def _differ(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether torch_xla's conversion differs from torch's."""
    if dtype in FLOAT8:
        return True
    if not dtype.is_floating_point and not dtype.is_complex:
        return x.is_complex() or (x.is_floating_point() and dtype is not torch.bool)
    return False


def check_readable(*tensors: Tensor) -> None:
    """Refuse to read a traced value: see NOTE [reads of traced values]."""
    if tracing.current() is not None and tracer().is_recorded(tensors):
        raise RuntimeError("Unexpected execution happens: a traced value has no data")


def _on_host(x: Tensor) -> Tensor:
    """See NOTE [complex128 on its way to the host]."""
    return torch.view_as_complex(above(torch.view_as_real, x).cpu())


def _read(name: str, *args: object, **options: object) -> Any:
    """torch_xla's own kernel, which reads: see NOTE [reads beside other threads]."""
    forks.check()
    with lock.unless_refused():
        return theirs(name, *args, **options)


@bare("_to_copy")
def to_copy(
    x: Tensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **options: object,
) -> Tensor:
    if x.device.type == "xla":
        leaves = device is not None and device.type != "xla"
        if leaves:
            check_readable(x)
        if leaves and x.dtype is torch.complex128:
            return _on_host(x).to(device, dtype or x.dtype)
        if leaves:
            return _read("_to_copy", x, dtype=dtype, device=device, **options)
        if not leaves and dtype is not None and _differ(x, dtype):
            return above(converted, x, dtype)
    else:
        x = x if dtype is None else x.to(dtype)
        moved = tracer().upload(x)
        if moved is not None:
            return moved
    return theirs("_to_copy", x, dtype=dtype, device=device, **options)


@bare("copy")
def copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if source.dtype != x.dtype:
        source = source.to(x.dtype)
    return theirs("copy", x, source, non_blocking)


@bare("copy_")
def copy_(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if source.device.type == "xla" and x.device.type != "xla":
        check_readable(source)
        if source.is_complex():
            return x.copy_(source.cpu())
        return _read("copy_", x, source, non_blocking)
    return theirs("copy_", x, source, non_blocking)


@bare("_local_scalar_dense")
def item(x: Tensor) -> complex:
    check_readable(x)
    if x.dtype is torch.complex128:
        return _on_host(x).item()
    return _read("_local_scalar_dense", x)


@bare("_to_cpu")
def to_cpu(tensors: list[Tensor]) -> list[Tensor]:
    """What torch_xla computes on the host begins with this."""
    check_readable(*tensors)
    return _read("_to_cpu", tensors)


def _filling(name: str, at: int) -> None:
    """An operation that writes a number into an array; torch_xla 2.9 converts 0.5 to False."""

    @bare(name)
    def run(*args: object, **options: object) -> Tensor:
        dtype = args[0].dtype if isinstance(args[0], Tensor) else options.get("dtype")
        if dtype is torch.bool:  # as an integer: torch_xla 2.9 uploads a boolean
            args = (*args[:at], int(bool(args[at])), *args[at + 1 :])
        return theirs(name, *args, **options)


for _name, _at in {"full": 1, "fill_.Scalar": 1, "fill.Scalar": 1, "masked_fill.Scalar": 2}.items():
    if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_name}", "XLA"):
        _filling(_name, _at)


@bare("constant_pad_nd")
def constant_pad_nd(x: Tensor, pad: list[int], value: complex = 0) -> Tensor:
    if not x.is_complex():
        return theirs("constant_pad_nd", x, pad, value)
    return above(_padded, x, pad, complex(value))


def _padded(x: Tensor, pad: list[int], value: complex) -> Tensor:
    real = torch.constant_pad_nd(x.real, pad, value.real)
    return torch.complex(real, torch.constant_pad_nd(x.imag, pad, value.imag))
