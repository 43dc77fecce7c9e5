"""`simplify`: a graph in which each value occurs once, in one form.

XLA simplifies far more, and later. But when a joint program is cut in two, a value that is computed
twice, or in two equivalent forms, would be kept twice or recomputed. So this pass removes no-ops
and pairs that undo each other, folds constant scalars, and merges equal operations.

Results stay the same, bit for bit. If a removed operation on floats could change its operand after
all (``x * 1`` makes a signalling NaN a quiet one), XLA would have removed it as well.

NOTE [nodes that stay unchanged]: nodes that carry more than a computation, such as a sharding or a
name; calls of custom functions; nodes that have effects, communicate or draw random numbers; and
barriers, after which a value counts as a different one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch

from xfunc.graph import build, opcodes, scalars
from xfunc.graph.graph import Graph, moved
from xfunc.graph.node import Node


def simplify(graph: Graph, *, bodies: bool = False) -> Graph:
    """The graph in a simpler form.

    Args:
        graph: not changed.
        bodies: whether to simplify the bodies of loops and branches as well.
    """
    return _Pass(bodies).simpler(graph)


class _Pass:
    def __init__(self, bodies: bool) -> None:
        self._bodies = bodies
        self._made: dict[Graph, Graph] = {}
        self.common = _CommonSubexpressions()

    def simpler(self, graph: Graph) -> Graph:
        if graph not in self._made:
            self._made[graph] = graph.rewritten(_Simpler(self).change)
        return self._made[graph]

    def callees(self, n: Node) -> tuple[Any, ...]:
        """The graphs that a node calls; bodies of loops and branches simplified, if requested."""
        if not self._bodies or n.opcode not in ("while", "conditional"):
            return n.calls
        return tuple(self.simpler(c.graph) for c in n.calls)


class _CommonSubexpressions:
    """Finds nodes that compute the same from equal operands, and graphs that do."""

    def __init__(self) -> None:
        self._first: dict[Hashable, Hashable] = {}
        self._representatives: dict[object, Hashable] = {}

    def key(self, n: Node, operands: tuple[Hashable, ...]) -> Hashable:
        """Everything in a node except its number and its origin."""
        params = n.params
        if isinstance(params, (bool, int, float, complex)):
            params = repr(params)  # 0.0 == -0.0, and True == 1
        called = tuple([self._representative(c) for c in n.calls])
        return n.opcode, n.type, params, n.more, operands, called

    def _representative(self, called: Any) -> Hashable:
        if isinstance(called, tuple):
            return called
        if called not in self._representatives:
            graph = called.graph
            self._representatives[called] = called if graph is None else self._of(graph)
        return self._representatives[called]

    def _of(self, graph: Graph) -> Hashable:
        place = {n: k for k, n in enumerate(graph.nodes)}
        each = [self.key(n, tuple([place[o] for o in n.operands])) for n in graph.nodes]
        roots = tuple([place[n] for n in (*graph.inputs, *graph.outputs, *graph.effects)])
        return self._first.setdefault((*each, roots), graph)


class _Simpler:
    """Simplifies one graph."""

    def __init__(self, whole: _Pass) -> None:
        self._pass = whole
        self._first: dict[Hashable, Node] = {}
        self._fills: dict[Node, scalars.Number] = {}  # the value of all elements, where known

    def change(self, n: Node, operands: tuple[Node, ...]) -> Node:
        result = moved(n, operands, self._pass.callees(n))
        if not result.more:  # See NOTE [nodes that stay unchanged].
            before, result = result, self._plain(result)
            if result.number > before.number and result.opcode != "constant":
                result.operation = n.operation
        if result.opcode not in opcodes.PURE:
            return result
        return self._first.setdefault(self._pass.common.key(result, result.operands), result)

    def _plain(self, n: Node) -> Node:
        rule = _RULES.get(n.opcode)
        if rule is not None:
            n = rule(n, self._fills)
        if n in self._fills or (fill := _fill(n, self._fills)) is None:
            return n
        if not n.dims and n.opcode != "constant":
            n = build.constant(fill.item(), n.dtype)
        self._fills[n] = fill
        return n


_Fills = dict[Node, scalars.Number]


def _fill(n: Node, fills: _Fills) -> scalars.Number | None:
    if n.opcode == "constant":
        plain = not n.dims and isinstance(n.params, (bool, int, float))
        return scalars.number(n.params, n.dtype) if plain else None
    given = [fills.get(o) for o in n.operands]
    if not given or any(f is None for f in given):
        return None
    if n.opcode in ("broadcast", "reshape", "transpose"):
        return given[0]
    if n.opcode == "compare":
        return scalars.compared(n.params, *given)
    return scalars.computed(n.opcode, given, n.dtype)


# -- rules ----------------------------------------------------------------------------------------

Rule = Callable[[Node, _Fills], Node]
"""An earlier or simpler node that is equal to a node; or the node itself."""


def _same_shape(n: Node, fills: _Fills) -> Node:
    del fills
    return n.operands[0] if n.operands[0].type is n.type else n


def _copied(n: Node, fills: _Fills) -> Node:
    del fills
    return n.operands[0]


def _concatenated(n: Node, fills: _Fills) -> Node:
    del fills
    return n.operands[0] if len(n.operands) == 1 else n


def _converted(n: Node, fills: _Fills) -> Node:
    del fills
    (of,) = n.operands
    if of.type is n.type:
        return of
    if of.opcode == "convert" and not of.more:
        (first,) = of.operands
        if first.type is n.type and scalars.holds_all(of.dtype, first.dtype):
            return first
    return n


def _reshaped(n: Node, fills: _Fills) -> Node:
    (of,) = n.operands
    if of.opcode == "reshape" and not of.more:
        n = n.changed(of.operands)
    return _same_shape(n, fills)


def _transposed(n: Node, fills: _Fills) -> Node:
    del fills
    (of,), order = n.operands, n.params
    if of.opcode == "transpose" and not of.more:
        order = tuple([of.params[d] for d in order])
        (of,) = of.operands
        n = Node("transpose", n.type, (of,), order)
    return of if order == tuple(range(len(order))) else n


def _broadcast(n: Node, fills: _Fills) -> Node:
    del fills
    (of,), places = n.operands, n.params
    if of.opcode == "broadcast" and not of.more:
        places = tuple([places[d] for d in of.params])
        (of,) = of.operands
        n = Node("broadcast", n.type, (of,), places)
    return of if places == tuple(range(len(n.dims))) else n


def _updated(n: Node, fills: _Fills) -> Node:
    del fills
    return n.operands[1] if n.operands[1].type is n.type else n


def _selected(n: Node, fills: _Fills) -> Node:
    which, yes, no = n.operands
    fill = fills.get(which)
    if yes is no or fill is None:
        return yes if yes is no else n
    return yes if fill else no


def _multiplied(n: Node, fills: _Fills) -> Node:
    a, b = n.operands
    if fills.get(b) == 1:
        return a
    return b if fills.get(a) == 1 else n


def _divided(n: Node, fills: _Fills) -> Node:
    a, b = n.operands
    return a if fills.get(b) == 1 else n


def _added(n: Node, fills: _Fills) -> Node:
    a, b = n.operands
    if n.dtype in scalars.FLOATS:
        return n  # -0 + 0 is 0.
    if fills.get(b) == 0:
        return a
    return b if fills.get(a) == 0 else n


def _subtracted(n: Node, fills: _Fills) -> Node:
    a, b = n.operands
    fill = fills.get(b)
    is_zero = fill is not None and fill == 0 and not np.signbit(float(fill))  # -0 - -0 is 0.
    return a if is_zero else n


def _compared(n: Node, fills: _Fills) -> Node:
    a, b = n.operands
    says_nothing = {"NE": False, "EQ": True}.get(n.params)
    if says_nothing is None or a.dtype is not torch.bool:
        return n
    if fills.get(b) == says_nothing:
        return a
    return b if fills.get(a) == says_nothing else n


_RULES: dict[str, Rule] = {
    "add": _added,
    "broadcast": _broadcast,
    "compare": _compared,
    "concatenate": _concatenated,
    "convert": _converted,
    "copy": _copied,
    "divide": _divided,
    "dynamic-slice": _same_shape,
    "dynamic-update-slice": _updated,
    "multiply": _multiplied,
    "reshape": _reshaped,
    "select": _selected,
    "slice": _same_shape,
    "subtract": _subtracted,
    "transpose": _transposed,
}
