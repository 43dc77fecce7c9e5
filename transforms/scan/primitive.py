"""The primitive behind `scan`, and its rules.

A scan is one HLO ``While`` over the program of its body. Its rules build other scans, from
programs derived from the body:

- reverse mode runs the forward half of the body's joint program forwards, stacking its residuals,
  and the backward half in reverse (`ScanReverseRule`); where that is differentiated again, a scan
  that stacks the carries and a reversed scan of the pullback, both differentiable (`Scan.vjp`);
- forward mode scans the pushforward, and batching scans the batched body.

A residual that is an element of `xs` is read from `xs` again, and one that depends on constants
only is recomputed: neither is stacked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from xfunc.core.avals import Aval
from xfunc.program.bind import bind, or_zeros, zeros
from xfunc.program.dependence import reached, read_by
from xfunc.program.primitive import Dims, Primitive, Tensor
from xfunc.program.program import TracedProgram, differentiable
from xfunc.remat.policies import Policy
from xfunc.torchlib.batching import at_dim
from xfunc.transforms.scan.loop import forward_loop, stacked, tied
from xfunc.transforms.scan.reverse_rule import ScanReverseRule


@dataclasses.dataclass(eq=False)
class Scan(Primitive):
    """The primitive: inputs are carries, xs, and the captures of the body."""

    body: TracedProgram
    n_carry: int
    n_xs: int
    length: int
    reverse: bool
    unroll: int
    policy: Policy

    @property
    def name(self) -> str:
        return f"scan.{self.body.name}"

    @property
    def outputs(self) -> tuple[Aval, ...]:
        outs, n = self.body.outputs, self.n_carry
        return (*outs[:n], *(stacked(o, self.length) for o in outs[n:]))

    def with_body(self, body: TracedProgram, n_carry: int, n_xs: int) -> Scan:
        return dataclasses.replace(self, body=body, n_carry=n_carry, n_xs=n_xs)

    @property
    def has_rule(self) -> bool:
        return self.body.has_rule

    def with_fwd_rules(self, wrt: tuple[int, ...], forward_mode: bool) -> Scan:
        active = reached(self.body.lowering.dependencies, self.n_carry, wrt)
        own = tuple(i for i, a in enumerate(self.body.avals) if differentiable(a) and i in active)
        return dataclasses.replace(self, body=self.body.with_fwd_rules(own, forward_mode))

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        loop = self.body.memo(
            ("scan", *self.shape), lambda: forward_loop(self, self.body.avals, self.body.lowering)
        )
        return loop.apply(args)

    @property
    def shape(self) -> tuple[int, ...]:
        """The parts of the HLO's key other than the body."""
        return (self.n_carry, self.n_xs, self.length, self.reverse, self.unroll)

    # -- rules ----------------------------------------------------------------------------------

    def reverse_rule(self, wrt: tuple[bool, ...]) -> ScanReverseRule:
        carries = range(self.n_carry)
        smooth = frozenset(i for i in carries if differentiable(self.body.avals[i]))
        full = tuple(b or i in smooth for i, b in enumerate(wrt))
        return ScanReverseRule(self, self.body.joint(full, smooth))

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        c, x = self.n_carry, self.n_carry + self.n_xs
        avals, reads = self.body.avals, self.body.lowering.dependencies
        active = reached(reads, c, [i for i, t in enumerate(tangents) if t is not None])
        wrt = tuple(i for i, a in enumerate(avals) if differentiable(a) and i in active)
        carried = [i for i in wrt if i < c]
        n_carry = len(carried)
        n_xs = sum(c <= i < x for i in wrt)
        push = self.body.pushforward(wrt)
        smooth = [i for i, o in enumerate(self.outputs) if differentiable(o)]
        stacks = [i for i in smooth if i >= c and not active.isdisjoint(reads[i])]

        # carries, their tangents; xs, their tangents; consts, their tangents.
        def fn(*flat: Tensor) -> list[Tensor]:
            groups = _regroup(flat, (c, n_carry, self.n_xs, n_xs, len(avals) - x))
            cs, c_dots, xs, x_dots, ks, k_dots = groups
            outs = push.fn(*cs, *xs, *ks, *c_dots, *x_dots, *k_dots)
            n = len(self.body.outputs)
            outs, found = outs[:n], outs[n:]
            dots = dict(zip(smooth, found, strict=True))
            of_carries, of_ys = ([dots[i] for i in dots if i in s] for s in (carried, stacks))
            return [*outs[:c], *of_carries, *outs[c:], *of_ys]

        dot_avals = [avals[i] for i in wrt]
        order = [
            *avals[:c], *dot_avals[:n_carry], *avals[c:x], *dot_avals[n_carry : n_carry + n_xs],
            *avals[x:], *dot_avals[n_carry + n_xs :],
        ]  # fmt: skip
        body = self.body.derive(("scan jvp", c, self.n_xs, wrt), push.name, fn, order)
        inner = self.with_body(body, c + n_carry, self.n_xs + n_xs)
        dots = [or_zeros(tangents[i], args[i]) for i in wrt]
        flat = [
            *args[:c], *dots[:n_carry], *args[c:x], *dots[n_carry : n_carry + n_xs],
            *args[x:], *dots[n_carry + n_xs :],
        ]  # fmt: skip
        outs = bind(inner, flat)
        own = len(self.outputs)
        found = dict(zip(carried, outs[c : c + n_carry], strict=True))
        found |= zip(stacks, outs[own + n_carry :], strict=True)
        return [found.get(i) for i in range(own)]

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor | None]:
        c, x = self.n_carry, self.n_carry + self.n_xs
        body, avals = self.body, self.body.avals
        present = read_by(body.lowering.dependencies, c, cts)
        y_cts = [i for i in range(c, len(body.outputs)) if cts[i] is not None]
        smooth = [i for i in range(c) if differentiable(avals[i]) and i in present]
        wrt_xs = [i for i in wrt if c <= i < x and i in present]
        wrt_ks = [i for i in wrt if i >= x and i in present]
        if not (smooth or wrt_xs or wrt_ks):
            return [None for _ in wrt]
        own = (*smooth, *wrt_xs, *wrt_ks)
        carries = self._stack_carries(args, own)
        n_ct, n_sum = len(smooth), len(wrt_ks)
        pull = body.pullback(own, (*smooth, *y_cts))

        # carry: cotangents of the carry, sums for the consts; xs: carries, xs, cotangents of ys.
        def fn(*flat: Tensor) -> list[Tensor]:
            sizes = (n_ct, n_sum, c, self.n_xs, len(y_cts))
            c_cts, sums, cs, xs, ys, ks = _regroup(flat, sizes)
            grads = pull.fn(*cs, *xs, *ks, *c_cts, *ys)
            of_c, of_x, of_k = _regroup(grads, (n_ct, len(wrt_xs)))
            return [*of_c, *(s + g for s, g in zip(sums, of_k, strict=True)), *of_x]

        order = [
            *(avals[i] for i in smooth), *(avals[i] for i in wrt_ks),
            *avals[:x], *(body.outputs[i] for i in y_cts), *avals[x:],
        ]  # fmt: skip
        key = ("scan vjp", c, self.n_xs, wrt, tuple(smooth), tuple(y_cts))
        back = body.derive(key, pull.name, fn, order)
        inner = self.with_body(back, n_ct + n_sum, x + len(y_cts))
        inner = dataclasses.replace(inner, reverse=not self.reverse)
        flat = [
            *(or_zeros(cts[i], args[i]) for i in smooth),
            *(zeros(args[i]) for i in wrt_ks),
            *carries, *args[c:x], *(t for t in (cts[i] for i in y_cts) if t is not None),
            *args[x:],
        ]  # fmt: skip
        of_c, of_k, of_x = _regroup(bind(inner, flat), (n_ct, n_sum))
        found = dict(zip([*smooth, *wrt_ks, *wrt_xs], [*of_c, *of_k, *of_x], strict=True))
        return [tied(found[i], args[i]) if i in found else None for i in wrt]

    def _stack_carries(self, args: Sequence[Tensor], wrt: tuple[int, ...]) -> list[Tensor]:
        """The carry that each step received; a step is differentiated by its inputs in `wrt`."""
        c = self.n_carry
        step = self.body.with_fwd_rules(wrt, forward_mode=False) if self.has_rule else self.body

        def fn(*flat: Tensor) -> list[Tensor]:
            return [*step.fn(*flat)[:c], *flat[:c]]

        body = step.derive(("scan carries", c), self.body.name, fn, self.body.avals)
        return bind(self.with_body(body, c, self.n_xs), args)[c:]

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        c, x = self.n_carry, self.n_carry + self.n_xs
        reads = self.body.lowering.dependencies
        batched = reached(reads, c, [i for i, d in enumerate(dims) if d is not None])
        body_dims = tuple(0 if i in batched else None for i in range(len(dims)))
        plain = self.body.batched(body_dims, n)

        def fn(*flat: Tensor) -> list[Tensor]:
            outs = plain.fn(*flat)
            return [o if i >= c or i in batched else o[0] for i, o in enumerate(outs)]

        body = self.body.derive(("scan batched", c, plain), plain.name, fn, plain.avals)
        moved = [
            at_dim(a, d, None if i not in batched else 1 if c <= i < x else 0, n)
            for i, (a, d) in enumerate(zip(args, dims, strict=True))
        ]
        outs = bind(self.with_body(body, c, self.n_xs), moved)
        carry_dims = [0 if i in batched else None for i in range(c)]
        # Batch first and contiguous: torch copies a tangent whose strides are not those of its
        # primal, by an operation (as_strided) that torch_xla cannot trace.
        ys = [y.movedim(1, 0).clone(memory_format=torch.contiguous_format) for y in outs[c:]]
        return [*outs[:c], *ys], [*carry_dims, *(0 for _ in ys)]


def _regroup(flat: Sequence[Tensor], sizes: Sequence[int]) -> list[list[Tensor]]:
    """Consecutive groups of the given sizes, and the rest."""
    groups, start = list[list[Tensor]](), 0
    for n in sizes:
        groups.append(list(flat[start : start + n]))
        start += n
    return [*groups, list(flat[start:])]
