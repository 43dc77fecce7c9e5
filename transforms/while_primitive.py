"""The primitive behind `while_loop`, and its rules.

The flat inputs are the carries and the captures of the condition and of the body; each of the two
takes some of them. Forward mode loops over the pushforward of the body. The number of steps depends
on data, so nothing can be kept for a backward pass: reverse mode is refused if a gradient actually
flows through the loop.

NOTE [batched while]: if only the carry is batched, the loop runs over the batched body. If the
condition is batched too, it runs until no example wants another step, and examples that are done
keep their values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from xfunc.core.avals import Aval, array_of, batched
from xfunc.core.locations import Location
from xfunc.errors import UnsupportedOpError, fail
from xfunc.graph import build
from xfunc.graph.graph import Graph
from xfunc.graph.node import unattributed
from xfunc.program.bind import bind, or_zeros
from xfunc.program.custom_reverse_rule import CustomReverseRule
from xfunc.program.dependence import reached
from xfunc.program.primitive import Dims, Primitive, ReverseRule, Tensor
from xfunc.program.program import TracedProgram, differentiable
from xfunc.torchlib.batching import at_dim
from xfunc.trace.lowering import HloProgram


@dataclasses.dataclass(eq=False)
class While(Primitive):
    """The primitive; see `Primitive` for its methods.

    Attributes:
        cond: returns a boolean scalar.
        body: takes, among others, all the carries, and returns as many.
        cond_uses: the flat input that feeds each input of `cond`.
        body_uses: the flat input that feeds each input of `body`.
        avals: of the flat inputs, the carries first.
        at: the user's line, for errors.
    """

    cond: TracedProgram
    body: TracedProgram
    cond_uses: tuple[int, ...]
    body_uses: tuple[int, ...]
    avals: tuple[Aval, ...]
    at: Location | None

    @property
    def name(self) -> str:
        return f"while.{self.body.name}"

    @property
    def outputs(self) -> tuple[Aval, ...]:
        return self.body.outputs

    @property
    def has_rule(self) -> bool:
        return self.body.has_rule

    def with_fwd_rules(self, wrt: tuple[int, ...], forward_mode: bool) -> While:
        active = reached(self._reads, len(self.outputs), wrt)
        uses, avals = enumerate(self.body_uses), self.avals
        own = tuple(k for k, i in uses if i in active and differentiable(avals[i]))
        return dataclasses.replace(self, body=self.body.with_fwd_rules(own, forward_mode))

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        key = ("while", self.cond, self.cond_uses, self.body_uses, len(self.avals))
        return self.body.memo(key, self._lowering).apply(args)

    def _lowering(self) -> HloProgram:
        """One HLO ``While`` over the carries and everything that the two functions read."""
        c = len(self.outputs)
        test, step = self.cond.lowering, self.body.lowering
        types = [array_of(a) for a in self.avals]
        with unattributed():
            given = build.parameters(types)
            again = build.call(test.graph, [given[self.cond_uses[i]] for i in test.inputs])
            condition = Graph(f"{self.name}.cond", given, again)

            given = build.parameters(types)
            new = build.call(step.graph, [given[self.body_uses[i]] for i in step.inputs])
            body = Graph(f"{self.name}.body", given, [*new, *given[c:]])

            given = build.parameters(types)
            whole = Graph(self.name, given, build.while_(body, condition, given)[:c])
        return HloProgram.of(self.name, whole, self.avals, self.outputs)

    @property
    def _reads(self) -> list[set[int]]:
        """For each carry, the flat inputs that a step computes it from."""
        return [{self.body_uses[j] for j in r} for r in self.body.lowering.dependencies]

    # -- rules ----------------------------------------------------------------------------------

    def reverse_rule(self, wrt: tuple[bool, ...]) -> ReverseRule:
        marked = tuple(i for i, b in enumerate(wrt) if b)
        smooth = tuple(i for i, o in enumerate(self.outputs) if differentiable(o))
        return CustomReverseRule(self, marked, smooth, len(self.outputs))

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        fail(
            UnsupportedOpError,
            f"reverse mode cannot differentiate while_loop of {self.body.name}: its number of "
            "steps depends on data, so nothing bounds what the backward pass would have to keep",
            "use xf.scan, or xf.fori_loop with Python integers as bounds; or differentiate in "
            "forward mode (xf.jvp, xf.jacfwd); or stop the gradient with xf.stop_gradient.",
            at=self.at,
        )

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        c, avals, reads = len(self.outputs), self.avals, self._reads
        active = reached(reads, c, [i for i, t in enumerate(tangents) if t is not None])
        carried = [i for i in range(c) if differentiable(avals[i]) and i in active]
        consts = [
            i
            for i in range(c, len(avals))
            if differentiable(avals[i]) and tangents[i] is not None and i in self.body_uses
        ]
        # carries, their tangents; the other inputs, their tangents.
        shift, first = len(carried), len(carried) + len(avals)
        place = [i if i < c else i + shift for i in range(len(avals))]
        dot_place = {i: c + k for k, i in enumerate(carried)}
        dot_place |= {i: first + k for k, i in enumerate(consts)}
        own = tuple(p for p, i in enumerate(self.body_uses) if i in dot_place)
        push = self.body.pushforward(own)
        smooth = [i for i in range(c) if differentiable(avals[i])]

        def fn(*flat: Tensor) -> list[Tensor]:
            outs = push.fn(*flat)
            dots = zip(smooth, outs[c:], strict=True)
            return [*outs[:c], *(d for i, d in dots if i in active)]

        inner = dataclasses.replace(
            self,
            body=self.body.derive(("while jvp", c, own), push.name, fn, push.avals),
            cond_uses=tuple(place[i] for i in self.cond_uses),
            body_uses=(
                *(place[i] for i in self.body_uses),
                *(dot_place[self.body_uses[p]] for p in own),
            ),
            avals=(
                *avals[:c], *(avals[i] for i in carried), *avals[c:], *(avals[i] for i in consts)
            ),
        )  # fmt: skip
        dots = [or_zeros(tangents[i], args[i]) for i in carried]
        of_consts = [t for t in (tangents[i] for i in consts) if t is not None]
        outs = bind(inner, [*args[:c], *dots, *args[c:], *of_consts])
        out_dots = iter(outs[c:])
        return [next(out_dots) if i in carried else None for i in range(c)]

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        inner, placed, out_dims = self.mapped(dims, n)
        moved = [at_dim(a, d, p, n) for a, d, p in zip(args, dims, placed, strict=True)]
        return bind(inner, moved), list(out_dims)

    def mapped(self, dims: Dims, n: int) -> tuple[While, Dims, Dims]:
        """The loop of the batch, and the batch dimensions of its inputs and outputs."""
        carries, reads = range(len(self.outputs)), self._reads
        tested = {self.cond_uses[j] for j in self.cond.lowering.dependencies[0]}
        mapped = {i for i, d in enumerate(dims) if d is not None}
        while True:  # A carry is batched if it becomes so at any step.
            grown = mapped | {i for i in carries if reads[i] & mapped}
            if tested & grown:  # See NOTE [batched while].
                grown |= set(carries)
            if grown == mapped:
                break
            mapped = grown
        placed = tuple(0 if i in mapped else None for i in range(len(dims)))
        avals = batched(self.avals, placed, n)
        steps = self.body.batched(tuple(placed[i] for i in self.body_uses), n)
        if tested & mapped:
            test = self.cond.batched(tuple(placed[i] for i in self.cond_uses), n)
            return self._masked(test, steps, n, avals), placed, placed[: len(self.outputs)]
        kept = tuple(i in mapped for i in carries)

        def fn(*flat: Tensor) -> list[Tensor]:
            outs = steps.fn(*flat)
            return [o if keep else o[0] for o, keep in zip(outs, kept, strict=True)]

        body = self.body.derive(("while batched", steps, kept), steps.name, fn, steps.avals)
        inner = dataclasses.replace(self, body=body, avals=avals)
        return inner, placed, placed[: len(self.outputs)]

    def _masked(
        self, test: TracedProgram, steps: TracedProgram, n: int, avals: tuple[Aval, ...]
    ) -> While:
        """The loop over a batch: its examples may finish after different numbers of steps."""
        k = len(self.body_uses)
        at = [self.body_uses.index(i) for i in range(len(self.outputs))]

        def any_left(*flat: Tensor) -> list[Tensor]:
            return [test.fn(*flat)[0].any()]

        # The body, and the inputs of the condition.
        def step(*flat: Tensor) -> list[Tensor]:
            again, new = test.fn(*flat[k:])[0], steps.fn(*flat[:k])
            return [
                torch.where(again.reshape(n, *(1,) * (b.ndim - 1)), b, flat[p])
                for p, b in zip(at, new, strict=True)
            ]

        cond = self.cond.derive(("while any", test), test.name, any_left, test.avals)
        order = [*steps.avals, *test.avals]
        body = self.body.derive(("while masked", test, steps), steps.name, step, order)
        uses = (*self.body_uses, *self.cond_uses)
        return dataclasses.replace(self, cond=cond, body=body, body_uses=uses, avals=avals)
