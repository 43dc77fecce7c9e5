"""Cutting a joint program in two: a forward and a backward half.

The joint program is one HLO graph (`xfunc.remat.joint_graph`). A policy chooses which forward
values are kept for the backward half (`xfunc.remat.residuals`); they are its *residuals*. The
backward half receives anything else it needs as an input, or recomputes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, TypeVar

from xfunc.core.avals import Aval
from xfunc.hlo import Instruction
from xfunc.hlo.passes.absent import without
from xfunc.hlo.passes.common import extract, reachable
from xfunc.hlo.passes.offload import brought, sent
from xfunc.remat.joint_graph import joint_graph
from xfunc.remat.policies import Policy, everything_saveable
from xfunc.remat.residuals import choose
from xfunc.trace.lowering import Lowering

Source = tuple[Literal["input", "residual", "ct"], int]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class Halves:
    """A joint program cut in two.

    Attributes:
        forward: ``inputs -> (outputs, residuals)``.
        backward: computes the gradients; its flat inputs are listed in `sources`.
        sources: where each flat input of `backward` comes from.
        n_residuals: how many residuals there are.
        gradients: the gradients that `backward` computes, by their index in the joint program.
    """

    forward: Lowering
    backward: Lowering
    sources: tuple[Source, ...]
    n_residuals: int
    gradients: tuple[int, ...]

    def without(self, cts: Collection[int], gradients: Collection[int] | None = None) -> Halves:
        """What is left when some cotangents are absent; the forward half is unchanged.

        The gradients that are left are those in `gradients`, by default those that are not absent.

        An absent cotangent is not replaced by zeros: multiplied by infinity, they would give NaN.
        """
        absent = [n for n, (kind, k) in enumerate(self.sources) if kind == "ct" and k in cts]
        if not self.gradients:
            return self
        second = self.backward
        kept = None if gradients is None else [self.gradients.index(g) for g in gradients]
        module, left, results = without(second.module, absent, kept)
        avals = [second.avals[n] for n in left]
        outputs = [second.outputs[k] for k in results]
        backward = (
            Lowering.empty(second.name, avals)
            if module is None
            else Lowering.of(second.name, module, avals, outputs)
        )
        return dataclasses.replace(
            self,
            backward=backward,
            sources=tuple(self.sources[n] for n in left),
            gradients=tuple(self.gradients[k] for k in results),
        )


def gathered(
    sources: Iterable[Source], inputs: Sequence[T], residuals: Sequence[T], ct: Callable[[int], T]
) -> list[T]:
    """The flat inputs of a backward half, each with its source."""
    found: dict[str, Callable[[int], T]] = {
        "input": inputs.__getitem__,
        "residual": residuals.__getitem__,
        "ct": ct,
    }
    return [found[kind](k) for kind, k in sources]


def split(
    joint: Lowering,
    *,
    n_inputs: int,
    n_outputs: int,
    policy: Policy,
    unavailable: frozenset[int] = frozenset(),
    invariant: frozenset[int] = frozenset(),
    barrier: bool = False,
    steps: int = 1,
) -> Halves:
    """Cut a joint program.

    Args:
        joint: ``(inputs, cotangents) -> (outputs, gradients)``; constants count as inputs.
        n_inputs: how many of the flat inputs are not cotangents.
        n_outputs: how many of the results are outputs of the forward pass.
        policy: decides what is kept.
        unavailable: inputs that the backward pass does not receive.
        invariant: inputs that are the same at every step of a loop.
        barrier: put an optimisation barrier before the backward pass, so that XLA does not merge
            what is recomputed there with the forward pass.
        steps: how many steps the loop has: residuals of all steps are kept at once.
    """
    graph = joint_graph(
        joint,
        n_inputs=n_inputs,
        n_outputs=n_outputs,
        unavailable=unavailable,
        invariant=invariant,
        steps=steps,
        flat=policy is not everything_saveable,
    )
    n_avals, params, module = len(joint.avals), graph.params, graph.module
    outputs, gradients = graph.outputs, graph.gradients
    kept = choose(graph, policy)
    by_id = module.entry.by_id
    residuals = [by_id[k] for k in kept]
    forward_ids = reachable([*outputs, *residuals])
    forward_params = [p for p in params if p in forward_ids]
    backward_ids = reachable(gradients, stop=kept)
    backward_params = [p for p in params if p in backward_ids and p not in kept]

    name = joint.name
    results = [i.id for i in (*outputs, *residuals)]
    forward = extract(module, results, forward_params, name=f"{name}.forward")
    away = {k: w for k, w in enumerate(kept.values()) if w is not None}
    if away:
        forward = sent(forward, {n_outputs + k: w.dst for k, w in away.items()})
    first = Lowering.of(
        forward.name,
        forward,
        joint.avals[:n_inputs],
        (*joint.outputs[:n_outputs], *(_aval(r) for r in residuals)),
        [_skip_cts(params[p], n_inputs, n_avals) for p in forward_params],
    )
    sources: list[Source] = []
    for p in backward_params:
        k = params[p]
        if n_inputs <= k < n_avals:
            sources.append(("ct", k - n_inputs))
        else:
            sources.append(("input", _skip_cts(k, n_inputs, n_avals)))
    sources.extend(("residual", k) for k in range(len(residuals)))
    inputs = [*backward_params, *kept]
    avals = [_aval(by_id[i]) for i in inputs]
    second = Lowering.empty(f"{name}.backward", avals)
    if gradients:
        backward = extract(
            module,
            [g.id for g in gradients],
            inputs,
            name=f"{name}.backward",
            barrier=barrier,
        )
        if away:
            n = len(backward_params)
            backward = brought(backward, {n + k: w.src for k, w in away.items()})
        second = Lowering.of(second.name, backward, avals, joint.outputs[n_outputs:])
    return Halves(first, second, tuple(sources), len(residuals), tuple(range(len(gradients))))


def primal(joint: Lowering, *, n_inputs: int, n_outputs: int, name: str) -> Lowering:
    """The forward pass of a joint program alone."""
    entry = joint.module.entry
    outputs = entry.root.operands[:n_outputs]
    used = reachable(outputs)
    params = [p for p in entry.parameters if p.id in used]
    module = extract(joint.module, [o.id for o in outputs], [p.id for p in params], name=name)
    inputs = [
        _skip_cts(joint.inputs[p.parameter_number], n_inputs, len(joint.avals)) for p in params
    ]
    avals, outs = joint.avals[:n_inputs], joint.outputs[:n_outputs]
    return Lowering.of(name, module, avals, outs, inputs)


def _skip_cts(flat: int, n_inputs: int, n_avals: int) -> int:
    """The flat input's position when there are no cotangents; constants move up."""
    return flat if flat < n_inputs else flat - (n_avals - n_inputs)


def _aval(i: Instruction) -> Aval:
    return Aval(i.shape.dims, i.shape.dtype)
