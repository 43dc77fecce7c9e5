"""Names that the user gave to values, for policies to refer to.

A name is a ``copy`` with a frontend attribute. Before a policy is applied, names are moved to the
named values (`fold_names`); before a program is compiled, they are removed
(`xfunc.hlo.attributes.NAME`).
"""

from __future__ import annotations

from collections.abc import Iterable

from xfunc.graph.graph import Graph, moved
from xfunc.graph.node import Node
from xfunc.hlo.attributes import NAME, attributes_of, with_attributes

_SEPARATOR = "\n"


def names_of(n: Node) -> tuple[str, ...]:
    """The names of a value."""
    found = attributes_of(n)
    return tuple(found[NAME].split(_SEPARATOR)) if NAME in found else ()


def named(x: Node, name: str) -> Node:
    """The same value, with a name."""
    return Node("copy", x.type, (x,), more=with_attributes(b"", {NAME: name}))


def fold_names(graph: Graph) -> Graph:
    """The graph with the names of its values on the values themselves."""
    names: dict[Node, list[str]] = {}
    copies = [n for n in graph.nodes if _is_name(n)]
    for n in copies:
        of = n
        while _is_name(of):
            (of,) = of.operands
        names.setdefault(of, []).extend(names_of(n))
    if not names:
        return graph

    def change(n: Node, operands: tuple[Node, ...]) -> Node:
        if _is_name(n):
            return operands[0]
        made = moved(n, operands)
        return _named(made, names[n]) if n in names else made

    return graph.rewritten(change, {n: _named(n, names[n]) for n in graph.inputs if n in names})


def _named(n: Node, names: Iterable[str]) -> Node:
    every = _SEPARATOR.join(dict.fromkeys([*names_of(n), *names]))
    more = with_attributes(n.more, {**attributes_of(n), NAME: every})
    result = Node(n.opcode, n.type, n.operands, n.params, n.calls, more)
    result.operation = n.operation
    return result


def _is_name(n: Node) -> bool:
    return n.opcode == "copy" and bool(names_of(n))
