"""Cutting a joint program in two: what the forward pass keeps for the backward pass.

The joint program is one HLO graph. Nodes that no cotangent reaches are forward, the rest backward;
a forward value that a backward node (or a gradient) uses must either be kept (a *residual*) or be
computed again. A `Policy` decides, instruction by instruction.

Some values are never kept, whatever the policy says:

- inputs, which the backward pass receives anyway (unless the caller says that one is unavailable
  then: the carry of a scan, whose value at each step is gone);
- what a reshape, transpose, broadcast, convert and the like makes of something no larger that is
  at hand: recomputing it is free;
- likewise what an elementwise operation makes, if the forward pass itself has no use for it: it is
  computed in the backward pass, the one place where it is needed;
- what depends on nothing that varies: constants, and in a loop whatever is computed from values
  that are the same at every step. XLA hoists it out of the loop again;
- what the backward pass only ties a gradient to (`annotation.Tie`): such a tie is left out if the
  value is not an input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

from xfunc.avals import Aval
from xfunc.hlo import Instruction, extract
from xfunc.hlo.groups import without_ties
from xfunc.lowering import Lowering, with_parameter

Policy = Callable[[Instruction], bool]
"""Whether a forward value may be kept for the backward pass."""


def everything_saveable(instruction: Instruction) -> bool:
    """Keep every forward value that the backward pass uses: nothing is computed twice."""
    del instruction
    return True


def nothing_saveable(instruction: Instruction) -> bool:
    """Keep only the inputs: the backward pass runs the forward pass again."""
    del instruction
    return False


Source = tuple[Literal["input", "residual", "ct"], int]


@dataclasses.dataclass(frozen=True, eq=False)
class Halves:
    """A joint program cut in two.

    Attributes:
        forward: ``inputs -> (outputs, residuals)``.
        backward: computes the gradients; its flat inputs are listed in `sources`.
        sources: where each flat input of `backward` comes from.
        n_residuals: how many residuals there are.
    """

    forward: Lowering
    backward: Lowering
    sources: tuple[Source, ...]
    n_residuals: int


_FREE = frozenset(
    "reshape transpose broadcast convert bitcast bitcast-convert iota constant".split()
)
_ELEMENTWISE = frozenset(
    "abs add and atan2 cbrt ceil clamp compare complex cosine divide erf exponential "
    "exponential-minus-one floor imag is-finite log log-plus-one logistic maximum minimum multiply "
    "negate not or power real remainder round-nearest-afz round-nearest-even rsqrt select "
    "shift-left shift-right-arithmetic shift-right-logical sign sine sqrt subtract tan tanh "
    "xor".split()
)


def split(
    joint: Lowering,
    *,
    n_inputs: int,
    n_outputs: int,
    policy: Policy,
    unavailable: frozenset[int] = frozenset(),
    invariant: frozenset[int] = frozenset(),
    barrier: bool = False,
) -> Halves:
    """Cut a joint program.

    Args:
        joint: ``(inputs, cotangents) -> (outputs, gradients)``; constants count as inputs.
        n_inputs: how many of the flat inputs are not cotangents.
        n_outputs: how many of the results are outputs of the forward pass.
        policy: says what may be kept.
        unavailable: inputs that the backward pass does not receive.
        invariant: inputs that are the same at every step of a loop.
        barrier: put an optimisation barrier before the backward pass, so that XLA does not merge
            what is recomputed there with the forward pass.
    """
    n_avals = len(joint.avals)

    def is_ct(flat: int) -> bool:
        return n_inputs <= flat < n_avals

    def is_no_input(i: Instruction) -> bool:
        while i.opcode in _FREE and i.operands:
            (i,) = i.operands
        return i.opcode != "parameter" or joint.inputs[i.parameter_number] in unavailable

    module = without_ties(joint.module, is_no_input)
    entry = module.entry
    results = entry.root.operands
    outputs, gradients = results[:n_outputs], results[n_outputs:]

    params: dict[int, int] = {}  # instruction id -> flat input
    of_ct: set[int] = set()
    varies: set[int] = set()
    for i in entry.instructions:
        if i.opcode == "parameter":
            flat = params[i.id] = joint.inputs[i.parameter_number]
            if is_ct(flat):
                of_ct.add(i.id)
            if flat not in invariant and flat < n_avals:
                varies.add(i.id)
        else:
            if any(o.id in of_ct for o in i.operands):
                of_ct.add(i.id)
            if any(o.id in varies for o in i.operands):
                varies.add(i.id)

    of_forward = _reachable(outputs, stop=frozenset())

    # What the backward pass needs of the forward pass, in reverse order of computation: a value
    # is decided on once all its users have been.
    needed = {g.id for g in gradients}
    kept: dict[int, Instruction] = {}
    at_hand = {p for p, flat in params.items() if flat not in unavailable and not is_ct(flat)}

    def is_missing(i: Instruction) -> bool:
        return i.id in varies and i.id not in at_hand and i.id not in kept

    for i in reversed(entry.instructions):
        if i.id not in needed:
            continue
        if i.id not in of_ct:
            if i.opcode == "parameter":
                if i.id not in at_hand:
                    kept[i.id] = i
                continue
            if (
                i.id in varies
                and not i.shape.is_tuple
                and policy(i)
                and not _is_free(i, is_missing, i.id in of_forward)
            ):
                kept[i.id] = i
                continue
        needed.update(o.id for o in i.operands)

    residuals = [kept[k] for k in sorted(kept, key=_order(entry.instructions))]
    forward_ids = _reachable([*outputs, *residuals], stop=frozenset())
    forward_params = [p for p in params if p in forward_ids]
    backward_ids = _reachable(gradients, stop=frozenset(kept))
    backward_params = [p for p in params if p in backward_ids and p not in kept]

    name = joint.name
    forward = Lowering(
        f"{name}.forward",
        extract(
            module,
            [i.id for i in (*outputs, *residuals)],
            forward_params,
            name=f"{name}.forward",
        ).to_bytes(),
        tuple(_skip_cts(params[p], n_inputs, n_avals) for p in forward_params),
        joint.avals[:n_inputs],
        joint.consts,
        (*joint.outputs[:n_outputs], *(_aval(r) for r in residuals)),
    )
    sources: list[Source] = []
    for p in backward_params:
        flat = params[p]
        if is_ct(flat):
            sources.append(("ct", flat - n_inputs))
        else:
            sources.append(("input", _skip_cts(flat, n_inputs, n_avals)))
    for k in range(len(residuals)):
        sources.append(("residual", k))
    backward_inputs = [*backward_params, *(r.id for r in residuals)]
    by_id = {i.id: i for i in entry.instructions}
    backward = Lowering(
        f"{name}.backward",
        extract(
            module,
            [g.id for g in gradients],
            backward_inputs,
            name=f"{name}.backward",
            barrier=barrier,
        ).to_bytes()
        if gradients
        else b"",
        tuple(range(len(backward_inputs))),
        tuple(_aval(by_id[i]) for i in backward_inputs),
        (),
        joint.outputs[n_outputs:],
    )
    halves = with_parameter(forward), with_parameter(backward)
    return Halves(*halves, tuple(sources), len(residuals))


def primal(joint: Lowering, *, n_inputs: int, n_outputs: int, name: str) -> Lowering:
    """The forward pass of a joint program alone."""
    entry = joint.module.entry
    outputs = entry.root.operands[:n_outputs]
    used = _reachable(outputs, stop=frozenset())
    params = [p for p in entry.parameters if p.id in used]
    module = extract(joint.module, [o.id for o in outputs], [p.id for p in params], name=name)
    inputs = tuple(
        _skip_cts(joint.inputs[p.parameter_number], n_inputs, len(joint.avals)) for p in params
    )
    outs = joint.outputs[:n_outputs]
    avals = joint.avals[:n_inputs]
    return with_parameter(Lowering(name, module.to_bytes(), inputs, avals, joint.consts, outs))


def _skip_cts(flat: int, n_inputs: int, n_avals: int) -> int:
    """The flat input's position when there are no cotangents; constants move up."""
    return flat if flat < n_inputs else flat - (n_avals - n_inputs)


def _is_free(i: Instruction, is_missing: Callable[[Instruction], bool], in_forward: bool) -> bool:
    """Whether recomputing `i` costs nothing and keeps no more bytes than keeping `i` would.

    `is_missing` tells of a value whether it would have to be kept to be there.
    """
    if i.opcode not in _FREE and (in_forward or i.opcode not in _ELEMENTWISE):
        return False
    return sum({o.id: o.bytes for o in i.operands if is_missing(o)}.values()) <= i.bytes


def _order(instructions: Sequence[Instruction]) -> Callable[[int], int]:
    position = {i.id: k for k, i in enumerate(instructions)}
    return position.__getitem__


def _reachable(roots: Sequence[Instruction], stop: frozenset[int]) -> set[int]:
    """Ids of what the roots are computed from, not looking behind those in `stop`."""
    found: set[int] = set()
    todo = list(roots)
    while todo:
        i = todo.pop()
        if i.id in found:
            continue
        found.add(i.id)
        if i.id not in stop:
            todo.extend(i.operands)
    return found


def _aval(i: Instruction) -> Aval:
    return Aval(i.shape.dims, i.shape.dtype)
