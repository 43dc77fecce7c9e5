"""A graph as text for people: one line for each operation, nested bodies indented."""

from __future__ import annotations

import os
import string
from collections.abc import Iterator, Sequence
from typing import Any

from xfunc.graph.build import CustomCall, Literal
from xfunc.graph.graph import Graph
from xfunc.graph.node import ArrayType, Node
from xfunc.trace.scopes import meaning

_BODIES = {"while": ("body", "condition")}
_DIMS = {"broadcast", "transpose", "reverse", "concatenate", "reduce", "iota"}


def text_of(graph: Graph, lines: bool = False) -> str:
    """The text of a graph, with the graphs that it calls written at their calls.

    Args:
        graph: of a traced function.
        lines: whether each operation is followed by the user's file and line.
    """
    return "\n".join(_Text(lines).graph(graph, graph.name, ""))


class _Text:
    """One text.

    Attributes:
        lines: see `text_of`.
        shown: the graphs that have been written, by identity: the others are written once.
    """

    def __init__(self, lines: bool) -> None:
        self.lines = lines
        self.shown: set[int] = set()

    def graph(self, graph: Graph, title: str, indent: str) -> Iterator[str]:
        """The lines of a graph."""
        self.shown.add(id(graph))
        names = _Names(graph)
        results = ", ".join(repr(n.type) for n in graph.outputs)
        given = ", ".join(f"{names.of(n)}: {n.type}" for n in graph.inputs)
        yield f"{indent}{title}({given}) -> ({results}):"
        inputs = set(map(id, graph.inputs))
        for n in graph.nodes:
            if id(n) in inputs or n.opcode == "get-tuple-element" or _number(n) is not None:
                continue
            yield from self._node(n, names, f"{indent}  ")
        yield f"{indent}  return {', '.join(map(names.of, graph.outputs))}"

    def _node(self, n: Node, names: _Names, indent: str) -> Iterator[str]:
        operands = ", ".join(map(names.of, n.operands))
        graphs = [(title, callee) for title, callee in _titled(n) if callee is not None]
        options = "".join(f" {o}" for o in _options(n))
        where = self._where(n) if self.lines else ""
        called = "".join(f" {g.name}" for _, g in graphs if n.opcode == "call")
        results = names.results(n)
        yield f"{indent}{results} = {n.opcode}{called}({operands}){options}{where}"
        for title, callee in graphs:
            if id(callee) not in self.shown:
                yield from self.graph(callee, title, f"{indent}  ")
            elif n.opcode != "call":
                yield f"{indent}  {title}: {callee.name}, as above"

    def _where(self, n: Node) -> str:
        found = meaning(f"{n.operation.origin}{n.operation.name}")
        if found is None or not found[1]:
            return ""
        return f"    # {os.path.basename(found[1])}:{found[2]}"


class _Names:
    """Names of the values in a graph: a, b, ..., z, aa, ..."""

    def __init__(self, graph: Graph) -> None:
        self.known: dict[int, str] = {}
        self.parts: dict[int, list[Node]] = {}
        for n in graph.nodes:
            if n.opcode == "get-tuple-element" and n not in graph.inputs:
                self.parts.setdefault(id(n.operands[0]), []).append(n)

    def of(self, n: Node) -> str:
        """The name of a value; a number as it is."""
        if (value := _number(n)) is not None:
            return value
        if id(n) not in self.known:
            self.known[id(n)] = _letters(len(self.known))
        return self.known[id(n)]

    def results(self, n: Node) -> str:
        """The names and types of the results of an operation; ``_`` for unused ones."""
        elements: Sequence[ArrayType] | None = getattr(n.type, "elements", None)
        if elements is None:
            return f"{self.of(n)}: {n.type}"
        used = {p.params: p for p in self.parts.get(id(n), [])}
        return ", ".join(
            f"{self.of(used[k]) if k in used else '_'}: {t}" for k, t in enumerate(elements)
        )


def _letters(k: int) -> str:
    head, last = divmod(k, 26)
    return (_letters(head - 1) if head else "") + string.ascii_lowercase[last]


def _number(n: Node) -> str | None:
    """A number, or an array of equal numbers, that is written where it is used."""
    if n.opcode == "broadcast" and not n.operands[0].type.dims:
        (n,) = n.operands
    if n.opcode != "constant" or n.type.dims or isinstance(n.params, (Literal, bytes)):
        return None
    return str(n.params)


def _titled(n: Node) -> Iterator[tuple[str, Graph | None]]:
    """The graphs that a node calls, each with its role."""
    for k, callee in enumerate(n.calls):
        graph: Graph | None = None if isinstance(callee, tuple) else getattr(callee, "graph", None)
        if n.opcode == "conditional":
            yield f"branch {k}", graph
        elif n.opcode in _BODIES:
            yield _BODIES[n.opcode][k], graph
        else:
            yield graph.name if graph is not None and n.opcode == "call" else "with", graph


def _options(n: Node) -> Iterator[str]:
    """The parameters of a node, as ``name=value``."""
    p: Any = n.params
    if n.opcode == "reduce" or n.opcode in _DIMS:
        yield f"dims={_tuple(p)}"
    elif n.opcode == "compare":
        yield f"is={p if isinstance(p, str) else p[0]}"
    elif n.opcode == "slice":
        parts = [f"{s}:{e}" + (f":{t}" if t != 1 else "") for s, e, t in zip(*p, strict=True)]
        yield f"at=[{', '.join(parts)}]"
    elif n.opcode == "dot":
        names = ("contract", "with", "batch", "with_batch")
        yield from (f"{name}={_tuple(d)}" for name, d in zip(names, p[:4], strict=False) if d)
    elif isinstance(p, CustomCall):
        yield f"target={p.target}"
    elif (fields := getattr(p, "_asdict", None)) is not None:
        yield from (f"{k}={_tuple(v)}" for k, v in fields().items() if v not in ((), 0, False))
    elif p is not None and not isinstance(p, (bytes, Literal)) and n.opcode != "conditional":
        yield f"by={_tuple(p)}"
    for callee in n.calls:
        if isinstance(callee, tuple) and n.opcode != "while":
            yield f"combine={callee[0]}"


def _tuple(p: object) -> str:
    """A parameter, without blanks."""
    return str(p).replace(" ", "").replace(",)", ")")
