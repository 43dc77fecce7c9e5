"""Torch functions that move values between the host and torch_xla's device.

In a fork, which lacks the threads of the device's client, a read would wait for ever: it raises.

NOTE [complex128 on its way to the host]: torch_xla 2.9 loses the imaginary part.

NOTE [reads and other threads]: to read a value, torch_xla 2.9 takes a lock of the device, and then
Python's (the GIL); to launch a program, it keeps Python's and waits for the device's. So a thread
reads under the lock that launches take, `xfunc.backends.lock.lock`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from xfunc.backends import forks
from xfunc.backends.lock import lock
from xfunc.backends.torch_xla import uploads

Tensor = torch.Tensor

_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.XLA)
_library = torch.library.Library("aten", "IMPL")  # An override lives as long as its library.
_theirs: dict[str, Callable[..., Any]] = {}


def install() -> None:
    """Register these kernels in place of torch_xla's, which they call."""
    ours = {"_to_copy": _to_copy, "copy_": _copy, "_local_scalar_dense": _item, "_to_cpu": _to_cpu}
    with warnings.catch_warnings():
        # torch warns, once in a process, when a kernel replaces another.
        warnings.filterwarnings("ignore", "[^$]*Overriding a previously registered kernel")
        for name, run in ours.items():
            _theirs[name] = torch.library.get_kernel(f"aten::{name}", "XLA").call_boxed
            _library.impl(name, run, "XLA", allow_override=True)


def _read(name: str, *args: object, **options: object) -> Any:
    """torch_xla's own kernel, which reads: see NOTE [reads and other threads]."""
    forks.check()
    with lock.unless_refused():
        return _theirs[name](_KEYS, *args, **options)


def _on_host(x: Tensor) -> Tensor:
    """See NOTE [complex128 on its way to the host]."""
    return torch.view_as_complex(torch.view_as_real_copy(x).cpu())


def _to_copy(
    x: Tensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **options: object,
) -> Tensor:
    if not x.is_cpu:
        if device is None or device.type == "xla":
            return _theirs["_to_copy"](_KEYS, x, dtype=dtype, device=device, **options)
        if x.dtype is torch.complex128:
            return _on_host(x).to(device, dtype or x.dtype)
        return _read("_to_copy", x, dtype=dtype, device=device, **options)
    forks.check()
    x = x if dtype is None else x.to(dtype)
    if uploads.is_data(x):  # See NOTE [scalars of one's own].
        return uploads.uploaded(x)
    return _theirs["_to_copy"](_KEYS, x, device=device, **options)


def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if source.is_cpu or not x.is_cpu:
        return _theirs["copy_"](_KEYS, x, source, non_blocking)
    if source.dtype is torch.complex128:
        return x.copy_(_on_host(source))
    return _read("copy_", x, source, non_blocking)


def _item(x: Tensor) -> complex:
    if x.dtype is torch.complex128:
        return _on_host(x).item()
    return _read("_local_scalar_dense", x)


def _to_cpu(tensors: list[Tensor]) -> list[Tensor]:
    """The prefix of torch_xla's computations on the host."""
    found: list[Tensor] = _read("_to_cpu", tensors)
    return [
        _on_host(t) if t.dtype is torch.complex128 else f
        for t, f in zip(tensors, found, strict=True)
    ]
