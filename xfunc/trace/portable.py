"""Portable programs: self-contained HLO modules, and StableHLO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from xfunc.backends.host_calls import refuse_host_calls
from xfunc.backends.prepare import UNUSED
from xfunc.core.avals import hlo_shape
from xfunc.hlo import Builder, Module
from xfunc.hlo.spmd.annotations import constrain
from xfunc.hlo.spmd.tiles import Tiles
from xfunc.trace.finalise import finished
from xfunc.trace.lowering import Lowering


def whole(
    lowering: Lowering,
    held: Mapping[int, torch.Tensor],
    lines: bool = True,
    tiles: Sequence[Tiles | None] = (),
) -> Module:
    """A module that takes all flat inputs of a program in order, used or not.

    Those in `held` are constants of the module. A program without inputs gets an unused boolean
    input. If `lines`, instructions carry the user's files and lines. `tiles` are the shardings of
    the flat inputs, if any.
    """
    avals = lowering.avals
    b = Builder(lowering.name)
    body = b.computation(lowering.name)
    values = {
        i: body.literal(held[i].detach().cpu()) if i in held else body.parameter(hlo_shape(a))
        for i, a in enumerate(avals)
    }
    if len(held) == len(avals):
        body.parameter(hlo_shape(UNUSED))
    if not lowering.outputs:
        return b.build(body.build(body.tuple([])))
    operands = [values[i] for i in lowering.inputs]
    divided = [tiles[i] for i in lowering.inputs] if tiles else []
    operands = [
        # Parameter attributes are lost in the conversion to StableHLO.
        x if t is None else constrain(body, x, t.to_proto())
        for x, t in zip(operands, divided or [None] * len(operands), strict=True)
    ]
    module = finished(lowering.module, lines, divided)
    refuse_host_calls(module.proto, lowering.name, "in a program for elsewhere")
    found = body.call(b.embed(module), operands)
    outputs = [body.get_tuple_element(found, k) for k in range(len(lowering.outputs))]
    return b.build(body.build(body.tuple(outputs)))
