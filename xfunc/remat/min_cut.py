"""`min_cut`: a solver chooses what is kept for the backward pass.

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

from xfunc.errors import fail, report, shown
from xfunc.hlo import Instruction, opcodes
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.contents import Contents
from xfunc.hlo.estimate.cost import Cost, costs, roofline
from xfunc.hlo.instances import holding
from xfunc.remat.cut import CutProblem, InfeasibleBudget, Node, NoPlan, fastest, fewest_bytes
from xfunc.remat.joint_graph import JointGraph
from xfunc.remat.policies import GraphPolicy


@dataclasses.dataclass(frozen=True)
class MinCut(GraphPolicy):
    """The policy that `min_cut` returns."""

    budget_bytes: int | None = None

    def choose(self, graph: JointGraph) -> frozenset[int]:
        problem = cut_problem(graph)
        try:
            if self.budget_bytes is None:
                return frozenset(fewest_bytes(problem).kept)
            # Residuals of all steps of a loop are kept at once.
            return frozenset(fastest(problem, self.budget_bytes // graph.steps).kept)
        except NoPlan:  # A whole tuple is needed that must not be recomputed.
            return frozenset(n.id for n in problem.nodes if n.keepable)
        except InfeasibleBudget as error:
            steps = f" ({graph.steps} steps of {error.minimum_bytes})" if graph.steps > 1 else ""
            least = error.minimum_bytes * graph.steps
            raise ValueError(
                report(
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

    Raises:
        ValueError: the budget is not a number of bytes; or, when the function is differentiated,
            the values that must be kept exceed it: the error says how much they take.
    """
    is_number = isinstance(budget_bytes, int) and not isinstance(budget_bytes, bool)
    if budget_bytes is not None and (not is_number or budget_bytes < 0):
        fail(
            ValueError,
            f"min_cut was given budget_bytes={shown(budget_bytes)}",
            "give a whole number of bytes, such as 2**30, or none.",
        )
    return MinCut(budget_bytes)


def cut_problem(graph: JointGraph) -> CutProblem:
    """The cut problem of a joint graph."""
    forward = [i for i in graph.instructions if i.id not in graph.backward]
    known = costs(graph.module)
    known = known | _fused(forward, known)
    heavy = holding(Contents(graph.module.proto), _is_heavy)
    return CutProblem(
        tuple(_node(i, graph, known[i.id], heavy) for i in forward),
        tuple(i.id for i in graph.needed),
    )


def _fused(instructions: Sequence[Instruction], known: Mapping[int, Cost]) -> dict[int, Cost]:
    """The costs of arithmetic on narrow numbers that are widened for it.

    As torch defines it, such an operation computes in float32 from narrow operands to a narrow
    result. XLA fuses the conversions and everything between: only narrow numbers go through memory.
    """
    narrow: dict[int, float] = {}  # the size in memory, as a fraction of the value's size
    for i in instructions:
        if i.opcode == "convert":
            before, after = i.operands[0].bytes, i.bytes
            if before < after:
                narrow[i.id] = before / after
        elif i.opcode in opcodes.ELEMENTWISE or i.opcode == "broadcast":
            whole = [narrow.get(o.id, 1.0) for o in i.operands if o.bytes >= i.bytes]
            if whole and max(whole) < 1:
                narrow[i.id] = max(whole)
    return {
        key: dataclasses.replace(cost, bytes_accessed=round(cost.bytes_accessed * part))
        for key, part in narrow.items()
        if (cost := known[key])
    }


def _node(i: Instruction, graph: JointGraph, cost: Cost, heavy: set[int]) -> Node:
    # Values that the forward pass does not use are computed once in any case.
    again = i.id in graph.in_forward
    is_input = i.opcode == "parameter"
    return Node(
        i.id,
        i.bytes,
        0.0 if i.opcode in opcodes.FREE or not again else roofline(cost),
        tuple(dict.fromkeys(o.id for o in i.operands)),
        at_hand=i.id in graph.at_hand or i.id not in graph.varies,
        keepable=not i.shape.is_tuple,
        recomputable=not is_input and i.id not in graph.once,
        heavy=again
        and (_is_heavy(i.proto) or not heavy.isdisjoint(i.proto.called_computation_ids)),
    )


def _is_heavy(i: pb.HloInstructionProto) -> bool:
    return i.opcode in opcodes.PRODUCTS
