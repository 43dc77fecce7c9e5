"""A joint program as a graph: which of its values are forward, and which the backward pass needs.

The joint graph computes outputs and gradients from inputs and cotangents. Values that do not depend
on a cotangent are forward, the rest backward.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable

from xfunc.graph import opcodes
from xfunc.graph.build import CustomCall
from xfunc.graph.graph import Graph, Holding, moved, used_by
from xfunc.graph.node import Node, reached
from xfunc.graph.simplify import simplify
from xfunc.hlo.attributes import acts
from xfunc.hlo.flat import inlined
from xfunc.hlo.spmd.annotations import is_automatic_tie
from xfunc.remat.names import fold_names
from xfunc.trace.lowering import HloProgram


@dataclasses.dataclass(frozen=True, eq=False)
class JointGraph:
    """A joint program, divided into forward and backward values.

    Attributes:
        graph: the joint program.
        params: by input, its flat input.
        outputs: the results that are outputs of the forward pass.
        gradients: the other results.
        backward: values that depend on a cotangent, cotangents included.
        varies: values that differ between the steps of a loop.
        available: inputs that the backward pass receives anyway.
        steps: how often the program runs, each time with values to keep.
    """

    graph: Graph
    params: dict[Node, int]
    outputs: tuple[Node, ...]
    gradients: tuple[Node, ...]
    backward: frozenset[Node]
    varies: frozenset[Node]
    available: frozenset[Node]
    steps: int

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The values of the joint program, operands before their users."""
        return self.graph.nodes

    @functools.cached_property
    def in_forward(self) -> set[Node]:
        """The values that the outputs are computed from."""
        return set(reached(self.outputs, self.params))

    @functools.cached_property
    def needed(self) -> tuple[Node, ...]:
        """The forward values that the backward pass uses directly, in order."""
        forward = [n for n in self.nodes if n not in self.backward]
        behind = set(reached(self.gradients, forward))
        return tuple(n for n in forward if n in behind)

    @functools.cached_property
    def must_save(self) -> set[Node]:
        """Forward values that must not be recomputed, and the elements of tuples of them.

        Shard groups may be recomputed: they only state how values are sharded. So may results of
            collectives.
        """
        return self._holding(_runs_once)

    @functools.cached_property
    def exchanged(self) -> set[Node]:
        """Results of collectives in the forward pass, and of calls that contain collectives."""
        return self._holding(lambda n: n.opcode in opcodes.COLLECTIVES)

    def _holding(self, wanted: Callable[[Node], bool]) -> set[Node]:
        holds = Holding(wanted)
        result: set[Node] = set()
        for n in self.nodes:
            if n.opcode == "get-tuple-element":
                if n.operands[0] in result:
                    result.add(n)
            elif holds(n):
                result.add(n)
        return result


def joint_graph(
    joint: HloProgram,
    *,
    n_inputs: int,
    n_outputs: int,
    unavailable: Collection[int] = (),
    invariant: Collection[int] = (),
    steps: int = 1,
    flat: bool = False,
) -> JointGraph:
    """The graph of a joint program.

    Args:
        joint: ``(inputs, cotangents) -> (outputs, gradients)``.
        n_inputs: how many of the flat inputs are not cotangents.
        n_outputs: how many of the results are outputs of the forward pass.
        unavailable: inputs that the backward pass does not receive.
        invariant: inputs that are the same at every step of a loop.
        steps: how many steps the loop has.
        flat: inline the functions that it calls, and simplify.
    """
    whole = joint.graph
    graph = fold_names(simplify(inlined(whole))) if flat else _skip_passed_on(whole)
    params = dict(zip(graph.inputs, joint.inputs, strict=True))
    found = _backward(graph, params, n_inputs)

    users = used_by(graph.nodes)

    def is_for_a_tie(tie: Node) -> bool:
        """Whether the backward pass needs the value that a gradient is tied to only for the tie."""
        n = tie.operands[1]
        while n.opcode in opcodes.FREE and n.operands:
            (n,) = n.operands
        if tie not in found or (n in params and params[n] not in unavailable):
            return False
        return not any(u in found and not is_automatic_tie(u) for u in users.get(n, ()))

    graph = _without_ties(graph, is_for_a_tie)
    backward = _backward(graph, params, n_inputs)
    varies = _depending(graph, (n for n, k in params.items() if k not in invariant))
    available = {n for n, k in params.items() if k not in unavailable and n not in backward}
    return JointGraph(
        graph,
        params,
        graph.outputs[:n_outputs],
        graph.outputs[n_outputs:],
        frozenset(backward),
        frozenset(varies),
        frozenset(available),
        steps,
    )


def _backward(graph: Graph, params: dict[Node, int], n_inputs: int) -> set[Node]:
    return _depending(graph, (n for n, k in params.items() if k >= n_inputs))


def _depending(graph: Graph, inputs: Iterable[Node]) -> set[Node]:
    """The given inputs, and the values that depend on them."""
    result = set(inputs)
    for n in graph.nodes:
        if n not in result and not result.isdisjoint(n.operands):
            result.add(n)
    return result


def _without_ties(graph: Graph, leave_out: Callable[[Node], bool]) -> Graph:
    """The graph without some of the automatic ties that it calls."""
    gone = {n for n in graph.nodes if is_automatic_tie(n) and leave_out(n)}
    if not gone:
        return graph

    def change(n: Node, operands: tuple[Node, ...]) -> Node:
        if n.opcode == "get-tuple-element" and n.operands[0] in gone:
            return operands[0].operands[n.params]
        return moved(n, operands)

    return graph.rewritten(change)


def _skip_passed_on(graph: Graph) -> Graph:
    """The graph without the results of calls that are arguments of these calls.

    A rule may return its arguments as residuals. After the call they look like new values, and a
    loop would keep a copy of a weight at each step.
    """
    known: dict[Graph, dict[int, int]] = {}

    def passed(called: Graph) -> dict[int, int]:
        """For outputs that are inputs, the input's position by that of the output."""
        if called not in known:
            place = {n: k for k, n in enumerate(called.inputs)}
            origins = enumerate(map(origin, called.outputs))
            known[called] = {k: place[n] for k, n in origins if n in place}
        return known[called]

    def origin(n: Node) -> Node:
        """The argument that a call returns unchanged as `n`; otherwise `n` itself."""
        while n.opcode == "get-tuple-element" and n.operands[0].opcode == "call":
            (call,) = n.operands
            callee = call.calls[0].graph
            number = None if callee is None else passed(callee).get(n.params)
            if number is None:
                break
            n = call.operands[number]
        return n

    def change(n: Node, operands: tuple[Node, ...]) -> Node:
        made = moved(n, operands)
        return origin(made) if n.opcode == "get-tuple-element" else made

    return graph.rewritten(change)


def _runs_once(n: Node) -> bool:
    is_tie = isinstance(n.params, CustomCall) and n.params.tied
    return n.opcode in opcodes.ONCE or (acts(n) and not is_tie)
