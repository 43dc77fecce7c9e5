"""Applying primitives, so that every transform of torch.func finds its rule.

A `Primitive` is something that has HLO and can be differentiated and batched: a `TracedProgram`
(`xfunc.program.call.Call`), or a loop over one, or a choice. `bind` applies one. If nothing watches
the arguments, that is one HLO call; otherwise it goes through one of three
``torch.autograd.Function`` classes (`xfunc.program.autograd_functions`), whose rules apply
primitives again, so grad of grad, vmap of grad, jvp of grad and so on compose without further code.

NOTE [two ways to differentiate]: first-order reverse mode runs a `ReverseRule`: the forward half of
the joint program keeps residuals, the backward half uses them. The two halves are opaque programs
of XLA and can't be differentiated again. If the backward pass is itself being differentiated,
`Primitive.vjp` is used: it recomputes everything from the inputs, with operations that have rules.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xfunc.backends.active import runtime
from xfunc.core.types import Shaped
from xfunc.program.autograd_functions import (
    Application,
    PrimitiveFunction,
    ReverseRuleFunction,
    absent_tangent,
    apply,
    unwrap_dead,
)
from xfunc.program.primitive import Primitive, Rule, Tensor
from xfunc.program.program import differentiable
from xfunc.torchlib import functorch, values
from xfunc.trace import recorder, tracing
from xfunc.tree import Leaf


def bind(primitive: Primitive, args: Sequence[Tensor]) -> list[Tensor]:
    """Apply a primitive to tensors, whatever transforms are watching them."""
    if not primitive.outputs:
        return []
    trace = tracing.current()
    if trace is not None:  # First: the trace recognises captured values by their wrapper.
        args = [_on_device(trace.lift(a)) for a in args]
    args = unwrap_dead(args)
    outputs = _dispatch(primitive, args)
    if trace is not None:
        trace.register(outputs)
        trace.has_rule |= primitive.has_rule
    return outputs


def _on_device(x: Leaf) -> Leaf:
    """A value of a trace; one made there on the CPU becomes a constant."""
    return recorder.to_device(x) if x is not None and x.device.type == "cpu" else x


def _dispatch(primitive: Primitive, args: Sequence[Tensor]) -> list[Tensor]:
    watched = ad_depth(args)
    if watched == 0:
        return primitive.emit(args)
    if watched == 1:  # See NOTE [two ways to differentiate].
        wrt = tuple(differentiable(a) and values.is_tracked(a) for a in args)
        if any(wrt) and (rule := primitive.reverse_rule(wrt)) is not None:
            application = Application(primitive, rule)
            return list(apply(ReverseRuleFunction, application, *args))[: len(primitive.outputs)]
    rule = _rule_of(primitive, args)
    if rule is not None:
        # Levels below the innermost one that watches it see the operations of the rule, as in JAX.
        if any(map(functorch.watched_here, args)):
            return list(functorch.apply_here(rule, args))[: len(primitive.outputs)]
        return list(functorch.apply_here(_Below(primitive), args))
    return list(apply(PrimitiveFunction, primitive, *args))


def _rule_of(primitive: Primitive, args: Sequence[Tensor]) -> Rule | None:
    """The innermost level's rule for a primitive that has rules of its own, or contains some."""
    kind = functorch.levels()[-1] if functorch.levels() else functorch.VMAP
    if kind == functorch.VMAP:
        return None
    if primitive.rule is None and primitive.has_rule:
        wrt = [i for i, a in enumerate(args) if differentiable(a) and functorch.watched_here(a)]
        return _OfContents(primitive, tuple(wrt), forward_mode=kind == functorch.JVP)
    return primitive.rule


class _OfContents(Rule):
    """The rule of a primitive in which functions with custom rules are called."""

    def __init__(self, primitive: Primitive, wrt: tuple[int, ...], forward_mode: bool):
        self._primitive, self._wrt, self._forward_mode = primitive, wrt, forward_mode

    def forward(self, *args: Tensor) -> list[Tensor]:
        return bind(self._primitive.with_fwd_rules(self._wrt, self._forward_mode), args)

    def gradients(
        self, kept: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> tuple[Sequence[int], Sequence[Tensor | None]]:
        return self._wrt, self._primitive.vjp(kept, cts, self._wrt)

    def jvp(
        self, kept: Sequence[Tensor], tangents: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        found = zip(self._primitive.jvp(kept, tangents), self._primitive.outputs, strict=True)
        return [
            absent_tangent(o) if t is None else t.clone(memory_format=torch.contiguous_format)
            for t, o in found
        ]


class _Below(Rule):
    """The rule of a primitive that the innermost level does not watch."""

    def __init__(self, primitive: Primitive):
        self._primitive = primitive

    def forward(self, *args: Tensor) -> list[Tensor]:
        return bind(self._primitive, args)

    def keep(self, args: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return ()


def ad_depth(args: Sequence[Tensor]) -> int:
    """The transforms active at a call: 0 none, 1 exactly one gradient, on top, 2 anything else."""
    with values.unseen():  # Each read would pass the mode of a trace.
        grad = torch.is_grad_enabled() and any(functorch.innermost(a).requires_grad for a in args)
        if functorch.any_dual(*args):
            return 2
    levels = functorch.levels()
    if not levels:
        return int(grad)
    order = levels.count(functorch.GRAD) + levels.count(functorch.JVP) + grad
    return 1 if order == 1 and levels[-1] == functorch.GRAD else 2


def or_zeros(x: Tensor | None, aval: Shaped) -> Tensor:
    """A tangent or a cotangent; None is zero."""
    return zeros(aval) if x is None else x


def zeros(aval: Shaped) -> Tensor:
    """Zeros on the device: a constant in a trace."""
    if tracing.current() is None:
        return runtime().to_device(torch.zeros(tuple(aval.shape), dtype=aval.dtype))
    return torch.zeros(tuple(aval.shape), dtype=aval.dtype, device=recorder.device())
