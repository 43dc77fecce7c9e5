"""Products with a weight that may have an adapter."""

from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


class Adapted(NamedTuple):
    """A weight and its adapter, added as `up @ down`, in place of a plain weight.

    For stacked weights each has one more leading dimension, over the layers.
    """

    base: Float[Tensor, "out in"]
    down: Float[Tensor, "rank in"]
    up: Float[Tensor, "out rank"]


def linear(x: Float[Tensor, "*batch in"], weight: Tensor | Adapted) -> Float[Tensor, "*batch out"]:
    """`x` times a weight. The sum of a weight and its adapter is never materialised."""
    if isinstance(weight, Adapted):
        return F.linear(x, weight.base) + F.linear(F.linear(x, weight.down), weight.up)
    return F.linear(x, weight)
