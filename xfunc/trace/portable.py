"""Portable programs: self-contained HLO modules, and StableHLO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from xfunc.backends.host_calls import refuse_host_calls
from xfunc.backends.target_passes import UNUSED
from xfunc.core.avals import Aval, array_of
from xfunc.graph import build
from xfunc.graph.graph import Graph
from xfunc.graph.node import Node, unattributed
from xfunc.hlo import Module
from xfunc.hlo.spmd.annotations import constrained
from xfunc.hlo.spmd.tiles import HloSharding
from xfunc.trace.finished import finalize
from xfunc.trace.lowering import HloProgram


def whole(
    lowering: HloProgram,
    held: Mapping[int, torch.Tensor],
    lines: bool = True,
    tiles: Sequence[HloSharding | None] = (),
) -> Module:
    """A module that takes all flat inputs of a program in order, used or not.

    Those in `held` are constants of the module. A program without inputs gets an unused boolean
    input. If `lines`, instructions carry the user's files and lines. `tiles` are the shardings of
    the flat inputs, if any.
    """
    with unattributed():
        values = {
            i: build.literal(held[i].detach().cpu()) if i in held else _parameter(a)
            for i, a in enumerate(lowering.avals)
        }
        inputs = [x for i, x in values.items() if i not in held] or [_parameter(UNUSED)]
        operands = [values[i] for i in lowering.inputs]
        if tiles:  # Parameter attributes are lost in the conversion to StableHLO.
            said = [tiles[i] for i in lowering.inputs]
            pairs = zip(operands, said, strict=True)
            operands = [x if t is None else constrained(x, t.to_proto()) for x, t in pairs]
        results = build.call(lowering.graph, operands) if lowering.outputs else []
    module = finalize(Graph(lowering.name, inputs, results), lines)
    refuse_host_calls(module.proto, lowering.name, "in a program for elsewhere")
    return module


def _parameter(aval: Aval) -> Node:
    return Node("parameter", array_of(aval))
