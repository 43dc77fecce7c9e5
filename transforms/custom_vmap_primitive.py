"""The primitive behind `custom_vmap`: a program, and the rule that `vmap` calls in its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import NoReturn, Protocol

import torch

from xfunc import tree
from xfunc.core.avals import NUMBERS, Aval, batched, short
from xfunc.core.locations import described
from xfunc.core.wrappers import Bundle, Part
from xfunc.errors import TreeMismatchError, UnsupportedOpError, fail, kind_of
from xfunc.program.bind import bind
from xfunc.program.primitive import Dims, Primitive, Tensor
from xfunc.program.program import TracedProgram, differentiable
from xfunc.stages.checks import Fun, as_tensors, check_same, is_pair
from xfunc.stages.staging import Staged, call_in_trace
from xfunc.torchlib import functorch
from xfunc.torchlib.batching import at_dim
from xfunc.torchlib.eager import is_eager


class FlatRule(Protocol):
    """How a flat function is batched.

    Attributes:
        name: of the user's function.
        key: hashable parts of the rule other than the user's functions.
    """

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> tuple[Hashable, ...]: ...

    def is_capture(self, i: int) -> bool:
        """Whether input `i` is a value that the function closes over."""
        ...

    def __call__(
        self, n: int, flags: Sequence[bool], flat: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[bool]]:
        """The outputs, and flags of those with a batch axis, for inputs batched where `flags` are
        set.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Rule:
    """The rule that the user gave.

    Attributes:
        name: of the function.
        rule: the user's function.
        structure: of the tuple of arguments.
        out_tree: structure of the function's result.
        outputs: avals of that.
    """

    name: str
    rule: Fun
    structure: tree.Structure
    out_tree: tree.Structure
    outputs: tuple[Aval, ...]
    key = ()

    def is_capture(self, i: int) -> bool:
        return i >= self.structure.num_leaves

    def __call__(
        self, n: int, flags: Sequence[bool], flat: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[bool]]:
        count = self.structure.num_leaves
        if any(flags[count:]):
            _refuse_closure(self.name, "maps", flat[count + list(flags[count:]).index(True)])
        given = tree.unflatten(self.structure, flags[:count])
        args = tree.unflatten(self.structure, flat[:count])
        result = self.rule(n, list(given), *args)
        name = f"{self.name}: the rule {described(self.rule)}"
        if not is_pair(result):
            fail(
                TreeMismatchError,
                f"{name} returned {kind_of(result)}, not a pair",
                "return (output, whether it is batched).",
            )
        out, marks = as_tensors(result[0]), tree.leaves(result[1])
        known = all(type(b) is bool for b in marks)
        if not known or tree.structure(result[1]) != tree.structure(out):
            what = tree.map(lambda b: b if type(b) in NUMBERS else type(b).__name__, result[1])
            fail(
                TreeMismatchError,
                f"{name} returned {what} as what is batched",
                "return a tree like the output, with True or False for each leaf.",
            )
        dims = [0 if b else None for b in marks]
        want = self.outputs
        if len(dims) == len(want):
            want = batched(want, dims, n)
        check_same(
            out,
            tree.unflatten(self.out_tree, want),
            what=f"what it and {self.name} return",
            name=name,
            root="output",
            hint="return outputs of the function's structure and dtypes, with the batch along a "
            "new first axis of those that are batched.",
        )
        return tree.leaves(out), marks


@dataclasses.dataclass(frozen=True)
class Pushed:
    """The rule of a pushforward: outputs and tangents, by forward mode through a rule.

    Where a primal is batched and its tangent is not, or vice versa, the unbatched one is repeated:
    the rule always has a batch to work on, and its results have one.

    Attributes:
        rule: the batching rule of the primal function.
        n_inputs: how many inputs that has; tangents follow.
        wrt: positions of the inputs that have tangents.
    """

    rule: FlatRule
    n_inputs: int
    wrt: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def key(self) -> tuple[Hashable, ...]:
        return (self.n_inputs, self.wrt, self.rule.key)

    def is_capture(self, i: int) -> bool:
        return self.rule.is_capture(i if i < self.n_inputs else self.wrt[i - self.n_inputs])

    def __call__(
        self, n: int, flags: Sequence[bool], flat: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[bool]]:
        for i in self.wrt:
            if self.rule.is_capture(i):
                _refuse_closure(self.name, "differentiates", flat[i])
        along = dict(zip(self.wrt, flags[self.n_inputs :], strict=True))
        either = [b or along.get(i, False) for i, b in enumerate(flags[: self.n_inputs])]
        wanted = [*either, *(either[i] for i in self.wrt)]
        moved = [
            at_dim(x, 0 if b else None, 0 if w else None, n)
            for x, b, w in zip(flat, flags, wanted, strict=True)
        ]
        args, dots = moved[: self.n_inputs], tuple(moved[self.n_inputs :])
        marks: list[bool] = []

        def floating(*primals: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            for i, x in zip(self.wrt, primals, strict=True):
                args[i] = x
            outs, marks[:] = self.rule(n, either, args)
            return tuple(o for o in outs if differentiable(o)), tuple(outs)

        _, tangents, outs = functorch.jvp(floating, tuple(args[i] for i in self.wrt), dots)
        smooth = [b for o, b in zip(outs, marks, strict=True) if differentiable(o)]
        return [*outs, *tangents], [*marks, *smooth]


@dataclasses.dataclass(eq=False)
class Mapped(Primitive):
    """The primitive; see `Primitive` for its methods.

    Attributes:
        of_many: how it is batched.
        value: the rule's part of the cache key.
        program: the function; the values that it closes over follow the arguments.
    """

    of_many: FlatRule
    value: Bundle
    program: TracedProgram

    @property
    def name(self) -> str:
        return self.of_many.name

    @property
    def outputs(self) -> tuple[Aval, ...]:
        return self.program.outputs

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        return self.program.lowering.apply(args)

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        refuse_reverse(self.name)

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        wrt = tuple(i for i, t in enumerate(tangents) if t is not None and differentiable(args[i]))
        if not any(map(differentiable, self.outputs)):
            return [None for _ in self.outputs]
        pushed = Pushed(self.of_many, len(args), wrt)
        inner = Mapped(pushed, self.value, self.program.pushforward(wrt))
        dots = [t for t in (tangents[i] for i in wrt) if t is not None]
        found = iter(bind(inner, [*args, *dots])[len(self.outputs) :])
        return [next(found) if differentiable(o) else None for o in self.outputs]

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        rule, flags = self.of_many, tuple(d is not None for d in dims)
        moved = [a.movedim(d, 0) if d else a for a, d in zip(args, dims, strict=True)]

        def call(*flat: Tensor) -> list[dict[int, Tensor]]:
            """All outputs in order, merged from the batched and the other ones."""
            outs, marks = rule(int(n), flags, flat)
            return [{i: o for i, o in enumerate(outs) if marks[i] is b} for b in (True, False)]

        role = ("custom_vmap", "rule", int(n), flags, rule.key)
        part = Staged(call, value=Part(self.value, role))
        if is_eager():
            own, shared = call(*moved)
        else:
            check = self._check_captures
            own, shared = call_in_trace(part, tuple(moved), {}, check_captures=check)
        found, places = own | shared, range(len(own) + len(shared))
        return [found[i] for i in places], [0 if i in own else None for i in places]

    def _check_captures(self, captures: Sequence[Tensor]) -> None:
        """Raise if a value that the rule closes over belongs to a transform inside the vmap."""
        known = set(functorch.level_numbers())
        for c in captures:
            if not functorch.levels_of(c) <= known:
                _refuse_closure(f"the vmap rule of {self.name}", "maps or differentiates", c)


def _refuse_closure(name: str, does: str, value: torch.Tensor) -> NoReturn:
    fail(
        TypeError,
        f"{name} closes over a value ({short(value)}) that a transform of it {does}, which "
        "its rule does not receive",
        "pass the value as an argument.",
    )


def refuse_reverse(name: str) -> NoReturn:
    """Raise the error of reverse mode on the function itself."""
    fail(
        UnsupportedOpError,
        f"{name} is a custom_vmap function, which reverse mode (grad, vjp, jacrev) cannot "
        "differentiate unless vmap has replaced it by its rule",
        "decorate it with xf.custom_vjp on top, or differentiate in forward mode (jvp, jacfwd).",
    )
