"""The values of a joint program that a policy keeps for its backward pass.

Some values are never kept, whatever the policy says:

- inputs, which the backward pass receives anyway (unless the caller says that one is unavailable
  then: the carry of a scan, which each step overwrites);
- results of a reshape, transpose, broadcast, convert and the like, if the operand is no larger and
  is available or kept: recomputing them is free;
- likewise results of elementwise operations that the forward pass itself does not use: they are
  computed in the backward pass, the only place where they are needed;
- values that depend on nothing that varies: constants, and in a loop everything computed from
  values that are the same at every step. XLA hoists these out of the loop again;
- values that the backward pass would only tie a gradient to (`annotation.ShardGroup`): the tie is
  left out.

Others are always kept if they are needed, because they must not be recomputed: values that draw
from a state, communicate between devices, or have side effects.
"""

from __future__ import annotations

from xfunc.graph import opcodes
from xfunc.graph.node import Node, TupleType
from xfunc.remat.joint_graph import JointGraph
from xfunc.remat.policies import GraphPolicy, Offload, Policy

Kept = dict[Node, Offload | None]
"""Where each kept value is stored (None: it stays where it is)."""


def choose(graph: JointGraph, policy: Policy) -> Kept:
    """The values that the backward pass gets from the forward pass, in addition to the inputs."""
    chosen = policy.choose(graph) if isinstance(policy, GraphPolicy) else None
    place = policy.place if isinstance(policy, GraphPolicy) else None
    kept: Kept = {}
    needed = set(graph.gradients)

    def answer(n: Node) -> bool | Offload:
        if is_several(n):
            return False
        if chosen is not None:
            return n in chosen and (place or True)
        return policy(n)

    def is_missing(n: Node) -> bool:
        return n in graph.varies and n not in graph.available and n not in kept

    def is_free(n: Node) -> bool:
        """Whether recomputing costs nothing and keeps no more bytes than keeping it would."""
        if n.opcode not in opcodes.FREE and (
            n in graph.in_forward or n.opcode not in opcodes.ELEMENTWISE
        ):
            return False
        missing = [o for o in dict.fromkeys(n.operands) if is_missing(o)]
        if not all(o in graph.params or answer(o) for o in missing):
            return False  # Values that would themselves be recomputed do not help.
        return sum(o.bytes for o in missing) <= n.bytes

    # In reverse order of computation: a value is decided on once all its users have been.
    for n in reversed(graph.nodes):
        if n not in needed:
            continue
        if n in graph.backward:
            needed.update(n.operands)
            continue
        if n in graph.params:
            if n not in graph.available:
                found = answer(n)
                kept[n] = found if isinstance(found, Offload) else None
            continue
        if n in graph.must_save and not is_several(n):
            kept[n] = None
            continue
        found = answer(n) if n in graph.varies else False
        if found and not is_free(n):
            kept[n] = found if isinstance(found, Offload) else None
            continue
        needed.update(n.operands)
    return {n: kept[n] for n in graph.nodes if n in kept}


def is_several(n: Node) -> bool:
    """Whether a node has several results, which are its elements."""
    return isinstance(n.type, TupleType)
