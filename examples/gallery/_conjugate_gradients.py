"""The method of conjugate gradients."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import xfunc as xf


def conjugate_gradients(matvec: Callable[[Tensor], Tensor], b: Tensor) -> Tensor:
    """The `x` of ``matvec(x) == b``, for a positive definite matrix."""

    def step(state: Any) -> Any:
        i, x, r, p = state
        product = matvec(p)
        size = (r @ r) / (p @ product)
        new_r = r - size * product
        return i + 1, x + size * p, new_r, new_r + p * (new_r @ new_r) / (r @ r)

    def unfinished(state: Any) -> Tensor:
        i, _, r, _ = state
        return (i < 2 * len(b)) & (r.norm() > 1e-5 * b.norm())

    return xf.while_loop(unfinished, step, (torch.tensor(0), torch.zeros_like(b), b, b))[1]
