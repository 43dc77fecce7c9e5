"""`stop_gradient`: a value as a constant of differentiation."""

from __future__ import annotations

from typing import Any

import torch

from xfunc import tree


def stop_gradient(x: Any) -> Any:
    """The same tree, whose derivative is zero, in both modes and to any order.

    Source: ``jax.lax.stop_gradient``.
    """
    return tree.map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, x)
