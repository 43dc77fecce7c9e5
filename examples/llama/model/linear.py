"""Products with a weight, which may be quantised and may have an adapter."""

from typing import NamedTuple, TypeAlias

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from . import quantised
from .quantised import Quantised

Weight: TypeAlias = Tensor | Quantised


class Adapted(NamedTuple):
    """A weight and its adapter, added as `up @ down`, in place of a plain weight."""

    base: Weight
    down: Float[Tensor, "rank in"] | None
    up: Float[Tensor, "out rank"]


def linear(x: Float[Tensor, "*batch in"], weight: Weight | Adapted) -> Float[Tensor, "*batch out"]:
    """`x` times a weight. The sum of a weight and its adapter is never materialised."""
    if isinstance(weight, Adapted):
        assert weight.down is not None
        return linear(x, weight.base) + F.linear(F.linear(x, weight.down), weight.up)
    if quantised.is_quantised(weight):
        return quantised.product(x, weight)
    return F.linear(x, weight)
