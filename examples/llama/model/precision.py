"""In which dtypes weights are kept and a model is computed, and how updates reach the weights.

bfloat16 has 8 significant bits: an update of less than 1/512 of a weight is lost when their sum is
rounded to the nearest, however often it occurs. All of `PRECISIONS` but the last preserve it.
Optimizers compute in float32: `wide` makes the weights they are given, `kept` stores what they
return.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import BFloat16, Float32, Int
from torch import Tensor

import xfunc as xf

from .parameters import cast, is_buffer

Tree: TypeAlias = Any  # a pytree of tensors


@dataclass(frozen=True)
class Precision:
    """A way to keep weights and to compute."""

    weights: torch.dtype  # that they are kept in
    arithmetic: torch.dtype  # that the model computes in
    at_random: bool = False  # whether updated weights are rounded so that their mean is right

    def computing(self, params: Tree) -> Tree:
        """The weights in the form the model computes with."""
        if self.arithmetic == self.weights:
            return params
        return cast(params, self.arithmetic)

    def wide(self, params: Tree) -> Tree:
        """The weights as they are updated: in float32."""
        if self.weights == torch.float32:
            return params
        return xf.tree.map(torch.Tensor.float, params)

    def kept(self, wide: Tree, step: Int[Tensor, ""]) -> Tree:
        """Weights as they are kept.

        Rounding at random depends on the number of updates, `step`, alone, so that an interrupted
        run continues as it would have.
        """
        if self.weights == torch.float32:
            return wide
        if self.at_random:
            leaves, treedef = xf.tree.leaves_with_path(wide), xf.tree.structure(wide)
            keys = xf.random.split(xf.random.fold_in(xf.random.key(0), step), len(leaves))
            made = [
                w if is_buffer(path) else stochastic(w, key)
                for (path, w), key in zip(leaves, keys, strict=True)
            ]
            return xf.tree.unflatten(treedef, made)
        return cast(wide, self.weights)


PRECISIONS = {
    "float32": Precision(torch.float32, torch.float32),
    "mixed": Precision(torch.float32, torch.bfloat16),
    "stochastic": Precision(torch.bfloat16, torch.bfloat16, at_random=True),
    "bfloat16": Precision(torch.bfloat16, torch.bfloat16),
}

LOSSY = (
    "train.precision=bfloat16 loses updates of less than 1/512 of a weight: "
    "stochastic and mixed keep them"
)


def stochastic(x: Float32[Tensor, "*shape"], key: Int[Tensor, "2"]) -> BFloat16[Tensor, "*shape"]:
    """`x` rounded to one of the two nearest numbers of bfloat16, so that its mean is `x`.

    bfloat16 is the upper half of a float32. A random lower half, added to the bits of a number,
    carries into the upper half with a probability that grows with how near the number is to the
    next one.
    """
    noise = xf.random.bits(key, tuple(x.shape)) & 0xFFFF
    rounded = ((x.view(torch.int32) + noise) & -0x10000).view(torch.float32)
    return torch.where(torch.isfinite(x), rounded, x).bfloat16()
