"""Cutting a joint program in two: a forward and a backward half.

The joint program is one HLO graph (`xfunc.remat.joint_graph`). A policy chooses which forward
values are kept for the backward half (`xfunc.remat.residuals`); they are its *residuals*. The
backward half receives anything else it needs as an input, or recomputes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

from xfunc.core.avals import Aval
from xfunc.graph import build
from xfunc.graph.graph import Graph
from xfunc.graph.node import Node
from xfunc.graph.symbolic_zeros import prune_inputs
from xfunc.hlo.flat import inlined
from xfunc.hlo.passes.offload import place
from xfunc.remat.joint_graph import joint_graph
from xfunc.remat.policies import Offload, Policy, everything_saveable
from xfunc.remat.residuals import choose
from xfunc.trace.lowering import HloProgram

Source = tuple[Literal["input", "residual", "ct"], int]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """A joint program cut in two.

    Attributes:
        forward: ``inputs -> (outputs, residuals)``.
        backward: computes the gradients; its flat inputs are listed in `sources`.
        sources: where each flat input of `backward` comes from.
        n_residuals: how many residuals there are.
        gradients: the gradients that `backward` computes, by their index in the joint program.
    """

    forward: HloProgram
    backward: HloProgram
    sources: tuple[Source, ...]
    n_residuals: int
    gradients: tuple[int, ...]

    def prune_cotangents(
        self, cts: Collection[int], gradients: Collection[int] | None = None
    ) -> Partition:
        """The partition without absent cotangents; the forward half is unchanged.

        It computes the given `gradients`, by default those that are not absent.

        An absent cotangent is not replaced by zeros: multiplied by infinity, they would give NaN.
        """
        absent = [n for n, (kind, k) in enumerate(self.sources) if kind == "ct" and k in cts]
        if not self.gradients:
            return self
        second = self.backward
        kept = None if gradients is None else [self.gradients.index(g) for g in gradients]
        graph, left, results = prune_inputs(inlined(second.graph), absent, kept)
        avals = [second.avals[n] for n in left]
        outputs = [second.outputs[k] for k in results]
        return dataclasses.replace(
            self,
            backward=HloProgram.of(second.name, graph, avals, outputs),
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
    joint: HloProgram,
    *,
    n_inputs: int,
    n_outputs: int,
    policy: Policy,
    unavailable: frozenset[int] = frozenset(),
    invariant: frozenset[int] = frozenset(),
    barrier: bool = False,
    steps: int = 1,
) -> Partition:
    """Cut a joint program.

    Args:
        joint: ``(inputs, cotangents) -> (outputs, gradients)``.
        n_inputs: how many of the flat inputs are not cotangents.
        n_outputs: how many of the results are outputs of the forward pass.
        policy: chooses the residuals.
        unavailable: inputs that the backward pass does not receive.
        invariant: inputs that are the same at every step of a loop.
        barrier: put an optimisation barrier before the backward pass, so that XLA does not merge
            recomputed values with the forward pass.
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
    params, outputs, gradients = graph.params, graph.outputs, graph.gradients
    kept = choose(graph, policy)
    residuals, name = [*kept], joint.name

    away = {n: w for n, w in kept.items() if w is not None}
    stored = [place(n, away[n].dst) if n in away else n for n in residuals]
    first, taken = Graph.between(f"{name}.forward", [*params], [*outputs, *stored])
    forward = HloProgram.of(
        first.name,
        first,
        joint.avals[:n_inputs],
        (*joint.outputs[:n_outputs], *map(_aval, residuals)),
        [joint.inputs[k] for k in taken],
    )
    others = [n for n in params if n not in kept]
    second, taken = Graph.between(f"{name}.backward", [*others, *residuals], gradients)
    read = [others[k] for k in taken if k < len(others)]
    second = Graph(second.name, [*read, *residuals], gradients)
    if away or (barrier and second.inputs):
        second = _after_barrier(second, away, barrier)
    sources: list[Source] = []
    for n in read:
        k = params[n]
        sources.append(("ct", k - n_inputs) if k >= n_inputs else ("input", k))
    sources.extend(("residual", k) for k in range(len(residuals)))
    avals = map(_aval, [*read, *residuals])
    backward = HloProgram.of(second.name, second, [*avals], joint.outputs[n_outputs:])
    return Partition(
        forward, backward, tuple(sources), len(residuals), tuple(range(len(gradients)))
    )


def _after_barrier(graph: Graph, away: Mapping[Node, Offload], barrier: bool) -> Graph:
    """The graph with its inputs behind a barrier, or moved back from where they are kept."""
    inputs = [_fresh(n) for n in graph.inputs]
    given = inputs
    if barrier:
        given = build.several("opt-barrier", [n.type for n in inputs], tuple(inputs))
    pairs = zip(graph.inputs, given, strict=True)
    brought = [place(new, away[n].src) if n in away else new for n, new in pairs]
    outputs, effects = graph.applied(brought)
    return Graph(graph.name, inputs, outputs, effects)


def _fresh(n: Node) -> Node:
    result = Node("parameter", n.type, more=n.more if n.opcode == "parameter" else b"")
    result.operation = n.operation
    return result


def primal(joint: HloProgram, *, n_inputs: int, n_outputs: int, name: str) -> HloProgram:
    """The forward pass of a joint program alone."""
    graph = joint.graph
    made, taken = Graph.between(name, graph.inputs, graph.outputs[:n_outputs])
    inputs = [joint.inputs[k] for k in taken]
    return HloProgram.of(name, made, joint.avals[:n_inputs], joint.outputs[:n_outputs], inputs)


def _aval(n: Node) -> Aval:
    return Aval(n.dims, n.dtype)
