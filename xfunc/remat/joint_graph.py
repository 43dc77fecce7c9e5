"""A joint program as a graph: which of its values are forward, and which the backward pass needs.

The entry of the joint module computes outputs and gradients from inputs and cotangents. Values that
do not depend on a cotangent are forward, the rest backward.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection

from xfunc.hlo import Instruction, Module, opcodes
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.contents import Contents
from xfunc.hlo.instances import holding
from xfunc.hlo.passes.common import reachable
from xfunc.hlo.passes.inline import inline_calls
from xfunc.hlo.passes.names import fold_names
from xfunc.hlo.passes.passed_on import skip_passed_on
from xfunc.hlo.passes.simplify import simplify
from xfunc.hlo.spmd.annotations import is_tie
from xfunc.hlo.spmd.groups import calls_automatic_tie, without_ties
from xfunc.trace.lowering import Lowering


@dataclasses.dataclass(frozen=True, eq=False)
class JointGraph:
    """A joint program, divided into forward and backward values.

    Attributes:
        module: the joint module.
        params: by the id of a parameter, its flat input (constants that the program holds come
            last).
        outputs: the results that are outputs of the forward pass.
        gradients: the other results.
        backward: ids of values that depend on a cotangent, cotangents included.
        varies: ids of values that differ between the steps of a loop.
        at_hand: ids of inputs that the backward pass receives anyway.
        steps: how often the program runs, each time with values to keep.
    """

    module: Module
    params: dict[int, int]
    outputs: tuple[Instruction, ...]
    gradients: tuple[Instruction, ...]
    backward: frozenset[int]
    varies: frozenset[int]
    at_hand: frozenset[int]
    steps: int

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """The instructions of the joint module's entry, operands before their users."""
        return self.module.entry.instructions

    @functools.cached_property
    def in_forward(self) -> set[int]:
        """Ids of the values that the outputs are computed from."""
        return reachable(self.outputs)

    @functools.cached_property
    def needed(self) -> tuple[Instruction, ...]:
        """The forward values that the backward pass uses directly, in order."""
        behind = reachable(
            self.gradients,
            stop=frozenset(i.id for i in self.instructions if i.id not in self.backward),
        )
        return tuple(i for i in self.instructions if i.id in behind and i.id not in self.backward)

    @functools.cached_property
    def once(self) -> set[int]:
        """Ids of forward values that must not be recomputed, and of the elements of such tuples.

        Ties may be recomputed: they only state how values are sharded.
        """
        calling = holding(Contents(self.module.proto), _runs_once)
        found: set[int] = set()
        for i in self.instructions:
            if i.opcode == "get-tuple-element":
                if i.operands[0].id in found:
                    found.add(i.id)
            elif _runs_once(i.proto) or any(c.id in calling for c in i.called_computations):
                found.add(i.id)
        return found


def joint_graph(
    joint: Lowering,
    *,
    n_inputs: int,
    n_outputs: int,
    unavailable: Collection[int] = (),
    invariant: Collection[int] = (),
    steps: int = 1,
    flat: bool = False,
) -> JointGraph:
    """The graph of a joint program.

    Args:
        joint: ``(inputs, cotangents) -> (outputs, gradients)``; constants count as inputs.
        n_inputs: how many of the flat inputs are not cotangents.
        n_outputs: how many of the results are outputs of the forward pass.
        unavailable: inputs that the backward pass does not receive.
        invariant: inputs that are the same at every step of a loop.
        steps: how many steps the loop has.
        flat: inline the functions that it calls, and simplify.
    """
    n_avals = len(joint.avals)

    whole = joint.module
    module = fold_names(simplify(inline_calls(whole))) if flat else skip_passed_on(whole)
    params: dict[int, int] = {}
    backward: set[int] = set()
    varies: set[int] = set()
    for i in module.entry.instructions:
        if i.opcode == "parameter":
            k = params[i.id] = joint.inputs[i.parameter_number]
            if n_inputs <= k < n_avals:
                backward.add(i.id)
            if k not in invariant and k < n_avals:
                varies.add(i.id)
        else:
            if any(o.id in backward for o in i.operands):
                backward.add(i.id)
            if any(o.id in varies for o in i.operands):
                varies.add(i.id)

    def is_for_a_tie(tie: Instruction) -> bool:
        """Whether the backward pass needs the value that a gradient is tied to only for the tie."""
        i = tie.operands[1]
        while i.opcode in opcodes.FREE and i.operands:
            (i,) = i.operands
        if tie.id not in backward or (i.id in params and params[i.id] not in unavailable):
            return False
        return not any(u.id in backward and not calls_automatic_tie(u) for u in i.users)

    module = without_ties(module, is_for_a_tie)
    results = module.entry.root.operands
    at_hand = {p for p, k in params.items() if k not in unavailable and p not in backward}
    return JointGraph(
        module,
        params,
        results[:n_outputs],
        results[n_outputs:],
        frozenset(backward),
        frozenset(varies),
        frozenset(at_hand),
        steps,
    )


def _runs_once(i: pb.HloInstructionProto) -> bool:
    return i.opcode in opcodes.ONCE or (i.custom_call_has_side_effect and not is_tie(i))
