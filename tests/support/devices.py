"""What `shard_map` and its collectives mean, in plain torch, device by device.

A *stack* holds the arrays of all devices; its first dimensions are the axes of the mesh.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from xfunc.sharding import AbstractMesh

Tensor = torch.Tensor


def stacked(x: Tensor, spec: tuple[Any, ...], mesh: AbstractMesh) -> Tensor:
    """What each device holds of an array."""
    rows = []
    for where in itertools.product(*map(range, mesh.axis_sizes)):
        at = dict(zip(mesh.axis_names, where, strict=True))
        part = x
        for d, entry in enumerate(spec):
            for name in (entry,) if isinstance(entry, str) else entry or ():
                part = part.chunk(mesh.shape[name], d)[at[name]]
        rows.append(part)
    return torch.stack(rows).unflatten(0, mesh.axis_sizes)


def on_each(fun: Callable[..., Tensor], mesh: AbstractMesh, *stacks: Tensor) -> Tensor:
    """A function of what each device holds."""
    flat = [s.flatten(0, mesh.ndim - 1) for s in stacks]
    rows = [fun(*row) for row in zip(*flat, strict=True)]
    return torch.stack(rows).unflatten(0, mesh.axis_sizes)


def in_groups(fun: Callable[[Tensor], Tensor], axes: Any, mesh: AbstractMesh, s: Tensor) -> Tensor:
    """A function from the arrays of a group of devices, stacked, to what each one gets."""
    axes = (axes,) if isinstance(axes, str) else axes
    own = [mesh.axis_names.index(n) for n in axes]
    rest = [a for a in range(mesh.ndim) if a not in own]
    order = [*rest, *own]
    sizes = [mesh.axis_sizes[a] for a in order]
    s = s.permute([*order, *range(mesh.ndim, s.ndim)])
    groups = s.flatten(len(rest), mesh.ndim - 1)
    groups = groups.flatten(0, len(rest) - 1) if rest else groups[None]
    out = torch.stack([fun(g) for g in groups])
    out = out.flatten(0, 1).unflatten(0, sizes)
    back = [order.index(a) for a in range(mesh.ndim)]
    return out.permute([*back, *range(mesh.ndim, out.ndim)])


def _to_all(fun: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda g: (one := fun(g)).expand(len(g), *one.shape)


def psum() -> Any:
    return _to_all(lambda g: g.sum(0))


def pmean() -> Any:
    return _to_all(lambda g: g.mean(0))


def pmax() -> Any:
    return _to_all(lambda g: g.amax(0))


def pmin() -> Any:
    return _to_all(lambda g: g.amin(0))


def all_gather(axis: int = 0, tiled: bool = False) -> Any:
    return _to_all(lambda g: torch.cat([*g], axis) if tiled else torch.stack([*g], axis))


def psum_scatter(scatter_dimension: int = 0, tiled: bool = False) -> Any:
    def scatter(g: Tensor) -> Tensor:
        parts = torch.stack(g.sum(0).chunk(len(g), scatter_dimension))
        return parts if tiled else parts.squeeze(scatter_dimension + 1)

    return scatter


def ppermute(perm: Any) -> Any:
    def permute(g: Tensor) -> Tensor:
        source = {t: s for s, t in perm}
        return torch.stack(
            [g[source[k]] if k in source else torch.zeros_like(g[0]) for k in range(len(g))]
        )

    return permute


def all_to_all(split_axis: int, concat_axis: int, tiled: bool = False) -> Any:
    def exchange(g: Tensor) -> Tensor:
        parts = [x.chunk(len(g), split_axis) for x in g]
        got = [[p[k] for p in parts] for k in range(len(g))]
        if tiled:
            return torch.stack([torch.cat(row, concat_axis) for row in got])
        return torch.stack(
            [torch.stack([p.squeeze(split_axis) for p in row], concat_axis) for row in got]
        )

    return exchange
