"""The functions of `torch.nn.init` that torch shows to a mode as one call.

torch would run their bodies without the mode, and what they draw would not be seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import init

Tensor = torch.Tensor


def _uniform(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    with torch.no_grad():
        return tensor.uniform_(a, b, generator=generator)


def _normal(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: torch.Generator | None = None
) -> Tensor:
    with torch.no_grad():
        return tensor.normal_(mean, std, generator=generator)


def _constant(tensor: Tensor, val: float) -> Tensor:
    with torch.no_grad():
        return tensor.fill_(val)


def truncated_normal(
    tensor: Tensor,
    mean: float,
    std: float,
    a: float,
    b: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw by the inverse of the distribution: newer torch draws until all values lie within."""
    low, high = (math.erf((x - mean) / (std * math.sqrt(2.0))) for x in (a, b))
    with torch.no_grad():
        tensor.uniform_(low, high, generator=generator)
        return tensor.erfinv_().mul_(std * math.sqrt(2.0)).add_(mean).clamp_(min=a, max=b)


def _kaiming_uniform(
    tensor: Tensor,
    a: float = 0,
    mode: Any = "fan_in",
    nonlinearity: Any = "leaky_relu",
    generator: torch.Generator | None = None,
) -> Tensor:
    if 0 in tensor.shape:
        return tensor
    fan: int = vars(init)["_calculate_correct_fan"](tensor, mode)
    bound = math.sqrt(3.0) * init.calculate_gain(nonlinearity, a) / math.sqrt(fan)
    return _uniform(tensor, -bound, bound, generator)


INITIALISERS: dict[object, Callable[..., Tensor]] = {
    init.uniform_: _uniform,
    init.normal_: _normal,
    init.constant_: _constant,
    init.kaiming_uniform_: _kaiming_uniform,
}
