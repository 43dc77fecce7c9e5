"""The HLO of a choice between programs that take some of the same inputs.

An *arm* is one of the programs, with the positions of its inputs among those of the whole, and for
each result of the whole the index of its own result; None stands for zeros.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from xfunc.core.avals import Aval, hlo_shape
from xfunc.hlo import Builder, Value
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
    params = [entry.parameter(hlo_shape(a)) for a in avals]
    branches: list[Function] = []
    operands: list[Value] = []
    for k, arm in enumerate(arms):
        own = arm.lowering
        fed = [arm.inputs[i] for i in own.inputs]
        used = sorted(set(fed))
        operand = entry.tuple([params[i] for i in used])
        branch = b.computation(f"{name}.branch{k}")
        given = branch.parameter(operand.shape)
        values = {i: branch.get_tuple_element(given, j) for j, i in enumerate(used)}
        if own.outputs:
            found = branch.call(b.embed(own.module), [values[i] for i in fed])
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
    return Lowering.of(name, module, avals, outputs)
