"""Products with a weight, which may be quantised and may have an adapter."""

from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8
from torch import Tensor

from . import float8
from .float8 import Scaled


class Quantised(NamedTuple):
    """A weight in 8 bits: `codes * scale`, with a scale for each output. It is not trained.

    For stacked weights each has one more leading dimension, over the layers.
    """

    codes: Int8[Tensor, "out in"]
    scale: Float[Tensor, "out 1"]


Weight: TypeAlias = Tensor | Quantised


class Adapted(NamedTuple):
    """A weight and its adapter, added as `up @ down`, in place of a plain weight.

    For stacked weights each has one more leading dimension, over the layers.
    """

    base: Weight
    down: Float[Tensor, "rank in"]
    up: Float[Tensor, "out rank"]


def linear(
    x: Float[Tensor, "*batch in"], weight: Weight | Adapted | Scaled
) -> Float[Tensor, "*batch out"]:
    """`x` times a weight. The sum of a weight and its adapter is never materialised."""
    if isinstance(weight, Adapted):
        return linear(x, weight.base) + F.linear(F.linear(x, weight.down), weight.up)
    if isinstance(weight, Scaled):
        return float8.product(x, *weight)
    if isinstance(weight, Quantised):
        made = F.linear(x, weight.codes.to(x.dtype))
        return (made * weight.scale.squeeze(-1)).to(x.dtype)
    return F.linear(x, weight)


def quantised(weight: Float[Tensor, "*stack out in"]) -> Quantised:
    """The nearest weight in 8 bits: the largest number of each output's row has the code 127."""
    wide = weight.float()
    largest = wide.abs().amax(-1, keepdim=True)
    scale = torch.where(largest > 0, largest / 127, 1.0)
    return Quantised((wide / scale).round().to(torch.int8), scale)


def plain(weight: Weight) -> Tensor:
    """The weight that codes stand for, in float32, or a weight as it is."""
    if isinstance(weight, Quantised):
        return weight.codes.float() * weight.scale
    return weight
