"""Optimizers of torch, which name the devices on which their state may be tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from xfunc.core import device


def allow_capturable() -> None:
    """Let `capturable` optimizers run on the device of traced tensors."""
    name = "_get_capturable_supported_devices"
    for path, module in [*sys.modules.items()]:
        if path.startswith(f"{torch.optim.__name__}.") and hasattr(module, name):
            setattr(module, name, _with_device(getattr(module, name)))


def _with_device(devices: Callable[[bool], list[str]]) -> object:
    def supported(supports_xla: bool = True) -> list[str]:
        return [*devices(supports_xla), device.TYPE]

    return supported
