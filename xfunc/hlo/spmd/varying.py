"""The axes of a mesh along which values of a manual region differ between devices.

Devices that run one program on different data get different values; a collective gives all devices
of a group the same value. The analysis may report too much, but never too little. It answers three
questions: whether an output is the same on all devices; whether all devices of a group take the
same path to a collective (otherwise some would wait for the others forever); and which sums are of
equal values, and need no communication.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from xfunc.graph import opcodes
from xfunc.graph.graph import Graph, moved
from xfunc.graph.node import Node
from xfunc.hlo.attributes import attributes_of
from xfunc.hlo.spmd.annotations import is_region_graph
from xfunc.hlo.spmd.collectives import AXES, as_product, is_sum

Axes = frozenset[str]

_SAME: Axes = frozenset()


class DivergenceError(Exception):
    """A collective that only some devices of a group may reach.

    Attributes:
        opcode: of the collective; empty for one that XLA might insert there.
        axes: along which its devices communicate.
        choice: the opcode of the branch or loop that it is in.
        varies: the axes along which the devices choose differently there.
    """

    def __init__(self, opcode: str, axes: Axes, choice: str, varies: Axes):
        super().__init__(opcode, axes, choice, varies)
        self.opcode, self.axes, self.choice, self.varies = opcode, axes, choice, varies


class ControlContext(NamedTuple):
    """The context of a graph.

    Attributes:
        choice: the opcode of the branch or loop.
        varies: the axes along which the devices choose differently there.
        is_inner: whether it is an inner region: its axes are not among this region's own.
    """

    choice: str = ""
    varies: Axes = _SAME
    is_inner: bool = False


def varying(
    graph: Graph, inputs: Sequence[Axes], every: Collection[str], partly: bool = False
) -> tuple[Axes, ...]:
    """For each output, the axes along which it differs.

    Args:
        graph: one device's program.
        inputs: for each input, the axes along which it differs.
        every: all axes of the region.
        partly: whether the region is manual over only some axes: then XLA may insert collectives
            anywhere.

    Raises:
        DivergenceError: devices that wait for each other may take different paths.
    """
    return Walk(frozenset(every), partly).run(graph, tuple(inputs), ControlContext())


def without_sums(graph: Graph, inputs: Sequence[Axes], every: Collection[str]) -> Graph:
    """The graph with products in place of sums over devices that add equal values.

    Args:
        graph: not changed.
        inputs: see `varying`.
        every: likewise.
    """
    return _Products(Walk(frozenset(every), False)).of(graph, tuple(inputs), ControlContext())


class Run(NamedTuple):
    """A graph on inputs that differ in some way."""

    graph: Graph
    inputs: tuple[Axes, ...]
    ctx: ControlContext


class Walk:
    """Analyses each graph once for each way in which its inputs differ.

    Attributes:
        values: by run, how its nodes differ.
        results: likewise, how the results of nodes with several differ.
    """

    def __init__(self, every: Axes, partly: bool):
        self._every, self._partly = every, partly
        self.values: dict[Run, dict[Node, Axes]] = {}
        self.results: dict[Run, dict[Node, tuple[Axes, ...]]] = {}

    def run(self, graph: Graph, inputs: tuple[Axes, ...], ctx: ControlContext) -> tuple[Axes, ...]:
        """How the outputs of a graph differ."""
        key = Run(graph, inputs, ctx)
        if key not in self.values:
            values = dict(zip(graph.inputs, inputs, strict=True))
            results: dict[Node, tuple[Axes, ...]] = {}
            for n in graph.nodes:
                if n in values:
                    continue
                operands = tuple([values[o] for o in n.operands])
                if n.opcode == "get-tuple-element" and n.operands[0] in results:
                    values[n] = results[n.operands[0]][n.params]
                elif (found := self._several(n, operands, ctx)) is not None:
                    results[n], values[n] = found, union(found)
                else:
                    values[n] = self.result(n, operands, ctx)
            self.values[key], self.results[key] = values, results
        values = self.values[key]
        return tuple([values[n] for n in graph.outputs])

    def calls(
        self, n: Node, operands: tuple[Axes, ...], ctx: ControlContext
    ) -> list[tuple[tuple[Axes, ...], ControlContext]]:
        """How the inputs of the graphs that a node runs differ, and the graphs' contexts."""
        if n.opcode == "call":
            inner = ctx.is_inner or is_region_graph(n.calls[0].graph)
            return [(operands, ctx._replace(is_inner=inner))]
        if n.opcode == "while":
            return [self._loop(n, operands, ctx)] * 2
        inside = self._inside("conditional", operands[0], ctx)
        result: list[tuple[tuple[Axes, ...], ControlContext]] = []
        at = 1
        for count in n.params:
            result.append((operands[at : at + count], inside))
            at += count
        return result

    def _several(
        self, n: Node, operands: tuple[Axes, ...], ctx: ControlContext
    ) -> tuple[Axes, ...] | None:
        if n.opcode == "opt-barrier":
            return operands
        if n.opcode not in opcodes.RUNS or n.calls[0].graph is None:
            return None
        given = self.calls(n, operands, ctx)
        if n.opcode == "while":
            return given[0][0]
        if n.opcode == "conditional":
            self.check("conditional", operands[0] | given[0][1].varies if operands[0] else _SAME)
        every = [self.run(c.graph, *g) for c, g in zip(n.calls, given, strict=True)]
        chosen = operands[0] if n.opcode == "conditional" else _SAME
        return tuple([union(of) | chosen for of in zip(*every, strict=True)])

    def result(self, n: Node, operands: tuple[Axes, ...], ctx: ControlContext) -> Axes:
        """How the result of a node that runs nothing differs."""
        if n.opcode == "partition-id":
            return self._every
        found = union(operands)
        said = attributes_of(n).get(AXES)
        if n.opcode in opcodes.COLLECTIVES:
            axes = axes_of(n)
            # A permutation has no groups: all devices must take part.
            if ctx.varies & (self._every if n.opcode == "collective-permute" else axes):
                raise DivergenceError(n.opcode, axes, ctx.choice, ctx.varies)
            is_shared = n.opcode in ("all-reduce", "all-gather")
            return found - axes if is_shared else found | axes
        return found if said is None else frozenset(said.split(","))

    def _loop(
        self, n: Node, state: tuple[Axes, ...], ctx: ControlContext
    ) -> tuple[tuple[Axes, ...], ControlContext]:
        """How the state of a loop differs in the end."""
        body, condition = (c.graph for c in n.calls)
        rounds = _SAME  # how the number of rounds differs
        while True:
            inside = ctx._replace(choice="while", varies=ctx.varies | rounds)
            again = union(self.run(condition, state, inside))
            after = self.run(body, state, inside)
            after = tuple([a | b | again for a, b in zip(state, after, strict=True)])
            self.check("while", again)
            if after == state and again <= rounds:
                return state, inside
            state, rounds = after, rounds | again

    def _inside(self, choice: str, chosen: Axes, ctx: ControlContext) -> ControlContext:
        if not chosen:
            return ctx
        return ctx._replace(choice=choice, varies=ctx.varies | chosen)

    def check(self, choice: str, varies: Axes) -> None:
        """Refuse a choice for which devices decide differently, where XLA might communicate."""
        if self._partly and varies:
            raise DivergenceError("", self._every, choice, varies)


def union(values: Sequence[Axes]) -> Axes:
    """The axes along which any of some values differs."""
    return _SAME.union(*values)


def axes_of(n: Node) -> Axes:
    """The axes along which a collective's groups extend."""
    return frozenset(attributes_of(n).get(AXES, "").split(","))


class _Products:
    """Rewrites each graph once for each way in which its inputs differ."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._made: dict[Run, Graph] = {}

    def of(self, graph: Graph, inputs: tuple[Axes, ...], ctx: ControlContext) -> Graph:
        if not graph.communicates or ctx.is_inner:
            return graph
        key = Run(graph, inputs, ctx)
        if key not in self._made:
            self._walk.run(graph, inputs, ctx)
            values = self._walk.values[key]

            def change(n: Node, operands: tuple[Node, ...]) -> Node:
                differ = tuple([values[o] for o in n.operands])
                if is_sum(n) and not union(differ) & axes_of(n):
                    return as_product(n, operands[0])
                if n.opcode in opcodes.RUNS and all(c.graph for c in n.calls):
                    given = self._walk.calls(n, differ, ctx)
                    callees = zip(n.calls, given, strict=True)
                    made = tuple([self.of(c.graph, *g) for c, g in callees])
                    return moved(n, operands, made)
                return moved(n, operands)

            self._made[key] = graph.rewritten(change)
        return self._made[key]
