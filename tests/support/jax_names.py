"""What programs that are recorded from JAX are written with: see `shard_map_programs.py`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

import xfunc as xf
from xfunc import sharding

TRANSFORMS = "grad value_and_grad jvp vjp vmap jit checkpoint custom_vjp jacrev hessian scan cond"


def names() -> SimpleNamespace:
    """Under JAX's names, and for float64."""

    def take(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, i.long().reshape(-1)).reshape(*i.shape, *x.shape[1:])

    def asarray(x: Any) -> torch.Tensor:
        return torch.tensor(x, dtype=torch.float64)

    return SimpleNamespace(
        **{k: getattr(sharding, k) for k in dir(sharding) if k[0] in "paPs"},
        **{k: getattr(torch, k) for k in "where tanh exp zeros_like stack".split()},
        **{k: getattr(xf, k) for k in TRANSFORMS.split()},
        concatenate=torch.cat,
        asarray=asarray,
        arange=lambda k: torch.arange(k, dtype=torch.float64),
        take=take,
        mesh=sharding.make_mesh,
    )
