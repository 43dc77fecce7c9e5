"""`min_cut`: a solver chooses the values kept for the backward pass.

Without a budget: the fewest bytes such that no matrix product or convolution is computed twice.
With one: the least time spent on recomputation, such that the bytes kept stay within the budget.
Both answers are exact; see `xfunc.remat.cut`. Times come from a roofline model: an instruction
takes as long as its arithmetic or its memory traffic, whichever is longer.

Source: the cut without a budget is that of He and Yu, "Transcending runtime-memory tradeoffs in
checkpointing by being fusion aware", 2023 (``torch._functorch.partitioners``); the one with a
budget is the problem of Jain et al., "Checkmate", 2020, on the joint graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from xfunc.errors import fail, format_error, short_repr
from xfunc.graph import opcodes
from xfunc.graph.graph import Holding
from xfunc.graph.node import Node as Value
from xfunc.hlo.estimate.cost import Cost, costs, roofline
from xfunc.remat.cut import CutProblem, InfeasibleBudget, Node, NoPlan, fastest, fewest_bytes
from xfunc.remat.joint_graph import JointGraph
from xfunc.remat.policies import GraphPolicy
from xfunc.remat.residuals import is_several


@dataclasses.dataclass(frozen=True)
class MinCut(GraphPolicy):
    """The policy that `min_cut` returns."""

    budget_bytes: int | None = None

    def choose(self, graph: JointGraph) -> frozenset[Value]:
        problem = cut_problem(graph)
        try:
            if self.budget_bytes is None:
                kept = fewest_bytes(problem).kept
            else:  # Residuals of all steps of a loop are kept at once.
                kept = fastest(problem, self.budget_bytes // graph.steps).kept
            return frozenset(graph.nodes[k] for k in kept)
        except NoPlan:  # A whole tuple is needed that must not be recomputed.
            return frozenset(graph.nodes[n.id] for n in problem.nodes if n.keepable)
        except InfeasibleBudget as error:
            steps = f" ({graph.steps} steps of {error.minimum_bytes})" if graph.steps > 1 else ""
            least = error.minimum_bytes * graph.steps
            raise ValueError(
                format_error(
                    f"min_cut was given a budget of {self.budget_bytes} bytes, but values that "
                    f"cannot be recomputed take at least {least}{steps}",
                    f"give budget_bytes={least} or more, or none.",
                )
            ) from None


def min_cut(budget_bytes: int | None = None) -> MinCut:
    """A policy that considers all values of the function at once.

    Args:
        budget_bytes: the bytes that may be kept, in a scan for all its steps together; arguments do
            not count. None: as little as possible without computing matrix products or convolutions
            twice.

    Returns:
        A policy, for `checkpoint` and `scan`. Those of equal budgets are equal.

    Raises:
        ValueError: the budget is not a number of bytes; or, when the function is differentiated,
            the values that must be kept exceed it: the error says how much they take.
    """
    if isinstance(budget_bytes, Value):
        fail(
            TypeError,
            "min_cut itself was given as a policy, but it is a function that makes one",
            "call it: xf.checkpoint_policies.min_cut().",
        )
    is_number = isinstance(budget_bytes, int) and not isinstance(budget_bytes, bool)
    if budget_bytes is not None and (not is_number or budget_bytes < 0):
        fail(
            ValueError,
            f"min_cut was given budget_bytes={short_repr(budget_bytes)}",
            "give a whole number of bytes, such as 2**30, or none.",
        )
    return MinCut(budget_bytes)


def cut_problem(graph: JointGraph) -> CutProblem:
    """The cut problem of a joint graph; the ids of its nodes are their places in `graph.nodes`."""
    places = {n: k for k, n in enumerate(graph.nodes)}
    forward = [n for n in graph.nodes if n not in graph.backward]
    known = costs(graph.graph)
    known = known | _fused(forward, known)
    is_heavy = Holding(lambda n: n.opcode in opcodes.PRODUCTS)

    def node(n: Value) -> Node:
        # Values that the forward pass does not use are computed once in any case.
        again = n in graph.in_forward
        return Node(
            places[n],
            n.bytes,
            0.0 if n.opcode in opcodes.FREE or not again else roofline(known[n]),
            tuple(dict.fromkeys(places[o] for o in n.operands)),
            available=n in graph.available or n not in graph.varies,
            keepable=not is_several(n),
            recomputable=not (n in graph.params or n in graph.must_save or n in graph.exchanged),
            heavy=again and is_heavy(n),
        )

    return CutProblem(tuple(map(node, forward)), tuple(places[n] for n in graph.needed))


def _fused(nodes: Sequence[Value], known: Mapping[Value, Cost]) -> dict[Value, Cost]:
    """The costs of arithmetic on narrow numbers that are widened for it.

    As torch defines it, such an operation computes in float32 from narrow operands to a narrow
    result. XLA fuses the conversions and everything between: only narrow numbers go through memory.
    """
    narrow: dict[Value, float] = {}  # the size in memory, as a fraction of the value's size
    for n in nodes:
        if n.opcode == "convert":
            part = narrow.get(n.operands[0], 1.0) * n.operands[0].bytes / n.bytes
            if part < 1:
                narrow[n] = part
        elif n.opcode in opcodes.ELEMENTWISE or n.opcode == "broadcast":
            whole = [narrow.get(o, 1.0) for o in n.operands if o.bytes >= n.bytes]
            if whole and max(whole) < 1:
                narrow[n] = max(whole)
    return {
        n: dataclasses.replace(cost, bytes_accessed=round(cost.bytes_accessed * part))
        for n, part in narrow.items()
        if (cost := known[n])
    }
