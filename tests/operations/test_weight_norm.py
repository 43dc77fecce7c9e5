"""`weight_norm` in all modes, against its formula in plain torch.

torch's own has no forward mode, and its second derivatives are wrong: it differentiates the norms
that the forward pass saved as constants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

C = torch.linspace(-2, 3, 36, dtype=torch.float64).sin().reshape(4, 3, 3)
V = torch.linspace(1, 5, 36, dtype=torch.float64).cos().reshape(4, 3, 3)

Value = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
MODES: dict[str, Callable[[Any, Value, torch.Tensor, torch.Tensor], Any]] = {
    "grad": lambda m, f, v, g: m.grad(f, argnums=(0, 1))(v, g),
    "jvp": lambda m, f, v, g: m.jvp(f, (v, g), (C, g * g)),
    "jvp of grad": lambda m, f, v, g: m.jvp(m.grad(f, argnums=(0, 1)), (v, g), (C, g * g)),
    "hessian": lambda m, f, v, g: m.hessian(f, argnums=(0, 1))(v, g),
    "grad of grad": lambda m, f, v, g: m.grad(lambda v, g: m.grad(f)(v, g).square().sum())(v, g),
    "vmap of grad": lambda m, f, v, g: m.vmap(m.grad(f))(
        torch.stack([v, v * C]), torch.stack([g, g + 1])
    ),
}


@pytest.mark.parametrize("dim", [0, 2])
@pytest.mark.parametrize("mode", MODES)
def test_weight_norm_derivatives(mode: str, dim: int) -> None:
    g = torch.linspace(0.5, 2, V.shape[dim], dtype=torch.float64)
    g = g.reshape([-1 if d == dim else 1 for d in range(3)])

    def ours(v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return (torch._weight_norm(v, g, dim) * C).sin().sum()

    def formula(v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        norms = v.square().sum([d for d in range(3) if d != dim], keepdim=True).sqrt()
        return (v * g / norms * C).sin().sum()

    got, want = MODES[mode](xf, ours, V, g), MODES[mode](torch.func, formula, V, g)
    for a, b in zip(xf.tree.leaves(got), xf.tree.leaves(want), strict=True):
        torch.testing.assert_close(a.cpu(), b)
