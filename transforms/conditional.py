"""The graph of a choice between programs that take some of the same inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from xfunc.core.avals import Aval, array_of
from xfunc.graph import build
from xfunc.graph.graph import Graph
from xfunc.graph.node import Node, unattributed
from xfunc.trace.lowering import HloProgram


@dataclasses.dataclass(frozen=True, eq=False)
class Branch:
    """One of the programs to choose from.

    Attributes:
        lowering: of the program.
        inputs: for each of its flat inputs, the flat input of the whole that feeds it.
        results: for each result of the whole, the index of its own result; None: zeros.
    """

    lowering: HloProgram
    inputs: tuple[int, ...]
    results: tuple[int | None, ...]


def conditional(
    name: str, avals: Sequence[Aval], outputs: Sequence[Aval], branches: Sequence[Branch]
) -> HloProgram:
    """``(index, *inputs) -> branches[index](...)``; the index is an int32 scalar in range."""
    with unattributed():
        given = build.parameters([array_of(a) for a in avals])
        graphs: list[Graph] = []
        operands: list[list[Node]] = []
        for k, branch in enumerate(branches):
            own = branch.lowering
            sources = [branch.inputs[i] for i in own.inputs]
            used = sorted(set(sources))
            values = build.parameters([given[i].type for i in used])
            of = dict(zip(used, values, strict=True))
            results = build.call(own.graph, [of[i] for i in sources]) if own.outputs else []
            pairs = zip(outputs, branch.results, strict=True)
            picked = [build.zeros(array_of(a)) if j is None else results[j] for a, j in pairs]
            graphs.append(Graph(f"{name}.branch{k}", values, picked))
            operands.append([given[i] for i in used])
        chosen = build.conditional(given[0], graphs, operands)
        return HloProgram.of(name, Graph(name, given, chosen), avals, outputs)
