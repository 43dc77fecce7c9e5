"""Which values of a joint program a policy keeps for its backward pass.

Some values are never kept, whatever the policy says:

- inputs, which the backward pass receives anyway (unless the caller says that one is unavailable
  then: the carry of a scan, whose value at each step is gone);
- results of a reshape, transpose, broadcast, convert and the like, if the operand is no larger and
  is at hand or kept: recomputing them is free;
- likewise results of elementwise operations that the forward pass itself does not use: they are
  computed in the backward pass, the only place where they are needed;
- values that depend on nothing that varies: constants, and in a loop everything computed from
  values that are the same at every step. XLA hoists these out of the loop again;
- values that the backward pass would only tie a gradient to (`annotation.Tie`): the tie is left
  out.

Others are always kept if they are needed, because they must not be recomputed: values that draw
from a state, communicate between devices, or have side effects.
"""

from __future__ import annotations

from collections.abc import Callable

from xfunc.hlo import Instruction, opcodes
from xfunc.remat.joint_graph import JointGraph
from xfunc.remat.policies import GraphPolicy, Offload, Policy

Kept = dict[int, Offload | None]
"""By the id of each kept value, where it is stored (None: it stays where it is)."""


def choose(graph: JointGraph, policy: Policy) -> Kept:
    """The values that the backward pass gets from the forward pass, besides the inputs."""
    chosen = policy.choose(graph) if isinstance(policy, GraphPolicy) else None
    place = policy.place if isinstance(policy, GraphPolicy) else None
    kept: Kept = {}
    needed = {g.id for g in graph.gradients}

    def answer(i: Instruction) -> bool | Offload:
        if i.shape.is_tuple:
            return False
        if chosen is not None:
            return i.id in chosen and (place or True)
        return policy(i)

    def is_missing(i: Instruction) -> bool:
        return i.id in graph.varies and i.id not in graph.at_hand and i.id not in kept

    def is_free(i: Instruction) -> bool:
        """Whether recomputing costs nothing and keeps no more bytes than keeping it would."""
        if i.opcode not in opcodes.FREE and (
            i.id in graph.in_forward or i.opcode not in opcodes.ELEMENTWISE
        ):
            return False
        missing = {o.id: o for o in i.operands if is_missing(o)}.values()
        if not all(_is_kept(o, answer) for o in missing):
            return False  # Values that would themselves be recomputed do not help.
        return sum(o.bytes for o in missing) <= i.bytes

    # In reverse order of computation: a value is decided on once all its users have been.
    for i in reversed(graph.instructions):
        if i.id not in needed:
            continue
        if i.id in graph.backward:
            needed.update(o.id for o in i.operands)
            continue
        if i.opcode == "parameter":
            if i.id not in graph.at_hand:
                found = answer(i)
                kept[i.id] = found if isinstance(found, Offload) else None
            continue
        if i.id in graph.once and not i.shape.is_tuple:
            kept[i.id] = None
            continue
        found = answer(i) if i.id in graph.varies else False
        if found and not is_free(i):
            kept[i.id] = found if isinstance(found, Offload) else None
            continue
        needed.update(o.id for o in i.operands)
    return {i.id: kept[i.id] for i in graph.instructions if i.id in kept}


def _is_kept(i: Instruction, answer: Callable[[Instruction], bool | Offload]) -> bool:
    return i.opcode == "parameter" or bool(answer(i))
