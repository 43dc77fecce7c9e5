"""Products of matrices in 8 bits, each scaled by what was largest in recent steps.

The operands of a product are divided by a scale and rounded: inputs and weights to float8_e4m3fn,
and the gradients of outputs, whose magnitudes differ more, to float8_e5m2. A scale must be known
before the numbers are, or they would be read twice. So it comes from the steps before ("delayed
scaling"): from the largest magnitude in the last `HISTORY` of them. What exceeds it is clamped.

Source: Micikevicius et al., FP8 Formats for Deep Learning, 2022; the recipe is that of NVIDIA's
Transformer Engine.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

import xfunc as xf

HISTORY = 16
FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
_OPERANDS = 3  # of a product and its gradients: inputs, weight, and the gradient of the outputs


class Scaled(NamedTuple):
    """A weight whose products are computed in 8 bits, in place of a plain weight.

    For stacked weights each has one more leading dimension, over the layers.
    """

    weight: Float[Tensor, "out in"]
    history: Float[Tensor, "operands steps"]  # the largest magnitudes of each, the newest first


def start(weight: Float[Tensor, "layers out in"]) -> Float[Tensor, "layers operands steps"]:
    """The history of a stacked weight before the first step."""
    return torch.zeros((weight.shape[0], _OPERANDS, HISTORY), dtype=torch.float32)


@xf.custom_vjp
def product(
    x: Float[Tensor, "*batch in"],
    weight: Float[Tensor, "out in"],
    history: Float[Tensor, "operands steps"],
) -> Float[Tensor, "*batch out"]:
    """`x` times a weight. The "gradient" of the history is the history after this step."""
    return _forward(x, weight, history)[0]


class _Kept(NamedTuple):
    """For the backward pass: the operands, their scales and largest magnitudes, the history."""

    x: Float[Tensor, "rows in"]
    weight: Float[Tensor, "out in"]
    scales: tuple[Tensor, Tensor]
    largest: tuple[Tensor, Tensor]
    history: Float[Tensor, "operands steps"]


def _forward(x: Tensor, weight: Tensor, history: Tensor) -> tuple[Tensor, _Kept]:
    rows, x_scale, x_largest = quantised(x.flatten(0, -2), FORWARD, history[0])
    matrix, w_scale, w_largest = quantised(weight, FORWARD, history[1])
    made = torch._scaled_mm(rows, matrix.t(), x_scale, w_scale, out_dtype=x.dtype)
    kept = _Kept(rows, matrix, (x_scale, w_scale), (x_largest, w_largest), history)
    return made.unflatten(0, x.shape[:-1]), kept


def _backward(kept: _Kept, ct: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, scale, largest = quantised(ct.flatten(0, -2), BACKWARD, kept.history[2])
    of_x = torch._scaled_mm(rows, kept.weight, scale, kept.scales[1], out_dtype=ct.dtype)
    of_weight = torch._scaled_mm(rows.t(), kept.x, scale, kept.scales[0], out_dtype=ct.dtype)
    now = torch.stack([*kept.largest, largest])[:, None]
    history = torch.cat([now, kept.history[:, :-1]], 1)
    return of_x.unflatten(0, ct.shape[:-1]), of_weight, history


product.defvjp(_forward, _backward)


def quantised(
    x: Float[Tensor, "rows columns"], dtype: torch.dtype, history: Float[Tensor, " steps"]
) -> tuple[Tensor, Float[Tensor, ""], Float[Tensor, ""]]:
    """`x` divided by a scale, in 8 bits; the scale; and the largest magnitude, 0 if not finite.

    Without a history, the scale is right for `x` itself. Infinities become NaN, as a clamp would
    hide them.
    """
    wide, end = x.float(), torch.finfo(dtype).max
    now = wide.abs().amax()
    now = torch.where(now.isfinite(), now, 0.0)
    known = history.amax()
    known = torch.where(known > 0, known, now)
    scale = torch.where(known > 0, known / end, 1.0)
    clamped = torch.where(wide.isinf(), torch.nan, (wide / scale).clamp(-end, end))
    return clamped.to(dtype), scale, now


def scaled(params: Any, scaling: Any) -> Any:
    """Parameters with `Scaled` weights where there is a history."""
    if not isinstance(params, dict):
        return Scaled(params, scaling)
    changed = {name: scaled(params[name], part) for name, part in scaling.items()}
    return params | changed
