"""The primitive behind `cond` and `switch`, and its rules.

The flat inputs are an int32 index, then the operands and the captures of all branches; each branch
takes some of them. Derived switches choose between programs derived from the branches: forward
mode between pushforwards, batching between batched branches. If the index itself is batched, all
branches are computed and each example selects its result: see `select_primitive`.

NOTE [residuals of a switch]: in first-order reverse mode each branch keeps its own residuals. The
results of a conditional have one type, so a switch returns *slots*: branches share a slot for
residuals of the same shape and dtype, and slots that a branch does not use are zeros.

NOTE [branches that communicate]: in a branch that calls a collective of a `vmap` with a named axis,
the examples that take it have gradients with respect to those that do not. So the cotangents are
selected by example, and the gradients of all branches are added. Elsewhere the gradients are
selected: see NOTE [selected derivatives] in `select_primitive`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from xfunc.core.avals import Aval, batched
from xfunc.program.bind import bind, zeros
from xfunc.program.call import Call, CallReverseRule
from xfunc.program.dependence import where_reached
from xfunc.program.named_axes import ONE_EXAMPLE
from xfunc.program.primitive import Dims, Primitive, ReverseRule, Tensor, scatter_to_inputs
from xfunc.program.program import Joint, TracedProgram, differentiable
from xfunc.remat.partition import gathered
from xfunc.remat.policies import everything_saveable
from xfunc.trace.lowering import HloProgram
from xfunc.transforms.conditional import Branch, conditional
from xfunc.transforms.select_primitive import SelectReverseRule, mapped, masked, reads, select

Uses = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(eq=False)
class Switch(Primitive):
    """The primitive; see `Primitive` for its methods.

    Attributes:
        branches: the programs; their outputs agree.
        uses: for each branch, the flat input that feeds each of its inputs.
        avals: of the flat inputs; the first is the index.
    """

    branches: tuple[TracedProgram, ...]
    uses: Uses
    avals: tuple[Aval, ...]

    @property
    def name(self) -> str:
        return "switch." + ".".join(b.name for b in self.branches)

    @property
    def outputs(self) -> tuple[Aval, ...]:
        return self.branches[0].outputs

    @property
    def has_rule(self) -> bool:
        return any(b.has_rule for b in self.branches)

    def with_fwd_rules(self, wrt: tuple[int, ...], forward_mode: bool) -> Switch:
        branches = tuple(
            b.with_fwd_rules(tuple(k for k, i in enumerate(u) if i in wrt), forward_mode)
            for b, u in zip(self.branches, self.uses, strict=True)
        )
        return dataclasses.replace(self, branches=branches)

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        def make() -> HloProgram:
            own = tuple(range(len(self.outputs)))
            pairs = zip(self.branches, self.uses, strict=True)
            branches = [Branch(b.lowering, u, own) for b, u in pairs]
            return conditional(self.name, self.avals, self.outputs, branches)

        key = ("switch", self.branches[1:], self.uses, len(self.avals))
        return self.branches[0].memo(key, make).apply(args)

    def reverse_rule(self, wrt: tuple[bool, ...]) -> SwitchReverseRule:
        joints = tuple(
            b.joint(tuple(wrt[i] for i in u)) for b, u in zip(self.branches, self.uses, strict=True)
        )
        return SwitchReverseRule(self.name, joints, self.uses, self.avals)

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor | None]:
        present = tuple(i for i, c in enumerate(cts) if c is not None)
        if any(map(_communicates, self.branches)):
            return self._vjp_of_all(args, cts, wrt, present)
        inner = self.pullbacks(wrt, present)
        grads = bind(inner, [*args, *(c for c in cts if c is not None)])
        return where_reached(grads, inner.reads, range(len(self.avals), len(inner.avals)))

    def pullbacks(self, wrt: tuple[int, ...], present: tuple[int, ...]) -> Switch:
        """``(*inputs, *cotangents of the outputs in present) -> gradients of those in wrt``."""
        n = len(self.avals)
        derived, uses = list[TracedProgram](), list[tuple[int, ...]]()
        for b, u in zip(self.branches, self.uses, strict=True):
            derived.append(_pullback(b, u, wrt, present, self.avals))
            uses.append((*u, *range(n, n + len(present))))
        avals = (*self.avals, *(self.outputs[i] for i in present))
        return Switch(tuple(derived), tuple(uses), avals)

    def _vjp_of_all(
        self,
        args: Sequence[Tensor],
        cts: Sequence[Tensor | None],
        wrt: tuple[int, ...],
        present: tuple[int, ...],
    ) -> list[Tensor | None]:
        """See NOTE [branches that communicate]."""
        total = list[Tensor]()
        for k, (b, u) in enumerate(zip(self.branches, self.uses, strict=True)):
            own = [c for c in masked(args[0], k, cts) if c is not None]
            pullback = Call(_pullback(b, u, wrt, present, self.avals))
            grads = bind(pullback, [*(args[i] for i in u), *own])
            total = [a + b for a, b in zip(total, grads, strict=True)] if total else grads
        return [*total]

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        wrt = self.pushed(tangents)
        inner = self.pushforwards(wrt)
        outs = bind(inner, [*args, *(t for t in (tangents[i] for i in wrt) if t is not None)])
        return self.tangents_of(outs, inner.reads, len(wrt))

    def pushed(self, tangents: Sequence[Tensor | None]) -> tuple[int, ...]:
        """The flat inputs that have a tangent."""
        return tuple(
            i for i, t in enumerate(tangents) if t is not None and differentiable(self.avals[i])
        )

    def pushforwards(self, wrt: tuple[int, ...]) -> Switch:
        """``(*inputs, *tangents of those in wrt) -> (*outputs, *tangents of float outputs)``."""
        n = len(self.avals)
        place = {i: n + k for k, i in enumerate(wrt)}
        derived, uses = list[TracedProgram](), list[tuple[int, ...]]()
        for b, u in zip(self.branches, self.uses, strict=True):
            own = tuple(k for k, i in enumerate(u) if i in place)
            derived.append(b.pushforward(own))
            uses.append((*u, *(place[u[k]] for k in own)))
        return Switch(tuple(derived), tuple(uses), (*self.avals, *(self.avals[i] for i in wrt)))

    def tangents_of(
        self, outs: Sequence[Tensor], reads: Sequence[set[int]], n_given: int
    ) -> list[Tensor | None]:
        """Tangents of the outputs, from the results of `pushforwards` of `n_given` tangents."""
        n = len(self.avals)
        dots = iter(where_reached(outs, reads, range(n, n + n_given))[len(self.outputs) :])
        return [next(dots) if differentiable(o) else None for o in self.outputs]

    @property
    def reads(self) -> list[set[int]]:
        """For each output, the flat inputs that any branch computes it from."""
        return reads(self.branches, self.uses)

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        if dims[0] is not None and not any(map(_communicates, self.branches)):
            inner, moved = mapped(self, (), dims, n, args)
            outs = bind(inner, moved)
            return outs, [0] * len(outs)
        derived = tuple(
            b.batched(tuple(dims[i] for i in u), n)
            for b, u in zip(self.branches, self.uses, strict=True)
        )
        if dims[0] is None:
            outs = bind(Switch(derived, self.uses, batched(self.avals, dims, n)), args)
        else:
            found = [
                bind(Call(b), [args[i] for i in u]) for b, u in zip(derived, self.uses, strict=True)
            ]
            outs = select(args[0], found)
        return outs, [0] * len(outs)


def _pullback(
    branch: TracedProgram,
    uses: tuple[int, ...],
    wrt: tuple[int, ...],
    present: tuple[int, ...],
    avals: tuple[Aval, ...],
) -> TracedProgram:
    """Gradients with respect to the flat inputs in `wrt`: zeros for those it does not take."""
    own = tuple(uses.index(i) for i in wrt if i in uses)
    missing = tuple((k, avals[i]) for k, i in enumerate(wrt) if i not in uses)

    def fn(*flat: Tensor) -> list[Tensor]:
        grads = iter(branch.pullback(own, present).fn(*flat) if own else ())
        return [next(grads) if i in uses else zeros(avals[i]) for i in wrt]

    key = ("switch vjp", own, present, missing)
    cts = [branch.outputs[i] for i in present]
    return branch.derive(key, f"pullback of {branch.name}", fn, [*branch.avals, *cts])


def _communicates(branch: TracedProgram) -> bool:
    """See NOTE [branches that communicate]."""

    def find() -> bool:
        computations = branch.lowering.module.proto.computations
        return any(
            i.custom_call_target == ONE_EXAMPLE for c in computations for i in c.instructions
        )

    return branch.memo("communicates", find)


@dataclasses.dataclass(eq=False)
class SwitchReverseRule:
    """First-order reverse mode: see `ReverseRule` and NOTE [residuals of a switch]."""

    name: str
    joints: tuple[Joint, ...]
    uses: Uses
    avals: tuple[Aval, ...]

    def __post_init__(self) -> None:
        self.wrt = _union(
            [u[i] for i in j.wrt] for j, u in zip(self.joints, self.uses, strict=True)
        )
        self.cts = _union(j.cts for j in self.joints)
        self.n_outputs = len(self.joints[0].outputs)
        self._partition = [j.split(everything_saveable) for j in self.joints]
        self._slots: list[Aval] = []
        self._slots_of: list[tuple[int, ...]] = []
        for h in self._partition:
            free = list(enumerate(self._slots))
            mine: list[int] = []
            for aval in h.forward.outputs[self.n_outputs :]:
                slot = next((s for s in free if s[1] == aval), None)
                if slot is None:
                    slot = (len(self._slots), aval)
                    self._slots.append(aval)
                else:
                    free.remove(slot)
                mine.append(slot[0])
            self._slots_of.append(tuple(mine))
        self._key = (self.name, self.joints[1:], self.uses, len(self.avals))

    def forward(self, args: Sequence[Tensor]) -> list[Tensor]:
        def make() -> HloProgram:
            branches: list[Branch] = []
            for h, u, slots in zip(self._partition, self.uses, self._slots_of, strict=True):
                at = {s: self.n_outputs + k for k, s in enumerate(slots)}
                kept = (at.get(s) for s in range(len(self._slots)))
                branches.append(Branch(h.forward, u, (*range(self.n_outputs), *kept)))
            outputs = (*self.joints[0].outputs, *self._slots)
            return conditional(f"{self.name}.forward", self.avals, outputs, branches)

        return self.joints[0].memo(("switch forward", *self._key), make).apply(args)

    def backward(
        self, args: Sequence[Tensor], residuals: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        given = [c for i in self.cts if (c := cts[i]) is not None]
        present = tuple(i for i in self.cts if cts[i] is not None)
        key = ("switch backward", present, *self._key)
        loop, wrt = self.joints[0].memo(key, lambda: self._backward(cts, present))
        grads = loop.apply([*args, *residuals, *given])
        return list(scatter_to_inputs(len(self.wrt), wrt, grads))

    def _backward(
        self, given: Sequence[Tensor | None], present: tuple[int, ...]
    ) -> tuple[HloProgram, list[int]]:
        """The choice between backward halves, and the positions in `wrt` of its gradients."""
        n, n_slots = len(self.avals), len(self._slots)
        outputs = self.joints[0].outputs
        first_ct = n + n_slots
        avals = [*self.avals, *self._slots, *(outputs[i] for i in present)]
        partition = [
            j.prune_cotangents(h, given) for j, h in zip(self.joints, self._partition, strict=True)
        ]
        results = [
            {u[j.wrt[g]]: k for k, g in enumerate(h.gradients)}
            for j, h, u in zip(self.joints, partition, self.uses, strict=True)
        ]
        found = [k for k, i in enumerate(self.wrt) if any(i in own for own in results)]
        wrt = [self.wrt[k] for k in found]
        branches: list[Branch] = []
        for j, h, u, slots, own in zip(
            self.joints, partition, self.uses, self._slots_of, results, strict=True
        ):
            place = {i: first_ct + k for k, i in enumerate(present)}
            cts = [place.get(i, -1) for i in j.cts]
            residuals = [n + s for s in slots]
            inputs = gathered(h.sources, u, residuals, cts.__getitem__)
            branches.append(Branch(h.backward, tuple(inputs), tuple(own.get(i) for i in wrt)))
        gradients = [self.avals[i] for i in wrt]
        return conditional(f"{self.name}.backward", avals, gradients, branches), found

    def batched(self, dims: Dims, n: int) -> tuple[ReverseRule, Dims, Dims, Dims]:
        out_dims, grad_dims = (0,) * self.n_outputs, (0,) * len(self.wrt)
        own = [tuple(dims[i] for i in u) for u in self.uses]
        joints = tuple(j.batched(d, n) for j, d in zip(self.joints, own, strict=True))
        if dims[0] is None:
            avals = batched(self.avals, dims, n)
            inner: ReverseRule = SwitchReverseRule(self.name, joints, self.uses, avals)
        else:
            rules = tuple(CallReverseRule(j, everything_saveable, False) for j in joints)
            joined = any(_communicates(j.source) for j in self.joints)
            sums = tuple(() for _ in self.wrt)
            inner = SelectReverseRule(
                rules, self.uses, self.wrt, self.cts, self.n_outputs, joined, sums
            )
        return inner, dims, out_dims, grad_dims


def _union(groups: Iterable[Iterable[int]]) -> tuple[int, ...]:
    return tuple(sorted({i for group in groups for i in group}))
