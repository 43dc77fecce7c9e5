"""A mesh of 8 devices, and what lies on it: for tests of what XLA divides how."""

from __future__ import annotations

from typing import Any

import torch

from xfunc.sharding import NamedSharding, P, make_mesh, sharding_of

MESH = make_mesh((4, 2), ("fsdp", "tensor"))


def on(*spec: Any) -> NamedSharding:
    """A sharding on the mesh."""
    return NamedSharding(MESH, P(*spec))


def is_divided(x: torch.Tensor, *spec: Any) -> bool:
    """Whether a tensor lies on the mesh as a spec says."""
    found = sharding_of(x)
    return found is not None and found.is_equivalent_to(on(*spec), x.ndim)
