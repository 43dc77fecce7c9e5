"""The HLO of a choice between programs that take some of the same inputs.

An *arm* is one of the programs, with the positions of its inputs among those of the whole, and for
each result of the whole the index of its own result; None stands for zeros.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from xfunc.core.avals import Aval, hlo_shape
from xfunc.hlo import Builder, Shape, Value
from xfunc.hlo.computation import Function
from xfunc.trace.lowering import Lowering


@dataclasses.dataclass(frozen=True, eq=False)
class Arm:
    """One of the programs to choose from.

    Attributes:
        lowering: of the program.
        inputs: for each of its flat inputs, the flat input of the whole that feeds it.
        results: for each result of the whole, the index of its own result; None: zeros.
    """

    lowering: Lowering
    inputs: tuple[int, ...]
    results: tuple[int | None, ...]


def conditional(
    name: str, avals: Sequence[Aval], outputs: Sequence[Aval], arms: Sequence[Arm]
) -> Lowering:
    """``(index, *inputs) -> arms[index](...)``; the index is an int32 scalar in range."""
    b = Builder(name)
    entry = b.computation(name)
    consts = [t for arm in arms for t in arm.lowering.consts]
    shapes = [*map(hlo_shape, avals), *(Shape(t.dtype, t.shape) for t in consts)]
    params = [entry.parameter(s) for s in shapes]
    branches: list[Function] = []
    operands: list[Value] = []
    first_const = len(avals)
    for k, arm in enumerate(arms):
        own = arm.lowering
        n, m = len(own.avals), len(own.consts)
        places = [*arm.inputs, *range(first_const, first_const + m)]
        first_const += m
        fed = [None if own.is_unused(i) else places[i] for i in own.inputs]
        used = sorted({i for i in fed if i is not None})
        operand = entry.tuple([params[i] for i in used])
        branch = b.computation(f"{name}.branch{k}")
        given = branch.parameter(operand.shape)
        values = {i: branch.get_tuple_element(given, j) for j, i in enumerate(used)}
        assert len(places) == n + m
        args = [branch.constant(False, torch.bool) if i is None else values[i] for i in fed]
        if own.outputs:
            found = branch.call(b.embed(own.module), args)
            results = [branch.get_tuple_element(found, j) for j in range(len(own.outputs))]
        else:
            results = []
        picked = [
            branch.zeros(hlo_shape(a)) if j is None else results[j]
            for a, j in zip(outputs, arm.results, strict=True)
        ]
        branches.append(branch.build(branch.tuple(picked)))
        operands.append(operand)
    chosen = entry.conditional(params[0], branches, operands)
    results = [entry.get_tuple_element(chosen, j) for j in range(len(outputs))]
    module = b.build(entry.build(entry.tuple(results)))
    return Lowering.of(name, module, avals, outputs, consts)
