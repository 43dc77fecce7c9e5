"""First-order reverse mode of a scan: two loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from xfunc.core.avals import Aval, array_of
from xfunc.program.annotation import ShardGroup
from xfunc.program.bind import or_zeros
from xfunc.program.primitive import Dims, ReverseRule, Tensor, scatter_to_inputs
from xfunc.program.program import Joint
from xfunc.remat.partition import Partition, Source, gathered
from xfunc.trace.lowering import HloProgram
from xfunc.transforms.scan.loop import forward_loop, stacked, tied
from xfunc.transforms.scan.loop_graph import LoopSpec, Param, Result, loop_graph

if TYPE_CHECKING:
    from xfunc.transforms.scan.primitive import Scan

Fed: TypeAlias = Literal["xs", "const"]
_FED: tuple[Fed, ...] = ("xs", "const")


@dataclasses.dataclass(eq=False)
class ScanReverseRule:
    """First-order reverse mode; see `ReverseRule`."""

    scan: Scan
    joint: Joint

    def __post_init__(self) -> None:
        self.wrt, self.cts = self.joint.wrt, self.joint.cts
        self.n_outputs = len(self.joint.outputs)

    @property
    def partition(self) -> Partition:
        """The body's joint program, cut in two."""
        # The carry of each step is gone by the backward pass; consts are the same at each step.
        c, x = self.scan.n_carry, self.scan.n_carry + self.scan.n_xs
        consts = frozenset(range(x, self.joint.n_inputs))
        # The steps of a fully unrolled loop are in one computation with the forward pass.
        barrier = self.scan.length <= self.scan.unroll
        return self.joint.split(
            self.scan.policy, frozenset(range(c)), consts, barrier, self.scan.length
        )

    def forward(self, args: Sequence[Tensor]) -> list[Tensor]:
        avals = self.joint.lowering.avals[: self.joint.n_inputs]
        loop = self.joint.memo(
            ("scan forward", self.scan.policy, *self.scan.shape),
            lambda: forward_loop(self.scan, avals, self.partition.forward),
        )
        return loop.apply(args)

    def backward(
        self, args: Sequence[Tensor], residuals: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        present = tuple(ct is not None for ct in cts)
        key = ("scan backward", self.scan.policy, present, *self.scan.shape)
        loop, sources, numbers, ties = self.joint.memo(key, lambda: self._backward_loop(present))

        def ct(i: int) -> Tensor:
            return or_zeros(cts[i], self.joint.outputs[i])

        grads = loop.apply(gathered(sources, args, residuals, ct))
        for k, i in ties:
            grads[k] = tied(grads[k], args[i], ShardGroup.emit)
        return list(scatter_to_inputs(len(self.wrt), numbers, grads))

    def _present(self, present: Sequence[bool]) -> tuple[Partition, list[int]]:
        """The partition without absent cotangents, and the carries that have a cotangent.

        A carry has one if it is given one, or if some step computes one: see
        `Partition.prune_cotangents`.
        """
        joint, c = self.joint, self.scan.n_carry
        carried = {i for i in joint.wrt if i < c and present[i]}
        while True:
            given = [(i in carried if i < c else p) or None for i, p in enumerate(present)]
            partition = joint.prune_cotangents(self.partition, given)
            found = {joint.wrt[g] for g in partition.gradients} - joint.unread
            if not (new := {i for i in found if i < c} - carried):
                break
            carried |= new
        # A cotangent that is given but computed by no step is zero after the first step.
        left = (g for g, i in enumerate(joint.wrt) if (i in carried if i < c else i in found))
        return joint.prune_cotangents(self.partition, given, tuple(left)), sorted(carried)

    def _backward_loop(
        self, present: tuple[bool, ...]
    ) -> tuple[HloProgram, list[Source], list[int], list[tuple[int, int]]]:
        """The reversed loop, the sources of its inputs, its gradients, and the ties after it.

        The gradients are positions in `wrt`. A tie is the number of a result and the argument that
        it is the gradient of.
        """
        scan, joint = self.scan, self.joint
        partition, carried = self._present(present)
        c, x = scan.n_carry, scan.n_carry + scan.n_xs
        sources: dict[str, list[Source]] = {
            "carry": [("ct", i) for i in carried],
            "xs": [],
            "const": [],
        }
        avals: dict[str, list[Aval]] = {
            "carry": [joint.outputs[i] for i in carried],
            "xs": [],
            "const": [],
        }

        def operand_for(role: Fed, source: Source, aval: Aval) -> Param:
            sources[role].append(source)
            avals[role].append(stacked(aval, scan.length) if role == "xs" else aval)
            return (role, len(sources[role]) - 1)

        params: list[Param] = []
        for (kind, k), aval in zip(partition.sources, partition.backward.avals, strict=True):
            if kind == "ct":
                i = joint.cts[k]
                params.append(
                    ("carry", carried.index(i)) if i < c else operand_for("xs", ("ct", i), aval)
                )
            elif kind == "input":
                params.append(operand_for("xs" if k < x else "const", (kind, k), aval))
            else:
                params.append(operand_for("xs", (kind, k), aval))
        results: list[Result] = []
        outputs: list[Aval] = []
        ties: list[Param | None] = []
        post_loop_ties: list[tuple[int, int]] = []
        carries = self._residual_carries()
        wrt = [joint.wrt[g] for g in partition.gradients]
        for k, (i, aval) in enumerate(zip(wrt, partition.backward.outputs, strict=True)):
            if i < c:
                results.append(("carry", carried.index(i)))
            else:
                results.append(("ys", None) if i < x else ("sum", None))
            outputs.append(stacked(aval, scan.length) if c <= i < x else aval)
            # See NOTE [gradients are sharded like their values].
            source = carries.get(i, ("input", i))
            role: Fed | None = next((r for r in _FED if source in sources[r]), None)
            same = (
                joint.lowering.avals[i].shape == aval.shape
            )  # Under vmap, gradients are per example.
            ties.append((role, sources[role].index(source)) if role and same else None)
            if same and role is None:
                post_loop_ties.append((k, i))
        spec = LoopSpec(
            tuple(params),
            tuple(results),
            tuple(map(array_of, avals["carry"])),
            tuple(map(array_of, avals["xs"])),
            tuple(map(array_of, avals["const"])),
            scan.length,
            not scan.reverse,
            scan.unroll,
            tuple(ties),
        )
        flat = [*avals["carry"], *avals["xs"], *avals["const"]]
        name = f"{scan.name}.backward"
        if not outputs:
            return HloProgram.empty(name, flat), [], [], []
        graph = loop_graph(name, partition.backward.graph, spec)
        loop = HloProgram.of(name, graph, flat, outputs)
        flat_sources = [*sources["carry"], *sources["xs"], *sources["const"]]
        return loop, flat_sources, [*partition.gradients], post_loop_ties

    def _residual_carries(self) -> dict[int, Source]:
        """The carries that are themselves residuals, and which residual each one is."""
        forward = self.partition.forward
        graph = forward.graph
        places = dict(zip(graph.inputs, forward.inputs, strict=True))
        results = enumerate(graph.outputs[self.n_outputs :])
        return {places[n]: ("residual", k) for k, n in results if n in places}

    def batched(self, dims: Dims, n: int) -> tuple[ReverseRule, Dims, Dims, Dims]:
        c, x = self.scan.n_carry, self.scan.n_carry + self.scan.n_xs
        step = tuple(0 if i < c or d is not None else None for i, d in enumerate(dims))
        inner = ScanReverseRule(self.scan, self.joint.batched(step, n))

        def at(i: int) -> int:
            return 1 if c <= i < x else 0

        arg_dims = tuple(None if d is None else at(i) for i, d in enumerate(step))
        out_dims = tuple(0 if i < c else 1 for i in range(self.n_outputs))
        return inner, arg_dims, out_dims, tuple(at(i) for i in self.wrt)
