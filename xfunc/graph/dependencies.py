"""Which inputs each output of a graph depends on.

Sets of inputs are bit masks: the union of two is ``|``, which costs next to nothing even with
thousands of inputs. A graph is analysed once, whatever calls it: bit k stands for its input k, and
a call replaces it by the mask of the argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xfunc.graph.graph import Callee, Graph
from xfunc.graph.node import Node

Masks = tuple[int, ...]


def dependencies(graph: Graph) -> tuple[frozenset[int], ...]:
    """For each output, the numbers of the inputs that it is computed from."""
    return tuple(frozenset(_bits(m)) for m in _Summaries().of(graph))


class _Summaries:
    """The masks of the outputs of graphs."""

    def __init__(self) -> None:
        self._made: dict[Graph, Masks] = {}

    def of(self, graph: Graph) -> Masks:
        result = self._made.get(graph)
        if result is None:
            result = self._made[graph] = self._summary(graph)
        return result

    def _summary(self, graph: Graph) -> Masks:
        known: dict[int, int] = {}
        several: dict[int, Masks] = {}  # of nodes with separately known results
        for k, n in enumerate(graph.inputs):
            known[id(n)] = known.get(id(n), 0) | 1 << k
        for n in graph.nodes:
            key = id(n)
            if key in known:
                continue
            if n.opcode == "get-tuple-element" and (of := several.get(id(n.operands[0]))):
                known[key] = of[n.params]
                continue
            given = [known[id(o)] for o in n.operands]
            found = self._results(n, given)
            if found is None:
                known[key] = _union(given)
            else:
                several[key], known[key] = found, _union(found)
        return tuple([known[id(o)] for o in graph.outputs])

    def _results(self, n: Node, given: Sequence[int]) -> Masks | None:
        if n.opcode == "opt-barrier":
            return tuple(given)
        if n.opcode == "call":
            return self._call(n.calls[0], given)
        return self._loop(n, given) if n.opcode == "while" else None

    def _call(self, callee: Callee, given: Sequence[int]) -> Masks | None:
        graph = callee.graph
        if graph is None:
            return None
        return tuple([_substituted(mask, given) for mask in self.of(graph)])

    def _loop(self, n: Node, init: Sequence[int]) -> Masks:
        """After any number of rounds."""
        body, condition = n.calls
        # carried[k]: the elements of the initial state that element k may depend on.
        carried = [mask | 1 << k for k, mask in enumerate(self.of(body.graph))]
        # Warshall's closure. An element that the body passes on unchanged adds nothing.
        for via in range(len(carried)):
            if carried[via] != 1 << via:
                for k in range(len(carried)):
                    if carried[k] >> via & 1:
                        carried[k] |= carried[via]
        rounds = 0  # the dependencies of the number of rounds
        for k in _bits(_union(self.of(condition.graph))):
            rounds |= carried[k]
        return tuple([_substituted(mask | rounds, init) for mask in carried])


def _union(masks: Sequence[int]) -> int:
    result = 0
    for m in masks:
        result |= m
    return result


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _substituted(mask: int, atoms: Sequence[int]) -> int:
    result = 0
    for k in _bits(mask):
        result |= atoms[k]
    return result
