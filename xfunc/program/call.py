"""`Call`: the primitive that applies a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xfunc.core.avals import Aval
from xfunc.program.bind import bind
from xfunc.program.dependence import where_reached
from xfunc.program.primitive import Dims, Primitive, Tensor, scatter_to_inputs
from xfunc.program.program import Joint, TracedProgram, differentiable
from xfunc.remat.partition import Partition, gathered
from xfunc.remat.policies import Policy, everything_saveable


class Call(Primitive):
    """The primitive that applies a `TracedProgram`; see `Primitive` for its methods.

    Args:
        program: the program to apply.
        policy: chooses the residuals of the forward pass.
        barrier: whether XLA must not merge the two passes: see `xfunc.remat.partition`.
        compiler: compiler options by name, of all programs that it runs.
    """

    def __init__(
        self,
        program: TracedProgram,
        policy: Policy = everything_saveable,
        barrier: bool = False,
        compiler: tuple[tuple[str, object], ...] = (),
    ):
        self.program, self.name = program, program.name
        self._how = policy, barrier, compiler

    def compiled_with(self, compiler: tuple[tuple[str, object], ...]) -> Call:
        """The same with other options of the compiler."""
        return Call(self.program, *self._how[:2], compiler)

    @property
    def outputs(self) -> tuple[Aval, ...]:
        return self.program.outputs

    @property
    def has_rule(self) -> bool:
        return self.program.has_rule

    def with_fwd_rules(self, wrt: tuple[int, ...], forward_mode: bool) -> Call:
        return Call(self.program.with_fwd_rules(wrt, forward_mode), *self._how)

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        return self.program.lowering.apply(args, options=self._how[2])

    def reverse_rule(self, wrt: tuple[bool, ...]) -> CallReverseRule:
        return CallReverseRule(self.program.joint(wrt), *self._how)

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor | None]:
        present = tuple(i for i, c in enumerate(cts) if c is not None)
        pullback = self.program.pullback(wrt, present)
        given = [*args, *(c for c in cts if c is not None)]
        grads = bind(Call(pullback, *self._how), given)
        return where_reached(grads, pullback.lowering.dependencies, range(len(args), len(given)))

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        wrt = tuple(
            i for i, t in enumerate(tangents) if t is not None and differentiable(self.avals[i])
        )
        pushforward = self.program.pushforward(wrt)
        given = [*args, *(t for t in (tangents[i] for i in wrt) if t is not None)]
        outs = bind(Call(pushforward, *self._how), given)
        reads = pushforward.lowering.dependencies
        dots = iter(where_reached(outs, reads, range(len(args), len(given)))[len(self.outputs) :])
        return [next(dots) if differentiable(o) else None for o in self.outputs]

    @property
    def avals(self) -> tuple[Aval, ...]:
        return self.program.avals

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        batched = Call(self.program.batched(dims, n), *self._how)
        return bind(batched, args), [0] * len(self.outputs)


class CallReverseRule:
    """The two passes of a program; see `ReverseRule` for its methods."""

    def __init__(
        self,
        joint: Joint,
        policy: Policy,
        barrier: bool,
        compiler: tuple[tuple[str, object], ...] = (),
    ):
        self._joint, self._policy, self._barrier = joint, policy, barrier
        self._compiler = compiler
        self.name, self.wrt, self.cts = joint.source.name, joint.wrt, joint.cts
        self.n_outputs = len(joint.outputs)

    @property
    def partition(self) -> Partition:
        return self._joint.split(self._policy, barrier=self._barrier)

    @property
    def n_residuals(self) -> int:
        """How many results of `forward` are residuals."""
        return self.partition.n_residuals

    def forward(self, args: Sequence[Tensor]) -> list[Tensor]:
        return self.partition.forward.apply(args, options=self._compiler)

    def backward(
        self, args: Sequence[Tensor], residuals: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        joint = self._joint
        partition = joint.prune_cotangents(self.partition, cts)
        given = cast("list[Tensor]", [cts[i] for i in joint.cts])  # Those that are read exist.
        flat = gathered(partition.sources, args, residuals, given.__getitem__)
        grads = partition.backward.apply(flat, options=self._compiler)
        return list(scatter_to_inputs(len(self.wrt), partition.gradients, grads))

    def batched(self, dims: Dims, n: int) -> tuple[CallReverseRule, Dims, Dims, Dims]:
        joint = self._joint.batched(dims, n)
        inner = CallReverseRule(joint, self._policy, self._barrier, self._compiler)
        return inner, dims, (0,) * self.n_outputs, (0,) * len(self.wrt)
