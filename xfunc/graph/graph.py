"""`Graph`: a function from arrays to arrays, as nodes.

A graph calls others: the functions, loops and branches of the user's program are nodes with graphs
in `Node.calls`. Nothing is packed into tuples: the operands and results of such a node are the
arrays themselves.

==================  ==========================================  ================================
node                operands                                    calls
==================  ==========================================  ================================
``call``            inputs                                      the function
``while``           the state                                   the body, from state to state;
                                                                the condition
``conditional``     the index, then the inputs of each branch   the branches; `Node.params` has
                                                                their numbers of inputs
``opt-barrier``     values                                      nothing
==================  ==========================================  ================================

A callee may also be a `xfunc.hlo.Module`; most can be read as a graph: `Callee.graph`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from xfunc.graph import opcodes
from xfunc.graph.build import CustomCall
from xfunc.graph.node import Node, Operation, reached


class Callee(Protocol):
    """A function that a node calls."""

    @property
    def graph(self) -> Graph | None:
        """The function; None if nothing is known about it."""
        ...


class Graph:
    """A function; compared by identity, and not changed.

    Attributes:
        name: of the function.
        inputs: nodes of any opcode, with values that the caller gives.
        outputs: nodes computed from the inputs alone.
        effects: nodes that have effects, but no result.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[Node],
        outputs: Sequence[Node],
        effects: Sequence[Node] = (),
    ) -> None:
        self.name = name
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.effects = tuple(effects)

    @classmethod
    def between(
        cls, name: str, inputs: Sequence[Node], outputs: Sequence[Node]
    ) -> tuple[Graph, tuple[int, ...]]:
        """The graph of the outputs, and the positions of the inputs that they are computed from."""
        nodes = reached(outputs, inputs)
        among = set(map(id, nodes))
        taken = tuple([k for k, n in enumerate(inputs) if id(n) in among])
        made = cls(name, [inputs[k] for k in taken], outputs)
        made.nodes = tuple(nodes)
        return made, taken

    @property
    def graph(self) -> Graph:
        """Itself, as a `Callee`."""
        return self

    @functools.cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that the outputs depend on, each after its operands, with all inputs."""
        return tuple(reached([*self.inputs, *self.outputs, *self.effects], self.inputs))

    @functools.cached_property
    def communicates(self) -> bool:
        """Whether devices communicate in it."""
        return any(
            n.opcode in opcodes.COLLECTIVES or any(map(_communicates, n.calls)) for n in self.nodes
        )

    def rewritten(
        self,
        change: Callable[[Node, tuple[Node, ...]], Node],
        known: Mapping[Node, Node] | None = None,
    ) -> Graph:
        """The graph with nodes replaced, operands before their users.

        Args:
            change: returns the replacement of a node, given its new operands. It is not called for
                inputs.
            known: replacements of nodes.
        """
        found: dict[Node, Node] = dict(known or {})
        for n in self.inputs:
            found.setdefault(n, n)
        for n in self.nodes:
            if n not in found:
                found[n] = change(n, tuple([found[o] for o in n.operands]))
        of = found.__getitem__
        return Graph(
            self.name, [*map(of, self.inputs)], [*map(of, self.outputs)], [*map(of, self.effects)]
        )

    def applied(
        self, args: Sequence[Node], operation: Operation | None = None
    ) -> tuple[list[Node], list[Node]]:
        """Outputs and effects of the function of other nodes.

        All nodes are new: those of a kept graph would stand elsewhere in the next program.

        Args:
            args: in place of the inputs.
            operation: for nodes without one, such as those of a loop.
        """

        def copied(n: Node, operands: tuple[Node, ...]) -> Node:
            if n.opcode == "constant":
                return n
            result = n.changed(operands)
            if operation is not None and not (n.operation.name or n.operation.wire):
                result.operation = operation
            return result

        made = self.rewritten(copied, dict(zip(self.inputs, args, strict=True)))
        return [*made.outputs], [*made.effects]

    def __repr__(self) -> str:
        return f"<graph {self.name}: {len(self.nodes)} nodes>"


def _communicates(called: Any) -> bool:
    if isinstance(called, tuple):  # the operation of a reduction
        return False
    graph = called.graph
    return graph is None or graph.communicates


class Holding:
    """A predicate: whether a node is wanted, or calls a graph that contains a wanted one."""

    def __init__(self, wanted: Callable[[Node], bool]) -> None:
        self._wanted = wanted
        self._known: dict[Graph, bool] = {}

    def __call__(self, n: Node) -> bool:
        if self._wanted(n):
            return True
        if not n.calls:  # as for most nodes
            return False
        graphs = (c.graph for c in n.calls if not isinstance(c, tuple))
        return any(g is not None and self.inside(g) for g in graphs)

    def inside(self, graph: Graph) -> bool:
        """Whether a graph holds a node that is wanted."""
        if graph not in self._known:
            self._known[graph] = any(map(self, graph.nodes))
        return self._known[graph]


def moved(n: Node, operands: tuple[Node, ...], calls: tuple[Any, ...] | None = None) -> Node:
    """A node on other operands, which calls others; itself, if they are its own."""
    if all(map(operator.is_, n.operands, operands)) and calls in (None, n.calls):
        return n
    return n.changed(operands, calls)


def rerun(n: Node, operands: tuple[Node, ...], of: Callable[[Graph], Graph]) -> Node:
    """A copy of a node that runs graphs: other operands, and `of` applied to each graph."""
    return moved(n, operands, tuple([c if c.graph is None else of(c.graph) for c in n.calls]))


def is_pair(graph: Graph) -> bool:
    """Whether a function does nothing but tie its two inputs."""
    if len(graph.inputs) != 2 or len(graph.outputs) != 2:
        return False
    return all(
        isinstance(o.params, CustomCall) and o.params.tied and o.operands == (i,)
        for i, o in zip(graph.inputs, graph.outputs, strict=True)
    )


def used_by(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """The users of each node among some."""
    result: dict[Node, list[Node]] = {}
    for n in nodes:
        for o in dict.fromkeys(n.operands):
            result.setdefault(o, []).append(n)
    return result
