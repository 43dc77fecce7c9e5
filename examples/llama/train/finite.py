"""Checks that weights are finite."""

import torch

import xfunc as xf

from ..model import Params


class NotFiniteError(ValueError):
    """Weights, or logits computed with them, are infinite or NaN."""


def check_finite(params: Params, name: str, hint: str) -> None:
    """Raise an error, in which the weights are called `name`, if they are not finite."""
    wrong, arrays = not_finite(params)
    if wrong:
        raise NotFiniteError(
            f"{name} has weights that are not finite, in {wrong} of {arrays} arrays: {hint}"
        )


def not_finite(params: Params) -> tuple[int, int]:
    """How many arrays have elements that are not finite, and how many arrays there are."""
    finite = xf.jit(lambda params: xf.tree.map(lambda p: torch.isfinite(p).all(), params))
    found = xf.tree.leaves(xf.device_get(finite(params)))
    return sum(not leaf for leaf in found), len(found)
