"""The axes of the collectives in a function: those of a region, and those of vmaps."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys

import torch

from xfunc.core import ambient
from xfunc.core.avals import aval_of
from xfunc.core.locations import in_autograd_function
from xfunc.errors import ShardingError, fail, short_repr
from xfunc.program import vma
from xfunc.program.bind import bind
from xfunc.program.collective_ops import CollectiveOp, Gather, Scatter
from xfunc.program.named_axes import NamedAxis
from xfunc.sharding.collective_primitive import Collective, axis_index
from xfunc.sharding.manual import Region

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class MeshAxes:
    """Axes of a mesh that the region being traced is manual over."""

    region: Region
    names: tuple[str, ...]

    @property
    def size(self) -> int:
        return self.region.size(self.names)

    def axis_index(self) -> Tensor:
        return axis_index(self.region, self.names)

    def apply(self, exchange: CollectiveOp, x: Tensor) -> Tensor:
        return bind(Collective(exchange, aval_of(x), self.region, self.names), [x])[0]


@dataclasses.dataclass(frozen=True)
class Axes:
    """The axes of one collective.

    Attributes:
        parts: adjacent axes of a mesh together, axes of vmaps individually; the slowest first.
    """

    parts: tuple[MeshAxes | NamedAxis, ...]

    @property
    def size(self) -> int:
        return math.prod(p.size for p in self.parts)

    @property
    def checked(self) -> tuple[str, ...]:
        """The axes along which types are tracked."""
        known = vma.checked()
        meshes = [p for p in self.parts if isinstance(p, MeshAxes)]
        return tuple(n for p in meshes for n in p.names if n in known)

    def axis_index(self) -> Tensor:
        """The position of the device, or the example, among all of them."""
        first, *rest = self.parts
        result = first.axis_index()
        for p in rest:
            result = result * p.size + p.axis_index()
        return result

    def combine(self, exchange: CollectiveOp, x: Tensor) -> Tensor:
        """The sum or the maximum along all axes."""
        for p in self.parts:
            x = p.apply(exchange, x)
        return x

    def gather(self, x: Tensor) -> Tensor:
        """All arrays, stacked on a new axis 0."""
        ndim = x.ndim
        for p in reversed(self.parts):
            x = p.apply(Gather(), x)
        return x.flatten(0, x.ndim - ndim - 1) if len(self.parts) > 1 else x

    def scatter(self, rows: Tensor) -> Tensor:
        """The row of the sum at one's own position."""
        for p in self.parts[:-1]:
            rows = p.apply(Scatter(), rows.unflatten(0, (p.size, rows.shape[0] // p.size)))
        return self.parts[-1].apply(Scatter(), rows)

    def apply(self, exchange: CollectiveOp, x: Tensor) -> Tensor:
        """``all_to_all`` or ``ppermute``."""
        first, *rest = self.parts
        if rest:
            names = [n for p in self.parts for n in p.names]
            fail(
                ShardingError,
                f"{exchange.name} over {tuple(names)} is over several axes, some of which belong "
                "to a vmap",
                "exchange along one axis after the other.",
            )
        return first.apply(exchange, x)


def axes_of(name: str, axis_name: object) -> Axes:
    """The axes of these names, for the collective `name`.

    Raises:
        ShardingError: there are none.
    """
    given = (axis_name,) if isinstance(axis_name, str) else axis_name
    if not isinstance(given, (tuple, list)) or not all(isinstance(n, str) for n in given):
        fail(
            ShardingError,
            f"{name} was given {short_repr(axis_name)} as axis_name",
            "give the name of an axis of the mesh or of a vmap, or a tuple of names.",
        )
    what = f"{name} over {axis_name!r}"
    if vma.checked() and in_autograd_function(sys._getframe(1)):
        fail(
            ShardingError,
            f"{what} is called in a torch.autograd.Function, whose cotangents have no types",
            "write the rule with xf.custom_vjp; or pass check_vma=False to shard_map, where the "
            "transpose of psum is psum.",
        )
    if len(set(given)) < len(given):
        fail(ShardingError, f"{what} names an axis twice", "name each axis once.")
    region, mapped = ambient.region(), {a.name: a for a in ambient.named_axes()}
    if not given:
        if region is None:
            fail(ShardingError, f"{what} names no axis", "name the axis of a vmap.")
        return Axes((MeshAxes(region, ()),))
    found: list[MeshAxes | NamedAxis] = []
    for is_mapped, group in itertools.groupby(given, lambda n: n in mapped):
        names = tuple(group)
        if is_mapped:
            found += [mapped[n] for n in names]
        else:
            found.append(MeshAxes(_checked(what, names, region, [*mapped]), names))
    return Axes(tuple(found))


def _checked(what: str, names: tuple[str, ...], region: Region | None, mapped: list[str]) -> Region:
    """The region, which is manual over axes of these names."""
    also = f"those of the vmaps around it, {', '.join(map(repr, mapped))}" if mapped else ""
    if region is None:
        n = names[0]
        if mapped:
            fail(
                ShardingError,
                f"{what}: no vmap or shard_map around it has an axis {n!r}",
                f"name {also}.",
            )
        fail(
            ShardingError,
            f"{what} is called outside a shard_map, where there are no axes",
            f"call it in a function that is given to xf.shard_map, or to xf.vmap(..., "
            f"axis_name={n!r}).",
        )
    for n in names:
        if n not in region.mesh.shape:
            known = ", ".join(map(repr, region.mesh.axis_names))
            fail(
                ShardingError,
                f"{what}: {region.mesh!r} has no axis {n!r}",
                f"its axes are {known}{also and '; ' + also}.",
            )
        if n not in region.axes:
            known = ", ".join(map(repr, region.axes))
            fail(
                ShardingError,
                f"{what}: the shard_map is not manual over {n!r}, but over {known} only",
                f"add {n!r} to its axis_names.",
            )
    return region
