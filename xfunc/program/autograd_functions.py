# torch declares the rules of a Function with specific argument lists.
# pyright: reportIncompatibleMethodOverride=false
"""Primitives as ``torch.autograd.Function``, for watched calls: see `xfunc.program.bind`.

NOTE [vmap below grad]: with per-example gradients (vmap of grad) torch.func hands the forward pass
of an `Application` to the vmap rule, which runs the reverse rule of the batched joint program
instead, and records it, with the depth of its level, in the application. The residuals of that rule
are opaque to the level above, so they are passed as unbatched. When the backward pass reaches its
vmap rule, it finds the record; if there is none, only the pullback is batched (as in jacrev), and
since residuals can't be batched, the gradients are computed from the inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol, TypeAlias, cast

import torch

from xfunc.backends.active import runtime, using_runtime
from xfunc.backends.protocol import Runtime
from xfunc.core.avals import Aval
from xfunc.core.types import AutogradContext
from xfunc.program.primitive import Dims, Primitive, ReverseRule, Tensor, scatter_to_inputs
from xfunc.program.program import differentiable
from xfunc.torchlib import batching, functorch
from xfunc.torchlib.batching import at_dim
from xfunc.trace import recorder, tracing
from xfunc.tree import Leaf

Gradients: TypeAlias = Sequence[Tensor | None]


class _VmapInfo(Protocol):
    batch_size: int


class _PrimitiveContext(AutogradContext, Protocol):
    runtime: Runtime
    primitive: Primitive
    strides: list[tuple[int, ...]]


class _ReverseRuleContext(AutogradContext, Protocol):
    runtime: Runtime
    application: Application
    n_args: int
    plain: bool


def unwrap_dead(args: Sequence[Leaf]) -> list[Leaf]:
    """Tensors without the wrappers of torch.func levels that have ended.

    A pullback of torch.func.vjp runs after the level it belongs to has ended.
    """
    return [a if a is None else functorch.unwrap_if_dead(a) for a in args]


def apply(function: type[torch.autograd.Function], *operands: object) -> tuple[Leaf, ...]:
    """``function.apply(*operands)``."""
    # Straight to the higher-order operator: `Function.apply` would inspect signatures first.
    return functorch.custom_function_call(function, *operands)


class PrimitiveFunction(torch.autograd.Function):
    """Any order, any mode: every rule binds again."""

    @staticmethod
    def forward(primitive: Primitive, *args: Tensor) -> tuple[Tensor, ...]:
        return tuple(primitive.emit(args))

    @staticmethod
    def setup_context(
        ctx: _PrimitiveContext, inputs: tuple[Leaf, ...], output: tuple[Tensor, ...]
    ) -> None:
        ctx.primitive, ctx.runtime = inputs[0], runtime()
        ctx.strides = [o.stride() for o in output]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(o for o in output if not differentiable(o)))
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: _PrimitiveContext, *cts: Tensor | None) -> tuple[Tensor | None, ...]:
        args = unwrap_dead(ctx.saved_tensors)
        return using_runtime(
            ctx.runtime, _differentiable_backward, ctx, ctx.primitive, args, unwrap_dead(cts)
        )

    @staticmethod
    def jvp(ctx: _PrimitiveContext, _: None, *tangents: Tensor | None) -> Gradients:
        primitive = ctx.primitive
        pushed = zip(
            primitive.jvp(ctx.saved_tensors, tangents), primitive.outputs, ctx.strides, strict=True
        )
        return tuple(absent_tangent(o) if t is None else _contiguous(t, s) for t, o, s in pushed)

    @staticmethod
    def vmap(
        info: _VmapInfo, in_dims: Dims, primitive: Primitive, *args: Tensor
    ) -> tuple[tuple[Tensor, ...], Dims]:
        outputs, dims = primitive.batch(tuple(in_dims[1:]), _size(info), args)
        return tuple(outputs), tuple(dims)


def absent_tangent(output: Aval) -> Tensor | None:
    """A tangent that torch treats as absent: zeros that stay zero when multiplied by infinity."""
    if not differentiable(output):
        return None
    if tracing.current() is None:  # torch.func.jvp of a jitted function
        return runtime().to_device(torch.zeros(output.shape, dtype=output.dtype, device="cpu"))
    return functorch.zero_tensor(output.shape, output.dtype, recorder.device())


def _contiguous(tangent: Tensor, strides: tuple[int, ...]) -> Tensor:
    # torch copies a tangent if its strides differ from those of its primal, by an operation
    # (as_strided) that has no rule.
    if tangent.stride() == strides:
        return tangent
    return tangent.clone(memory_format=torch.contiguous_format)


@dataclasses.dataclass(eq=False)
class Application:
    """One call of a primitive that is being differentiated; see NOTE [vmap below grad].

    For a batched rule, the primitive is unknown.
    """

    primitive: Primitive | None
    reverse_rule: ReverseRule
    batched: tuple[int, Application, Dims, Dims, Dims] | None = None


class ReverseRuleFunction(torch.autograd.Function):
    """First-order reverse mode: outputs, then residuals."""

    @staticmethod
    def forward(application: Application, *args: Tensor) -> tuple[Tensor, ...]:
        return tuple(application.reverse_rule.forward(args))

    @staticmethod
    def setup_context(
        ctx: _ReverseRuleContext, inputs: tuple[Leaf, ...], output: tuple[Tensor, ...]
    ) -> None:
        ctx.application, ctx.runtime, args = inputs[0], runtime(), inputs[1:]
        rule = ctx.application.reverse_rule
        n = rule.n_outputs
        ctx.n_args = len(args)
        ctx.plain = functorch.top_level() is None
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(o for i, o in enumerate(output) if i not in rule.cts))
        ctx.save_for_backward(*args, *output[n:])

    @staticmethod
    def backward(ctx: _ReverseRuleContext, *cts: Tensor | None) -> tuple[Tensor | None, ...]:
        return using_runtime(ctx.runtime, _gradients, ctx, unwrap_dead(ctx.saved_tensors), cts)

    @staticmethod
    def vmap(
        info: _VmapInfo, in_dims: Dims, application: Application, *args: Tensor
    ) -> tuple[tuple[Tensor, ...], Dims]:
        # See NOTE [vmap below grad].
        n = _size(info)
        rule, arg_dims, out_dims, grad_dims = application.reverse_rule.batched(
            tuple(in_dims[1:]), n
        )
        inner = Application(None, rule)
        application.batched = (_depth(), inner, arg_dims, out_dims, grad_dims)
        outs = apply(ReverseRuleFunction, inner, *_moved(args, in_dims[1:], arg_dims, n))
        return outs, (*out_dims, *(None for _ in outs[len(out_dims) :]))


def _gradients(
    ctx: _ReverseRuleContext, saved: Sequence[Tensor], cts: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """The backward pass of `ReverseRuleFunction`."""
    application, n = ctx.application, ctx.n_args
    rule = application.reverse_rule
    args, residuals, given = saved[:n], saved[n:], unwrap_dead(cts[: rule.n_outputs])
    twice = torch.is_grad_enabled() and (ctx.plain or _watched_below(given))
    if twice or functorch.any_dual(*args, *(c for c in given if c is not None)):
        # Plain autograd with create_graph=True, or in its forward mode; or the cotangents, but not
        # the arguments, depend on the variables of a gradient further down.
        assert application.primitive is not None, "a batched rule is no leaf of a gradient"
        return _differentiable_backward(ctx, application.primitive, args, given)
    if all(c is None for c in given):
        return (None,) * (n + 1)
    grads = apply(_BackwardFunction, application, n, len(residuals), *saved, *given)
    return (None, *scatter_to_inputs(n, rule.wrt, grads))


def _watched_below(cts: Sequence[Tensor | None]) -> bool:
    return any(c is not None and functorch.innermost(c).requires_grad for c in cts)


class _BackwardFunction(torch.autograd.Function):
    """The backward pass of a reverse rule."""

    @staticmethod
    def forward(
        application: Application, n_args: int, n_residuals: int, *flat: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        n = n_args + n_residuals
        args, residuals = (cast("tuple[Tensor, ...]", xs) for xs in (flat[:n_args], flat[n_args:n]))
        return tuple(application.reverse_rule.backward(args, residuals, flat[n:]))

    @staticmethod
    def setup_context(
        ctx: AutogradContext, inputs: object, output: tuple[Tensor | None, ...]
    ) -> None:
        ctx.mark_non_differentiable(*(o for o in output if o is not None))

    @staticmethod
    def backward(ctx: AutogradContext, *cts: object) -> tuple[None, ...]:
        return (None,) * len(ctx.needs_input_grad)

    @staticmethod
    def vmap(
        info: _VmapInfo,
        in_dims: Dims,
        application: Application,
        n_args: int,
        n_residuals: int,
        *flat: Tensor | None,
    ) -> tuple[Gradients, Dims]:
        dims, n = in_dims[3:], _size(info)
        if application.batched is None or application.batched[0] != _depth():
            pullback = _batched_pullback if application.primitive else _batched_nested
            return pullback(application, n_args, n_residuals, flat, dims, n)
        _, inner, arg_dims, out_dims, grad_dims = application.batched
        wanted = (*arg_dims, *(None for _ in range(n_residuals)), *out_dims)
        moved = _moved(flat, dims, wanted, n)
        grads = apply(_BackwardFunction, inner, n_args, n_residuals, *moved)
        return grads, _dims_of(grads, grad_dims)


def _size(info: _VmapInfo) -> int:
    return batching.size_below(tracing.current(), info.batch_size)


def _depth() -> int:
    return len(functorch.levels())


def _batched_pullback(
    application: Application,
    n_args: int,
    n_residuals: int,
    flat: Sequence[Tensor | None],
    dims: Sequence[int | None],
    n: int,
) -> tuple[Gradients, Dims]:
    """Gradients of a batch of cotangents, computed from the inputs."""
    primitive = application.primitive
    assert primitive is not None
    wrt = application.reverse_rule.wrt
    used = [*range(n_args), *range(n_args + n_residuals, len(flat))]
    present = [i for i in used if flat[i] is not None]
    found: list[int] = []

    def pull(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(present, tensors, strict=True))
        args = [given[i] for i in range(n_args)]
        cts = [given.get(i) for i in range(n_args + n_residuals, len(flat))]
        grads = primitive.vjp(args, cts, wrt)
        found[:] = [k for k, g in enumerate(grads) if g is not None]
        return tuple(g for g in grads if g is not None)

    tensors: list[Leaf] = [flat[i] for i in present]
    own = [dims[i] for i in present]
    own_grads = batching.vmap(tracing.current(), pull, own, tensors, batching.axes_of(n))
    grads = scatter_to_inputs(len(wrt), found, own_grads)
    return grads, _dims_of(grads, (0,) * len(wrt))


def _batched_nested(
    application: Application,
    n_args: int,
    n_residuals: int,
    flat: Sequence[Tensor | None],
    dims: Sequence[int | None],
    n: int,
) -> tuple[Gradients, Dims]:
    """The same for a rule that was batched at an outer level: runs both of its passes."""
    rule, arg_dims, out_dims, grad_dims = application.reverse_rule.batched(tuple(dims[:n_args]), n)
    cts_from = n_args + n_residuals
    args = _moved(flat[:n_args], dims[:n_args], arg_dims, n)
    cts = _moved(flat[cts_from:], dims[cts_from:], out_dims, n)
    again = Application(None, rule)
    kept = apply(ReverseRuleFunction, again, *args)[len(out_dims) :]
    grads = apply(_BackwardFunction, again, n_args, len(kept), *args, *kept, *cts)
    return grads, _dims_of(grads, grad_dims)


def _dims_of(grads: Sequence[Tensor | None], dims: Dims) -> Dims:
    """The batch dimensions of gradients, where there is one."""
    return tuple(None if g is None else d for g, d in zip(grads, dims, strict=True))


def _moved(
    tensors: Sequence[Tensor | None],
    dims: Sequence[int | None],
    wanted: Sequence[int | None],
    n: int,
) -> list[Tensor | None]:
    """`at_dim` of each tensor that is not None."""
    return [
        t if t is None else at_dim(t, d, w, n)
        for t, d, w in zip(tensors, dims, wanted, strict=True)
    ]


def _differentiable_backward(
    ctx: AutogradContext, primitive: Primitive, args: Sequence[Tensor], cts: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    wrt = tuple(
        i
        for i, (a, need) in enumerate(zip(args, ctx.needs_input_grad[1:], strict=True))
        if need and differentiable(a)
    )
    if not wrt or all(c is None for c in cts):
        return (None,) * (len(args) + 1)
    return (None, *scatter_to_inputs(len(args), wrt, primitive.vjp(args, cts, wrt)))
