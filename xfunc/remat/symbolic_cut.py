"""`SameCut`: one cut of a function for all sizes of its arguments."""

from __future__ import annotations

from xfunc.graph.node import Node
from xfunc.remat.cut import InfeasibleBudget, NoPlan, fastest, fewest_bytes, least
from xfunc.remat.joint_graph import JointGraph
from xfunc.remat.min_cut import cut_problem
from xfunc.remat.policies import GraphPolicy


class SameCut(GraphPolicy):
    """A policy like `min_cut` with a relative budget.

    Sizes of arguments change the bytes of a cut, and could change the cut. This policy chooses a
    cut for the first sizes it sees and uses it for all others: programs that differ only in sizes
    have the same values in the same order.

    Args:
        part: the budget, as a fraction of the range from the fewest bytes that can be kept to those
            of keeping everything; None: the fewest bytes without computing a matrix product or a
            convolution twice.
    """

    def __init__(self, part: float | None):
        self._part = part
        self._known: dict[object, frozenset[int]] = {}  # positions of the values kept

    def choose(self, graph: JointGraph) -> frozenset[Node]:
        position = {n: k for k, n in enumerate(graph.nodes)}
        skeleton = tuple((n.opcode, *(position[o] for o in n.operands)) for n in graph.nodes)
        if skeleton not in self._known:
            self._known[skeleton] = self._chosen(graph)
        return frozenset(graph.nodes[k] for k in self._known[skeleton])

    def _chosen(self, graph: JointGraph) -> frozenset[int]:
        problem = cut_problem(graph)
        try:
            if self._part is None:
                return frozenset(fewest_bytes(problem).kept)
            fewest = least(problem).bytes
            most = fastest(problem, sum(n.bytes for n in problem.nodes)).bytes
            return frozenset(fastest(problem, fewest + int(self._part * (most - fewest))).kept)
        except (NoPlan, InfeasibleBudget):  # A whole tuple is needed: see `MinCut.choose`.
            return frozenset(n.id for n in problem.nodes if n.keepable)
