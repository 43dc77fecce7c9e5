"""Programs: pure flat functions with their HLO, and the programs derived from them.

A `TracedProgram` is made by running a Python function on placeholders. The first run discovers its
captures; afterwards they are explicit inputs (*closure conversion*), so that every program derived
from it differentiates and batches them like arguments.

The derived programs are traced on demand from the same Python function, and kept:

==================  ===============================================================
`joint`             ``(args, cotangents) -> (outputs, gradients)``, as one HLO graph
`pullback`          ``(args, cotangents) -> gradients``, itself differentiable
`pushforward`       ``(args, tangents) -> tangents of the outputs``
`batched`           ``vmap`` over the given input dimensions
==================  ===============================================================

NOTE [the joint program is run by plain autograd]: captures turn up in the middle of a run. As a
leaf of plain autograd a fresh placeholder can still join the graph then; as an argument of
torch.func.vjp it could not.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias, TypeVar

import torch

from xfunc.backends.lock import turn
from xfunc.core import ambient
from xfunc.core.avals import Aval, aval_of, batched
from xfunc.core.locations import Location
from xfunc.core.types import Shaped
from xfunc.remat.partition import Partition, primal, split
from xfunc.remat.policies import Policy
from xfunc.torchlib import batching, functorch, values
from xfunc.trace import tracing
from xfunc.trace.array_operands import check_returned
from xfunc.trace.lowering import HloProgram, lower
from xfunc.trace.tracing import Trace

Flat = Callable[..., list[torch.Tensor]]
T = TypeVar("T")
Tensors: TypeAlias = tuple[torch.Tensor, ...]
Memo: TypeAlias = dict[Hashable, Any]  # the key determines the value's type


def differentiable(x: Shaped) -> bool:
    """Whether gradients with respect to `x` exist."""
    return x.dtype.is_floating_point or x.dtype.is_complex


def made_once(memo: Memo, key: Hashable, make: Callable[[], T]) -> T:
    """The value of `make`, computed once per key, in one thread at a time."""
    if key not in memo:
        with turn((id(memo), key)):
            if key not in memo:
                memo[key] = make()
    return memo[key]


@dataclasses.dataclass(eq=False)
class Joint:
    """Forward and backward of a program as one graph.

    Attributes:
        lowering: of ``(inputs, cotangents) -> (outputs, gradients)``.
        outputs: avals of the outputs.
        cts: the outputs that have a cotangent, in order.
        wrt: the inputs that have a gradient, in order.
        source: the program it was made from.
        unread: the inputs in `wrt` that no output depends on: their gradients are zeros.
    """

    source: TracedProgram
    lowering: HloProgram
    n_inputs: int
    outputs: tuple[Aval, ...]
    cts: tuple[int, ...]
    wrt: tuple[int, ...]
    unread: frozenset[int] = frozenset()
    _memo: Memo = dataclasses.field(default_factory=Memo, repr=False)

    def split(
        self,
        policy: Policy,
        unavailable: frozenset[int] = frozenset(),
        invariant: frozenset[int] = frozenset(),
        barrier: bool = False,
        steps: int = 1,
    ) -> Partition:
        """Cut in two; see `xfunc.remat.partition.split`."""
        return self.memo(
            ("split", policy, unavailable, invariant, barrier, steps),
            lambda: split(
                self.lowering,
                n_inputs=self.n_inputs,
                n_outputs=len(self.outputs),
                policy=policy,
                unavailable=unavailable,
                invariant=invariant,
                barrier=barrier,
                steps=steps,
            ),
        )

    def prune_cotangents(
        self,
        partition: Partition,
        cts: Sequence[object | None],
        gradients: tuple[int, ...] | None = None,
    ) -> Partition:
        """The partition without the cotangents of outputs that are None.

        By default it keeps every gradient that a remaining cotangent reaches.
        """
        absent = tuple(k for k, i in enumerate(self.cts) if cts[i] is None)
        if not absent and gradients in (None, partition.gradients):
            return partition
        key = ("prune_cotangents", partition, absent, gradients)
        return self.memo(key, lambda: partition.prune_cotangents(absent, gradients))

    def memo(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `make`, computed once per key."""
        return made_once(self._memo, key, make)

    def batched(self, dims: tuple[int | None, ...], n: int) -> Joint:
        """vmap over inputs and all cotangents: gradients are per example."""

        def make() -> Joint:
            # Outputs and gradients through torch.func can be batched any number of times.
            program = self.as_program().batched((*dims, *(0 for _ in self.cts)), n)
            outputs = program.outputs[: len(self.outputs)]
            return dataclasses.replace(
                self,
                source=program,
                lowering=program.lowering,
                outputs=outputs,
                _memo={"program": program},
            )

        return self.memo(("batched", dims, n, batching.axes_of(n)), make)

    def as_program(self) -> TracedProgram:
        """The joint function as a separate program."""
        n, cts, wrt, fn = self.n_inputs, self.cts, self.wrt, self.source.fn

        def joint(*flat: torch.Tensor) -> list[torch.Tensor]:
            args = list(flat[:n])

            def outputs_of(*diff: torch.Tensor) -> tuple[Tensors, Tensors]:
                for i, d in zip(wrt, diff, strict=True):
                    args[i] = d
                outs = fn(*args)
                return tuple(outs[i] for i in cts), tuple(outs)

            if not wrt:
                return fn(*args)
            _, pull, outs = functorch.vjp(outputs_of, *(args[i] for i in wrt))
            return [*outs, *pull(tuple(flat[n:]))]

        avals = [*self.source.avals, *(self.outputs[i] for i in cts)]
        name = f"joint of {self.source.name}"
        return self.memo("program", lambda: self.source.related(name, joint, avals))


class TracedProgram:
    """A pure flat function ``(*tensors) -> list of tensors`` and the programs derived from it.

    Attributes:
        name: of the user's function.
        avals: of the arguments, then of the captures.
        captures: the tensors that the function closed over in its first run.
        forwards: for each result, the input that the function returns unchanged there, or None.
    """

    def __init__(
        self,
        name: str,
        fn: Flat,
        avals: Sequence[Aval],
        labels: Sequence[str] = (),
        derived: bool = False,
    ):
        self.name = name
        self.captures: list[torch.Tensor] = []
        self.forwards: tuple[int | None, ...] = ()
        self.avals = tuple(avals)
        self._raw_fn, self._n_args = fn, len(self.avals)
        self._labels = labels
        self._traced = False
        self.has_rule = False  # whether a function with a custom rule is called in it
        self.defined_at: Location | None = None
        self._derived = derived  # A derived program has no captures.
        self._ctx = ambient.key()  # also for tracing it again elsewhere
        self._outputs: tuple[Aval, ...] = ()
        self._lowering: HloProgram | None = None
        self._memo: Memo = {}

    def fn(self, *flat: torch.Tensor) -> list[torch.Tensor]:
        """The function with its captures as trailing arguments; call it inside a trace."""
        trace = tracing.current()
        assert trace is not None
        for capture, value in zip(self.captures, flat[self._n_args :], strict=True):
            trace.substitute(capture, value)
        return self._raw_fn(*flat[: self._n_args])

    # -- runs of the Python function ------------------------------------------------------------

    @property
    def outputs(self) -> tuple[Aval, ...]:
        """Avals of the results."""
        if not self._traced:
            with turn(self):
                if not self._traced:
                    self.trace()
        return self._outputs

    @property
    def lowering(self) -> HloProgram:
        """The HLO of the function itself."""
        if self._lowering is None:
            with turn(self):
                if self._lowering is None:
                    self._lower()
        assert self._lowering is not None
        return self._lowering

    def _lower(self) -> None:
        joint = next((m for m in [*self._memo.values()] if isinstance(m, Joint)), None)
        if joint is None:
            self.trace()
        else:  # The joint program contains it: no need to run the function again.
            self._lowering = primal(
                joint.lowering,
                n_inputs=joint.n_inputs,
                n_outputs=len(joint.outputs),
                name=self.name,
            )

    def trace(self) -> None:
        """Run the function on placeholders."""
        with self._open() as trace:
            inputs, outs = self._run(trace, ())
            self._lowering = lower(self.name, trace.raw_inputs(), self.avals, outs)
            del inputs, outs  # Whatever is alive when the trace ends has leaked.

    def joint(self, wrt: tuple[bool, ...], zeros: frozenset[int] = frozenset()) -> Joint:
        """The joint program for gradients with respect to the inputs marked in `wrt`.

        On the first run `wrt` covers the arguments; captures are differentiated if they are being
        watched. Inputs in `zeros` get a gradient of zeros where they have none.
        """
        result = self.memo(("joint", wrt, zeros), lambda: self._trace_joint(wrt, zeros))
        self._memo["joint", self._extend(wrt), zeros] = result
        return result

    def _extend(self, wrt: tuple[bool, ...]) -> tuple[bool, ...]:
        """`wrt` for the captures too, if it covers the arguments only."""
        if len(wrt) == len(self.avals):
            return wrt
        return (*wrt, *(values.is_tracked(c) and differentiable(c) for c in self.captures))

    def _trace_joint(self, wrt: tuple[bool, ...], zeros: frozenset[int]) -> Joint:
        with self._open() as trace:
            trace.track_captures = True
            inputs, outs = self._run(trace, wrt)
            wanted = [i for i, b in enumerate(self._extend(wrt)) if b]
            cts = tuple(i for i, o in enumerate(outs) if o.requires_grad)
            ct_values = [trace.new_input(outs[i], lambda: "a cotangent") for i in cts]
            grads: list[torch.Tensor | None] = [None] * len(wanted)
            if cts and wanted:
                diff, of = [outs[i] for i in cts], [inputs[i] for i in wanted]
                with functorch.own_gradient():
                    grads = list(torch.autograd.grad(diff, of, ct_values, allow_unused=True))
                del diff, of
            unread = frozenset(i for g, i in zip(grads, wanted, strict=True) if g is None) & zeros
            for k, i in enumerate(wanted):
                if i in unread:
                    grads[k] = torch.zeros_like(inputs[i])
            present = [g for g in grads if g is not None]
            lowering = lower(
                self.name,
                trace.raw_inputs(),
                [*self.avals, *(self._outputs[i] for i in cts)],
                [*(o.detach() for o in outs), *present],
            )
            positions = tuple(i for i, g in zip(wanted, grads, strict=True) if g is not None)
            n = len(inputs)
            del inputs, outs, ct_values, grads, present
        return Joint(self, lowering, n, self._outputs, cts, positions, unread)

    def _open(self) -> Trace:
        return Trace(self.name, self._traced or self._derived, self.defined_at, self._ctx)

    def _run(
        self, trace: Trace, wrt: tuple[bool, ...]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Run `fn` on fresh placeholders: (inputs, outputs). The first run fixes the captures."""
        watched = [*wrt, *(False for _ in self.avals[len(wrt) :])]
        labels = (functools.partial(self._label, i) for i in range(len(self.avals)))
        inputs = [trace.new_input(*x) for x in zip(self.avals, labels, watched, strict=True)]
        outs = [trace.lift(o) for o in self.fn(*inputs)]
        trace.check_unmutated()
        check_returned(trace)
        self.has_rule |= trace.has_rule
        if not self._traced:
            self.captures = list(trace.captures)
            self.avals = (*self.avals, *(aval_of(c) for c in self.captures))
            inputs = [*inputs, *trace.capture_inputs]
            places = {id(x): i for i, x in enumerate(inputs)}
            self.forwards = tuple(places.get(id(o)) for o in outs)
            self._outputs, self._traced = tuple(map(aval_of, outs)), True
        return inputs, outs

    def _label(self, i: int) -> str:
        return self._labels[i] if i < len(self._labels) else "an argument"

    # -- derived programs -----------------------------------------------------------------------

    def memo(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `make`, computed once per key."""
        return made_once(self._memo, key, make)

    def derive(self, key: Hashable, name: str, fn: Flat, avals: Sequence[Aval]) -> TracedProgram:
        """A program traced from `fn`, made once per key."""
        return self.memo(key, lambda: self.related(name, fn, avals))

    def related(self, name: str, fn: Flat, avals: Sequence[Aval]) -> TracedProgram:
        """A program without captures, with the same context."""
        program = TracedProgram(name, fn, avals, derived=True)
        program._ctx = self._ctx
        return program

    def pullback(self, wrt: tuple[int, ...], cts: tuple[int, ...]) -> TracedProgram:
        """``(inputs, cotangents of the outputs in cts) -> gradients of the inputs in wrt``."""
        n, outputs = len(self.avals), self.outputs

        def fn(*flat: torch.Tensor) -> list[torch.Tensor]:
            args = list(flat[:n])

            def outputs_of(*diff: torch.Tensor) -> tuple[Tensors, Tensors]:
                for i, d in zip(wrt, diff, strict=True):
                    args[i] = d
                outs = self.fn(*args)
                return tuple(outs[i] for i in cts), ()

            _, pull, _ = functorch.vjp(outputs_of, *(args[i] for i in wrt))
            return list(pull(tuple(flat[n:])))

        avals = [*self.avals, *(outputs[i] for i in cts)]
        return self.derive(("pullback", wrt, cts), f"pullback of {self.name}", fn, avals)

    def with_fwd_rules(self, wrt: tuple[int, ...], forward_mode: bool) -> TracedProgram:
        """The function as levels below a derivative see it: custom functions as their rules.

        Args:
            wrt: the inputs that the derivative is taken with respect to.
            forward_mode: whether the derivative is a tangent, not a gradient: a rule may contain
                operations that only forward mode can differentiate.
        """

        def fn(*flat: torch.Tensor) -> list[torch.Tensor]:
            args = list(flat)

            def outputs_of(*diff: torch.Tensor) -> tuple[Tensors, Tensors]:
                for i, d in zip(wrt, diff, strict=True):
                    args[i] = d
                outs = self.fn(*args)
                return tuple(o for o in outs if differentiable(o)), tuple(outs)

            primals = tuple(args[i] for i in wrt)
            if not primals:  # torch.func needs something to differentiate.
                return self.fn(*flat)
            if not forward_mode:
                return list(functorch.vjp(outputs_of, *primals)[2])
            return list(
                functorch.jvp(outputs_of, primals, tuple(map(torch.zeros_like, primals)))[2]
            )

        return self.derive(("below derivative", wrt, forward_mode), self.name, fn, self.avals)

    def pushforward(self, wrt: tuple[int, ...]) -> TracedProgram:
        """``(inputs, tangents of the inputs in wrt) -> (outputs, tangents of float outputs)``."""
        n, outputs = len(self.avals), self.outputs
        floats = [i for i, o in enumerate(outputs) if differentiable(o)]

        def fn(*flat: torch.Tensor) -> list[torch.Tensor]:
            args = list(flat[:n])
            if not wrt or not floats:  # torch.func.jvp needs something to differentiate.
                outs = self.fn(*args)
                return [*outs, *(torch.zeros_like(outs[i]) for i in floats)]

            def outputs_of(*diff: torch.Tensor) -> tuple[Tensors, Tensors]:
                for i, d in zip(wrt, diff, strict=True):
                    args[i] = d
                outs = self.fn(*args)
                return tuple(outs[i] for i in floats), tuple(outs)

            _, tangents, outs = functorch.jvp(
                outputs_of, tuple(args[i] for i in wrt), tuple(flat[n:])
            )
            return [*outs, *tangents]

        avals = [*self.avals, *(self.avals[i] for i in wrt)]
        return self.derive(("pushforward", wrt), f"pushforward of {self.name}", fn, avals)

    def batched(self, dims: tuple[int | None, ...], n: int) -> TracedProgram:
        """vmap over dimension ``dims[i]`` of input i (None: the same for all); outputs at 0."""

        def fn(*flat: torch.Tensor) -> list[torch.Tensor]:
            if not self.outputs:
                return []
            if all(d is None for d in dims):  # torch.func.vmap needs something to map over.
                return [o.expand(n, *o.shape) for o in self.fn(*flat)]
            trace = tracing.current()
            return list(batching.vmap(trace, lambda *a: tuple(self.fn(*a)), dims, flat, axes))

        axes = batching.axes_of(n)
        avals = batched(self.avals, dims, n)
        return self.derive(("batched", dims, n, axes), f"vmap of {self.name}", fn, avals)
