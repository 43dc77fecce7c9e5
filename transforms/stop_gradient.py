"""`stop_gradient`: a value as a constant of differentiation."""

from __future__ import annotations

from typing import TypeVar

import torch

from xfunc import tree

T = TypeVar("T")


def stop_gradient(x: T) -> T:
    """The same tree with a derivative of zero, in both modes and to any order.

    Args:
        x: a tree of tensors and anything else.

    Returns:
        A tree like `x`, with tensors of the same shapes, dtypes and values; other leaves are
        unchanged.

    Source: ``jax.lax.stop_gradient``.
    """
    return tree.map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, x)
