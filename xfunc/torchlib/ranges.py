"""``torch.arange`` and ``torch.linspace`` in the precision of their dtype.

torch_xla 2.9 computes both the numbers and their count in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from xfunc.torchlib import filling, fitting, reading


def _is_number(*xs: object) -> bool:
    return all(isinstance(x, (int, float)) for x in xs)


def _made(values: torch.Tensor, dtype: torch.dtype, kwargs: Mapping[str, object]) -> torch.Tensor:
    out = values.to(dtype)
    return out.requires_grad_() if kwargs.get("requires_grad") else out


def _counted(n: int, kwargs: Mapping[str, Any]) -> torch.Tensor:
    return torch.arange(n, device=kwargs.get("device")).to(torch.float64)


def arange(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``torch.arange``."""
    given = [*args, *(kwargs[k] for k in ("start", "end", "step") if k in kwargs)]
    if "out" in kwargs or not _is_number(*given) or all(isinstance(x, int) for x in given):
        return torch.arange(*args, **kwargs)
    like = torch.arange(*args, **{**kwargs, "device": "meta", "requires_grad": False})
    start, step = 0.0, 1.0
    if len(args) > 1 or "end" in kwargs:
        start = args[0] if args else kwargs.get("start", 0)
    step = args[2] if len(args) > 2 else kwargs.get("step", 1)
    if not like.dtype.is_floating_point:
        start, step = int(start), int(step)
    return _made(_counted(like.shape[0], kwargs) * step + start, like.dtype, kwargs)


def linspace(
    start: torch.Tensor | complex, end: torch.Tensor | complex, steps: int, **kwargs: Any
) -> torch.Tensor:
    """``torch.linspace``."""
    if _are_tensors(start, end, kwargs):
        return reading.linspace(start, end, steps, **kwargs)
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    if "out" in kwargs or not _is_number(start, end, steps) or not dtype.is_floating_point:
        for x in (start, end):
            fitting.check_number(torch.linspace, x, dtype)
        return filling.linspace(start, end, steps, **kwargs)
    step = (end - start) / max(steps - 1, 1)
    at = _counted(steps, kwargs)
    # From both ends, as in torch, so that the last number is exactly the end.
    values = torch.where(at < steps / 2, at * step + start, end - (steps - 1 - at) * step)
    return _made(values, dtype, kwargs)


def logspace(
    start: torch.Tensor | complex, end: torch.Tensor | complex, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """``torch.logspace``."""
    run = reading.logspace if _are_tensors(start, end, kwargs) else torch.logspace
    return run(start, end, *args, **kwargs)


def _are_tensors(start: object, end: object, kwargs: Mapping[str, object]) -> bool:
    some = any(isinstance(x, torch.Tensor) for x in (start, end))
    return some and not kwargs.keys() - {"steps", "base", "dtype", "device", "layout", "pin_memory"}


RANGES = {torch.arange: arange, torch.linspace: linspace, torch.logspace: logspace}
"""The replacement for each of these torch functions."""
