"""Weights that are infinite or not numbers are of no use to anybody."""

import torch

import xfunc as xf

from .model import Params


class NotFiniteError(ValueError):
    """Weights are infinite or not numbers, so that nothing can be made of them."""


def check_finite(params: Params, name: str, hint: str) -> None:
    """Raise an error if weights, which `name` tells of, are not finite."""
    wrong, arrays = not_finite(params)
    if wrong:
        raise NotFiniteError(
            f"{name} has weights that are not finite, in {wrong} of {arrays} arrays: {hint}"
        )


def not_finite(params: Params) -> tuple[int, int]:
    """How many arrays have numbers that are not finite, and how many there are."""
    finite = xf.jit(lambda params: xf.tree.map(lambda p: torch.isfinite(p).all(), params))
    found = xf.tree.leaves(xf.device_get(finite(params)))
    return sum(not leaf for leaf in found), len(found)
