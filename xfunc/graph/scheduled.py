"""`in_order`: a program whose steps run in a given order.

NOTE [fixing an order for XLA]: HLO has control dependencies, but on the CPU the simplifier of
torch_xla 2.9's XLA ends the process if an instruction that it replaces has one, and StableHLO has
none. Calls of functions that are not inlined survive all passes, and run after their operands. So
the program becomes a chain of calls, each with one result of the call before as an operand more.
Nothing is computed twice, except what XLA would fuse into several steps anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xfunc.graph import build
from xfunc.graph.graph import Graph, moved
from xfunc.graph.node import Node, TupleType, reached, unattributed


def in_order(graph: Graph, steps: Sequence[Node], no_inline: bytes) -> Graph:
    """The graph with its steps in an order.

    Args:
        graph: it calls no functions.
        steps: nodes of it, operands first; those between them belong to the steps that use them.
        no_inline: `Node.more` of a call that is not inlined.
    """
    groups = _groups(graph, steps)
    made_by = {n: k for k, group in enumerate(groups) for n in group}
    needs = [_needed(group, made_by) for group in groups]
    last = reached(graph.outputs, [*graph.inputs, *made_by])
    wanted = {n for n in last if n in made_by}
    for k, need in enumerate(needs):
        wanted.update(n for n in need if made_by.get(n, k) != k)
    inputs = set(graph.inputs)

    def given(nodes: Iterable[Node], own: int | None) -> list[Node]:
        """The nodes that are inputs, or results of other groups."""
        return [n for n in nodes if n in inputs or made_by.get(n, own) != own]

    known = {n: n for n in graph.inputs}
    token: Node | None = None
    with unattributed():
        for k, (group, need) in enumerate(zip(groups, needs, strict=True)):
            read = given(need, k)
            if token is not None and token not in read:
                read.append(token)
            arrays = [n for n in group if not isinstance(n.type, TupleType)]
            results = [n for n in arrays if n in wanted] or arrays[-1:]
            if not results:
                continue
            part = Graph(f"step_{k}", read, results)
            known.update(
                zip(results, build.call(part, [known[n] for n in read], no_inline), strict=True)
            )
            token = min(results, key=lambda n: n.bytes)
        read = given(last, None)
        end = Graph("results", read, graph.outputs)
        return Graph(graph.name, graph.inputs, build.call(end, [known[n] for n in read]))


def without_barriers(graph: Graph) -> Graph:
    """The graph without its barriers.

    A step that reads one value of a barrier would need all of its operands.
    """

    def change(n: Node, operands: tuple[Node, ...]) -> Node:
        if n.opcode == "get-tuple-element" and operands[0].opcode == "opt-barrier":
            return operands[0].operands[n.params]
        return moved(n, operands)

    return graph.rewritten(change)


def _needed(group: Sequence[Node], made_by: dict[Node, int]) -> list[Node]:
    """The graph of a group, and the inputs and steps that it reads, in order."""
    own, found = made_by[group[0]], set[Node]()
    todo = list(group)
    while todo:
        n = todo.pop()
        if n not in found:
            found.add(n)
            todo += n.operands if made_by.get(n, own) == own else ()
    return sorted(found, key=lambda n: n.number)


def _groups(graph: Graph, steps: Sequence[Node]) -> list[list[Node]]:
    """The steps, with each that needs the one before in one group with it.

    The results of a node with several are in its group.
    """
    elements: dict[Node, list[Node]] = {}
    for n in graph.nodes:
        if n.opcode == "get-tuple-element":
            elements.setdefault(n.operands[0], []).append(n)
    groups: list[list[Node]] = []
    places = {s: k for k, s in enumerate(steps)}
    last: Node | None = None
    for s in steps:
        if last is None or last not in _needed([s], places):
            groups.append([])
        groups[-1] += [s, *elements.get(s, ())]
        last = s
    return groups
