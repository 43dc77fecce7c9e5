"""A mesh of 8 devices, and what lies on it: for tests of what XLA divides how."""

from __future__ import annotations

import random
from typing import Any

import torch

from xfunc.sharding import Mesh, NamedSharding, P, make_mesh, sharding_of

MESH = make_mesh((4, 2), ("fsdp", "tensor"))


def on(*spec: Any) -> NamedSharding:
    """A sharding on the mesh."""
    return NamedSharding(MESH, P(*spec))


def is_divided(x: torch.Tensor, *spec: Any) -> bool:
    """Whether a tensor lies on the mesh as a spec says."""
    found = sharding_of(x)
    return found is not None and found.is_equivalent_to(on(*spec), x.ndim)


def spec_of(draw: random.Random, shape: tuple[int, ...], mesh: Mesh, often: float) -> P:
    """A random sharding that divides a shape evenly; each axis is used that often if it can be."""
    entries: list[list[str]] = [[] for _ in shape]
    names = list(mesh.axis_names)
    draw.shuffle(names)
    for name in names:
        d = draw.randrange(len(shape))
        parts = mesh.shape[name]
        for other in entries[d]:
            parts *= mesh.shape[other]
        if shape[d] % parts == 0 and draw.random() < often:
            entries[d].append(name)
    return P(*(tuple(e) if e else None for e in entries))
