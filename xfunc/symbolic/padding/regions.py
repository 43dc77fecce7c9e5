"""Manual regions (`shard_map`) of arrays with varying shapes, and communication in them.

NOTE [parts of a padded dimension]: the exact dimension is divided equally among the devices. The
padding of a bucket is at the end, so the last devices would have nothing else. At the border of a
region the elements are moved, so that each part has its share of the padding at its own end: one
factor for the devices, and one for the elements of each. After the region a dimension keeps this
layout.
"""

from __future__ import annotations

import dataclasses

from xfunc.hlo import Computation, Instruction
from xfunc.hlo import hlo_pb2 as pb
from xfunc.symbolic.padding.emit import S64, Emitter
from xfunc.symbolic.padding.layouts import Factor, Layout, MaybeLayout, canonical, own
from xfunc.symbolic.padding.rules import Rule, elementwise, remade, result
from xfunc.symbolic.padding.values import Inexact, PaddedValue, Relayout

_ENTER, _LEAVE = "SPMDFullToShardShape", "SPMDShardToFullShape"


def entered(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """One device's part; see NOTE [parts of a padded dimension]."""
    (x,) = operands
    sizes = m.symbolic.dims(i)
    layouts: list[MaybeLayout] = []
    moved = x
    for d, (whole, part) in enumerate(zip(x.dims, i.shape.dims, strict=True)):
        inside: MaybeLayout = x.layouts[d]
        if whole != part and inside is not None:
            inside = own(part, sizes[d])
            moved = m.relaid(moved, d, _behind(whole // part, inside), whole)
        layouts.append(inside)
    if moved is not x:  # The border splits this.
        moved = dataclasses.replace(moved, id=remade(m, i.operands[0], [moved.id]))
    return result(m, i, [moved.id], layouts)


def left(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """The devices' parts as one array: a value uniform in each may differ between them."""
    (x,) = operands
    layouts: list[MaybeLayout] = []
    for d, (part, whole) in enumerate(zip(x.dims, i.shape.dims, strict=True)):
        layouts.append(x.layouts[d] if part == whole else _behind(whole // part, x.own(d)))
    return result(m, i, [x.id], layouts)


def _behind(devices: int, layout: Layout) -> Layout:
    return canonical([Factor(devices, devices), *layout])


def among_rows(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """Communication along a dimension with a row for each device."""
    (x,) = operands
    for d in i.proto.dimensions:
        if x.padded(d):
            raise Inexact(f"{i.opcode} along a dimension of size {x.sizes[d]}", i)
    layouts = [
        own(n, n) if d in i.proto.dimensions else x.layouts[d] for d, n in enumerate(i.shape.dims)
    ]
    return result(m, i, [x.id], layouts)


def check_region(c: Computation, i: Instruction) -> None:
    """Refuse regions that are manual over only some axes of a mesh."""
    for j in c.instructions:
        if pb.OpSharding.MANUAL in j.proto.sharding.last_tile_dims:
            raise Inexact(
                "shard_map over some of the axes of the mesh, of an array whose shape varies", i
            )


def sizes_inside(emit: Emitter, sizes: list[int]) -> list[int]:
    """Each device's own copy of the actual sizes."""
    return [emit.on_all(emit.on_all(k, S64, ()), S64, (), manual=True) for k in sizes]


BORDERS: dict[str, Rule] = {_ENTER: entered, _LEAVE: left}
RULES: dict[str, Rule] = {
    "all-reduce": elementwise,
    "collective-permute": elementwise,
    **dict.fromkeys(("all-gather", "reduce-scatter", "all-to-all"), among_rows),
}
