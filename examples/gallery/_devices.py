"""What the examples for several devices share."""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import xfunc as xf


def devices() -> int:
    """The number of devices; a machine without accelerators gets eight of the CPU."""
    if "CPU_NUM_DEVICES" not in os.environ and os.environ.get("PJRT_DEVICE", "CPU") == "CPU":
        xf.config.set_cpu_devices(8)
    return xf.device_count()


def mean_square(name: str, f: Callable[..., Tensor], *args: Any) -> Tensor:
    """Print and return the mean square of ``f(*args)``, and its gradients' norms by leaf."""
    square = xf.value_and_grad(lambda args: f(*args).square().mean())
    value, grads = square(args)
    norms = [g.norm().item() for g in xf.tree.leaves(grads)]
    shown = ", ".join(f"{norm:.4f}" for norm in norms)
    print(f"{name}: mean square {value.item():.4f}, gradients of norm {shown}")
    return torch.tensor([value.item(), *norms])
