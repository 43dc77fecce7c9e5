"""The primitive for a `Switch` with a batched index, and its rules.

All branches are computed for all examples, and each example selects its results. The examples for
which a branch is computed in vain may have an infinite derivative there, like the logarithm at
zero; the rules keep it out of the derivatives of the whole.

NOTE [selected derivatives]: the derivative of a selection by ``torch.where`` would multiply zeros
by those infinite derivatives, which gives NaN. So derivatives are selected like results: forward
mode selects between pushforwards, reverse mode between pullbacks. An operand that all examples
share has the sum of their gradients, so its gradient is computed for each example, selected, and
only then summed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from xfunc.core.avals import Aval
from xfunc.program.bind import bind
from xfunc.program.call import CallReverseRule
from xfunc.program.dependence import where_reached
from xfunc.program.primitive import Dims, Primitive, ReverseRule, Tensor
from xfunc.program.program import TracedProgram, differentiable
from xfunc.torchlib.batching import at_dim

if TYPE_CHECKING:
    from xfunc.transforms.switch_primitive import Switch, Uses


@dataclasses.dataclass(frozen=True)
class Level:
    """One `vmap` of a `Select`.

    Attributes:
        mapped: for each flat input, whether it is batched at this level, in its first dimension.
        n: the number of examples.
    """

    mapped: tuple[bool, ...]
    n: int

    @property
    def dims(self) -> Dims:
        return tuple(0 if m else None for m in self.mapped)

    def extended(self, mapped: Sequence[bool]) -> Level:
        """The level of more flat inputs."""
        return dataclasses.replace(self, mapped=(*self.mapped, *mapped))


@dataclasses.dataclass(eq=False)
class Select(Primitive):
    """The primitive; see `Primitive` for its methods.

    Attributes:
        source: the switch of one example.
        levels: the vmaps over it, the innermost first; the index is batched at each.
    """

    source: Switch
    levels: tuple[Level, ...]

    @property
    def branches(self) -> tuple[TracedProgram, ...]:
        """The programs of all examples."""
        branches = list[TracedProgram]()
        for b, uses in zip(self.source.branches, self.source.uses, strict=True):
            for level in self.levels:
                b = b.batched(tuple(level.dims[i] for i in uses), level.n)
            branches.append(b)
        return tuple(branches)

    @property
    def outputs(self) -> tuple[Aval, ...]:
        return self.branches[0].outputs

    @property
    def has_rule(self) -> bool:
        return self.source.has_rule

    def with_fwd_rules(self, wrt: tuple[int, ...], forward_mode: bool) -> Select:
        return dataclasses.replace(self, source=self.source.with_fwd_rules(wrt, forward_mode))

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        pairs = zip(self.branches, self.source.uses, strict=True)
        return select(args[0], [b.lowering.apply([args[i] for i in u]) for b, u in pairs])

    def reverse_rule(self, wrt: tuple[bool, ...]) -> ReverseRule:
        rule: ReverseRule = self.source.reverse_rule(wrt)
        for level in self.levels:
            rule = rule.batched(level.dims, level.n)[0]
        assert isinstance(rule, SelectReverseRule)
        return dataclasses.replace(rule, sums=tuple(map(self._unmapped, rule.wrt)))

    def _unmapped(self, i: int) -> tuple[int, ...]:
        """The batch dimensions that flat input `i` lacks."""
        outermost_first = reversed(self.levels)
        return tuple(k for k, level in enumerate(outermost_first) if not level.mapped[i])

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor | None]:
        given = [c for c in cts if c is not None]
        present = tuple(i for i, c in enumerate(cts) if c is not None)
        levels = tuple(level.extended([True for _ in given]) for level in self.levels)
        inner = Select(self.source.pullbacks(wrt, present), levels)
        grads = bind(inner, [*args, *given])
        n = len(args)
        return [
            g if g is None else _summed(g, self._unmapped(i))
            for i, g in zip(
                wrt, where_reached(grads, inner.reads, range(n, n + len(given))), strict=True
            )
        ]

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        wrt = self.source.pushed(tangents)
        levels = tuple(level.extended([level.mapped[i] for i in wrt]) for level in self.levels)
        inner = Select(self.source.pushforwards(wrt), levels)
        outs = bind(inner, [*args, *(t for t in (tangents[i] for i in wrt) if t is not None)])
        return self.source.tangents_of(outs, inner.reads, len(wrt))

    @property
    def reads(self) -> list[set[int]]:
        """For each output, the flat inputs that any branch computes it from."""
        return reads(self.branches, self.source.uses)

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        inner, moved = mapped(self.source, self.levels, dims, n, args)
        outs = bind(inner, moved)
        return outs, [0] * len(outs)


def mapped(
    source: Switch, levels: tuple[Level, ...], dims: Dims, n: int, args: Sequence[Tensor]
) -> tuple[Select, list[Tensor]]:
    """The `Select` with one more `vmap` outside, and its arguments."""
    level = Level((True, *(d is not None for d in dims[1:])), n)
    moved = [at_dim(a, d, w, n) for a, d, w in zip(args, dims, level.dims, strict=True)]
    return Select(source, (*levels, level)), moved


def reads(branches: Sequence[TracedProgram], uses: Uses) -> list[set[int]]:
    """For each output, the flat inputs that any branch computes it from."""
    pairs = list(zip(branches, uses, strict=True))
    return [
        {u[k] for b, u in pairs for k in b.lowering.dependencies[i]}
        for i in range(len(branches[0].outputs))
    ]


def _summed(gradient: Tensor, dims: tuple[int, ...]) -> Tensor:
    return gradient.sum(dims) if dims else gradient


def masked(index: Tensor, k: int, cts: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Cotangents, zeros unless the index is k."""
    return [
        None if c is None else torch.where(mask(index, k, c), c, torch.zeros_like(c)) for c in cts
    ]


def constant_unless(moves: Tensor, x: Tensor) -> Tensor:
    """`x` for the examples that `moves` marks, and a constant of the same value for the others.

    This is how `disable_jit` selects derivatives: see NOTE [selected derivatives].
    """
    return torch.where(moves, x, x.detach()) if differentiable(x) else x


def mask(index: Tensor, k: int, like: Tensor) -> Tensor:
    """Where a batch of indices is k, to be broadcast against one value per example."""
    return (index == k).reshape(*index.shape, *(1,) * (like.ndim - index.ndim))


def select(index: Tensor, found: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """For each example, the results of the branch that its index selects."""
    chosen = list(found[-1])
    for k in reversed(range(len(found) - 1)):
        chosen = [
            torch.where(mask(index, k, a), a, b) for a, b in zip(found[k], chosen, strict=True)
        ]
    return chosen


@dataclasses.dataclass(eq=False)
class SelectReverseRule:
    """A `SwitchReverseRule` with a batched index: all branches run, and each example selects.

    Attributes:
        joined: see NOTE [branches that communicate] in `switch_primitive`.
        sums: for each input in `wrt`, the dimensions of its examples' gradients to sum over: see
            NOTE [selected derivatives].
    """

    rules: tuple[CallReverseRule, ...]
    uses: Uses
    wrt: tuple[int, ...]
    cts: tuple[int, ...]
    n_outputs: int
    joined: bool
    sums: tuple[tuple[int, ...], ...]

    def forward(self, args: Sequence[Tensor]) -> list[Tensor]:
        found, residuals = list[list[Tensor]](), list[Tensor]()
        for rule, uses in zip(self.rules, self.uses, strict=True):
            values = rule.forward([args[i] for i in uses])
            found.append(values[: self.n_outputs])
            residuals += values[self.n_outputs :]
        return [*select(args[0], found), *residuals]

    def backward(
        self, args: Sequence[Tensor], residuals: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        found: dict[int, Tensor] = {}
        kept = list(residuals)
        for k, (rule, uses) in enumerate(zip(self.rules, self.uses, strict=True)):
            own, kept = kept[: rule.n_residuals], kept[rule.n_residuals :]
            mine = masked(args[0], k, cts) if self.joined else cts
            grads = rule.backward([args[i] for i in uses], own, mine)
            for i, g in zip((uses[i] for i in rule.wrt), grads, strict=True):
                if g is None:
                    continue
                if self.joined:
                    found[i] = found[i] + g if i in found else g
                else:
                    other = found[i] if i in found else torch.zeros_like(g)
                    found[i] = torch.where(mask(args[0], k, g), g, other)
        grads = [found.get(i) for i in self.wrt]
        return [g if g is None else _summed(g, s) for g, s in zip(grads, self.sums, strict=True)]

    def batched(self, dims: Dims, n: int) -> tuple[ReverseRule, Dims, Dims, Dims]:
        rules = tuple(
            p.batched(tuple(dims[i] for i in u), n)[0]
            for p, u in zip(self.rules, self.uses, strict=True)
        )
        sums = tuple(tuple(k + 1 for k in s) for s in self.sums)
        inner = dataclasses.replace(self, rules=rules, sums=sums)
        # Examples of both batches need an index.
        arg_dims = (0, *dims[1:])
        return inner, arg_dims, (0,) * self.n_outputs, (0,) * len(self.wrt)
