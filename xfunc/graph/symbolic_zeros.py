"""Absent tangents and cotangents: zeros that stay zero whatever they are multiplied by.

Derivative formulas multiply: the tangent of ``a * b`` is ``da * b + a * db``. If `a` is a constant
there is no `da`, and its product with `b` must not be computed: ``0 * inf`` would give NaN. torch
has special tensors for this (a product with one is again such a tensor), but not on every device,
nor for every product. Here these zeros are nodes of their own (``absent``), which are followed
through the graph once a function has been traced.

In reverse mode, only a run of the backward pass shows which results have no cotangent:
`prune_inputs` reduces a graph to the part that remains when some of its inputs are absent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from xfunc.graph import build
from xfunc.graph.composite import operation_of
from xfunc.graph.graph import Callee, Graph, is_pair, moved
from xfunc.graph.node import Node

Flags = tuple[bool, ...]
"""Which values are absent."""

ABSENT = "absent"
"""The opcode of zeros that are absent."""


def propagate_zeros(graph: Graph) -> Graph:
    """A graph in which absent zeros spread through products and are left out of sums."""
    if not any(n.opcode == ABSENT for n in graph.nodes):
        return graph
    return _Spread().over(graph, (False,) * len(graph.inputs))[0]


def prune_inputs(
    graph: Graph, absent: Collection[int], kept: Collection[int] | None = None
) -> tuple[Graph, tuple[int, ...], tuple[int, ...]]:
    """The part of a graph that remains when some of its inputs are absent.

    Args:
        graph: not changed; it calls no functions.
        absent: the numbers of the absent inputs.
        kept: the results to keep; by default, those that are then not absent.

    Returns:
        The graph; the inputs that are left, and the results.
    """
    given = tuple(k in absent for k in range(len(graph.inputs)))
    made, gone = _Spread().rewritten(graph, given, keep_inputs=False)
    results = tuple(k for k, g in enumerate(gone) if not g) if kept is None else tuple(kept)
    outputs = [made.outputs[k] for k in results]
    whole = set(Graph("", (), outputs).nodes)
    left = tuple(k for k, n in enumerate(made.inputs) if n in whole and k not in absent)
    return Graph(graph.name, [made.inputs[k] for k in left], outputs), left, results


# Zero if the first operand is.
_LINEAR = frozenset(
    "broadcast convert copy divide dynamic-slice fft gather imag negate real reduce-precision "
    "reshape reverse slice transpose".split()
)
_PRODUCTS = frozenset(("multiply", "dot", "convolution"))  # zero if any operand is
_SUMS = frozenset(("add", "subtract", "complex", "concatenate"))  # zero if all operands are
# Zero if these operands are.
_PARTS = {
    "select": (1, 2),
    "dynamic-update-slice": (0, 1),
    "scatter": (0, 2),
    "pad": (0, 1),
    "select-and-scatter": (1, 2),
    "triangular-solve": (1,),
}


class _Spread:
    """Rewrites graphs, and the graphs that they call with absent operands."""

    def __init__(self) -> None:
        self._made: dict[tuple[Graph, Flags], tuple[Graph, Flags]] = {}

    def over(self, graph: Graph, given: Flags) -> tuple[Graph, Flags]:
        """The result of `rewritten` for a graph, computed once."""
        key = graph, given
        if key not in self._made:
            self._made[key] = self.rewritten(graph, given, keep_inputs=True)
        return self._made[key]

    def rewritten(self, graph: Graph, given: Flags, keep_inputs: bool) -> tuple[Graph, Flags]:
        """A rewritten graph, and which of its outputs are absent.

        Args:
            graph: not changed.
            given: which inputs are absent.
            keep_inputs: whether absent inputs, which hold zeros, remain in use.
        """
        absent = _Absent(self)
        known = absent.known
        replaced: dict[Node, Node] = {}
        for n, is_absent in zip(graph.inputs, given, strict=True):
            if is_absent:
                known[n] = True
        if not keep_inputs:
            replaced = {n: build.full(0, n.type) for n in known}

        def change(n: Node, operands: tuple[Node, ...]) -> Node:
            result = absent.change(n, operands)
            if known.get(n) is True and n not in absent.results:
                return build.full(0, n.type)
            return result

        made = graph.rewritten(change, replaced)
        if replaced:
            made = Graph(made.name, graph.inputs, made.outputs, made.effects)
        return made, tuple([known.get(n, False) for n in graph.outputs])


class _Absent:
    """The absent values in a graph.

    Attributes:
        known: whether values are absent.
        results: which results of nodes with several are.
    """

    def __init__(self, spread: _Spread) -> None:
        self.known: dict[Node, bool] = {}
        self.results: dict[Node, Flags] = {}
        self._zeros: set[Node] = set()  # zeros by value, not absent
        self._spread = spread

    def change(self, n: Node, operands: tuple[Node, ...]) -> Node:
        """The replacement of a node; records the absent results."""
        known = tuple([self.known.get(o, False) for o in n.operands])
        opcode = n.opcode
        if opcode == ABSENT:
            self.known[n] = True
        elif opcode == "constant":
            if not n.dims and not n.more and n.params == 0:
                self._zeros.add(n)
        elif opcode == "get-tuple-element":
            of = self.results.get(n.operands[0])
            self.known[n] = of is not None and of[n.params]
        elif opcode == "opt-barrier":
            self.results[n] = known
        elif opcode in ("call", "while", "conditional"):
            if any(known):
                return self._calling(n, operands, known)
        elif n.more:  # A sharding, or another property, of the value.
            pass
        elif self._is_absent(n, known):
            self.known[n] = True
        elif opcode == "add" and any(known):
            return operands[0] if known[1] else operands[1]
        elif opcode == "subtract" and known[1]:
            return operands[0]
        elif opcode == "subtract" and known[0]:
            result = Node("negate", n.type, operands[1:])
            result.operation = n.operation
            return result
        return moved(n, operands)

    def _calling(self, n: Node, operands: tuple[Node, ...], known: Flags) -> Node:
        special = getattr(self, f"_{n.opcode}")(n, known)
        return moved(n, operands) if special is None else n.changed(operands, special)

    def _call(self, n: Node, known: Flags) -> tuple[Graph, ...] | None:
        callee: Graph | None = n.calls[0].graph
        # A target's replacement of a composite reads all of its operands.
        if callee is None or operation_of(callee.name) is not None:
            return None
        if is_pair(callee):
            self.results[n] = known
            return None
        special, self.results[n] = self._spread.over(callee, known)
        return (special,)

    def _while(self, n: Node, known: Flags) -> tuple[Callee, ...] | None:
        body = n.calls[0].graph
        while any(known):
            special, after = self._spread.over(body, known)
            both = _both(known, after)
            if both == known:
                self.results[n] = known
                return special, n.calls[1]
            known = both
        return None

    def _conditional(self, n: Node, known: Flags) -> tuple[Callee, ...]:
        made: list[Graph] = []
        at, found = 1, None
        for callee, count in zip(n.calls, n.params, strict=True):
            special, after = self._spread.over(callee.graph, known[at : at + count])
            made.append(special)
            found = after if found is None else _both(found, after)
            at += count
        assert found is not None
        self.results[n] = found
        return tuple(made)

    def _is_absent(self, n: Node, known: Flags) -> bool:
        opcode = n.opcode
        if opcode in _PRODUCTS:
            return any(known)
        parts: Sequence[int]
        if opcode in _LINEAR or (opcode in ("reduce", "reduce-window") and _adds(n)):
            parts = [0]
        elif opcode in _SUMS:
            parts = range(len(known))
        elif opcode in _PARTS:
            parts = _PARTS[opcode]
        else:
            return False
        if not all(known[k] or n.operands[k] in self._zeros for k in parts) or not parts:
            return False
        if any(known[k] for k in parts):
            return True
        self._zeros.add(n)
        return False


def _adds(n: Node) -> bool:
    """Whether a reduction is a sum."""
    (called,) = n.calls
    if isinstance(called, tuple):
        return called[0] == "add"
    return called.graph is not None and called.graph.outputs[0].opcode == "add"


def _both(a: Flags, b: Flags) -> Flags:
    """The flags that are set in both."""
    return tuple([x and y for x, y in zip(a, b, strict=True)])
