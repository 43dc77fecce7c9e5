# torch declares the rules of a Function with the arguments of its own examples.
# pyright: reportIncompatibleMethodOverride=false
"""Applying primitives, so that every transform of torch.func finds its rule.

A `Primitive` is something that has HLO and knows how it is differentiated and batched: a `Program`
(`xfunc.call.Call`), or a loop over one, or a choice. `bind` applies one. If nobody watches
the arguments that is one HLO call; otherwise it goes through one of three
``torch.autograd.Function``, whose rules end in another `bind`, so that grad of grad, vmap of grad,
jvp of grad and so on compose without further code.

NOTE [two ways to differentiate]: reverse mode of first order runs a `Pair`: the forward half of
the joint program keeps residuals, the backward half uses them. Halves exist as HLO only and can't
be differentiated again. Where the backward pass is itself being differentiated, `Primitive.vjp` is
used: it computes everything again from the inputs, in operations that have rules.

NOTE [vmap below grad]: with per-example gradients (vmap of grad) torch.func hands the forward pass
of an `_Application` to the vmap rule. The rule runs the pair of the batched joint program instead,
and notes it, with the depth of its level, in the application. What that pair keeps is opaque to
the level above, so residuals are passed as unbatched. When the backward pass comes to its vmap
rule it finds the note; if there is none, the batching is of the pullback alone (as in jacrev), and
since residuals can't be batched the gradients are computed from the inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from xfunc import batching, functorch, promotion, runtime, tracing, values
from xfunc.avals import Aval
from xfunc.program import differentiable
from xfunc.uploads import to_device

Tensor = torch.Tensor
Dims = tuple[int | None, ...]


class Pair(Protocol):
    """A forward pass that keeps residuals, and the backward pass that uses them."""

    @property
    def wrt(self) -> tuple[int, ...]:
        """The inputs that get a gradient."""
        ...

    @property
    def n_outputs(self) -> int:
        """How many of the results of `forward` are outputs."""
        ...

    @property
    def cts(self) -> tuple[int, ...]:
        """The outputs that depend, differentiably, on the inputs in `wrt`."""
        ...

    def forward(self, args: Sequence[Tensor]) -> list[Tensor]:
        """Outputs, then residuals."""
        ...

    def backward(
        self, args: Sequence[Tensor], residuals: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> list[Tensor]:
        """Gradients of the inputs in `wrt`; a cotangent None is zero."""
        ...

    def batched(self, dims: Dims, n: int) -> tuple[Pair, Dims, Dims, Dims]:
        """The pair of the batched program; batch dimensions of args, outputs, gradients."""
        ...


class Primitive(Protocol):
    """Something that `bind` can apply."""

    @property
    def outputs(self) -> tuple[Aval, ...]:
        """Avals of the results."""
        ...

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        """Apply to plain tensors."""
        ...

    def pair(self, wrt: tuple[bool, ...]) -> Pair | None:
        """The two passes for gradients with respect to the inputs marked; None: `vjp` serves."""
        ...

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        """Gradients of the inputs in `wrt`, differentiable again."""
        ...

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Tangents of the outputs."""
        ...

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        """Outputs of the vmap, and their batch dimensions."""
        ...


def bind(primitive: Primitive, args: Sequence[Tensor]) -> list[Tensor]:
    """Apply a primitive to tensors, whatever transforms are watching them."""
    if not primitive.outputs:
        return []
    trace = tracing.current()
    if trace is not None:  # First: what the trace stands in for, it knows by its wrapper.
        args = [_on_device(trace.lift(a)) for a in args]
    args = alive(args)
    outputs = _dispatch(primitive, args)
    if trace is not None:
        trace.register(outputs)
        trace.has_rule |= getattr(primitive, "has_rule", False)
    return outputs


def _on_device(x: Any) -> Any:
    """A value of a trace; one that was made there on the CPU is moved, as torch_xla's own do."""
    return to_device(x) if x is not None and x.device.type == "cpu" else x


def alive(args: Sequence[Any]) -> list[Any]:
    """Tensors without the wrappers of levels of torch.func that have ended.

    A pullback of torch.func.vjp runs when the level it belongs to is over.
    """
    return [a if a is None else functorch.unwrap_if_dead(a) for a in args]


def _dispatch(primitive: Primitive, args: Sequence[Tensor]) -> list[Tensor]:
    watched = differentiations(args)
    if watched == 0:
        return primitive.emit([a if a is None else promotion.as_said(a) for a in args])
    if watched == 1:  # See NOTE [two ways to differentiate].
        wrt = tuple(differentiable(a) and values.is_tracked(a) for a in args)
        if any(wrt) and (pair := primitive.pair(wrt)) is not None:
            application = _Application(primitive, pair)
            return list(_apply(_PairFunction, application, *args))[: len(primitive.outputs)]
    rule = _rule_of(primitive)
    if rule is not None:
        # What is below the innermost level that watches it sees what the rule does, as in JAX.
        if any(map(functorch.watched_here, args)):
            return list(functorch.apply_here(rule, args))[: len(primitive.outputs)]
        return list(functorch.apply_here(_Below(primitive), args))
    return list(_apply(_PrimitiveFunction, primitive, *args))


def _rule_of(primitive: Any) -> Any:
    """How the innermost level differentiates a primitive with rules of its own, or inside it."""
    kind = functorch.levels()[-1] if functorch.levels() else functorch.VMAP
    if kind != functorch.VMAP and hasattr(primitive, "rule"):
        return primitive.rule
    if kind == functorch.GRAD and getattr(primitive, "has_rule", False):
        return _Gradient(primitive)
    return None


class _Gradient:
    """The rule of a primitive in which custom_vjp functions are called, at a gradient's level."""

    def __init__(self, primitive: Any):
        self._primitive = primitive

    def forward(self, *args: Tensor) -> list[Tensor]:
        return bind(self._primitive.below_gradient(), args)

    def keep(self, args: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(args)

    def backward(self, kept: Sequence[Tensor], cts: Sequence[Tensor | None]) -> Any:
        if all(c is None for c in cts):
            return (None,) * len(kept)
        wrt = tuple(i for i, a in enumerate(kept) if differentiable(a))
        found: dict[int, Tensor] = dict(zip(wrt, self._primitive.vjp(kept, cts, wrt), strict=True))
        return tuple(found.get(i) for i in range(len(kept)))


class _Below:
    """The rule of a primitive that the innermost level does not watch."""

    def __init__(self, primitive: Primitive):
        self._primitive = primitive

    def forward(self, *args: Tensor) -> list[Tensor]:
        return bind(self._primitive, args)

    def keep(self, args: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return ()


def differentiations(args: Sequence[Tensor]) -> int:
    """Who watches a call: 0 nobody, 1 exactly one gradient and on top, 2 anything else."""
    grad = torch.is_grad_enabled() and any(_base_requires_grad(a) for a in args)
    levels = functorch.levels()
    if not levels:
        return int(grad)
    order = levels.count(functorch.GRAD) + levels.count(functorch.JVP) + grad
    return 1 if order == 1 and levels[-1] == functorch.GRAD else 2


def _is_watched_below(cts: Sequence[Tensor | None]) -> bool:
    return any(c is not None and _base_requires_grad(c) for c in cts)


def _base_requires_grad(t: Tensor) -> bool:
    while functorch.is_wrapped(t):
        t = functorch.unwrapped(t)
    return t.requires_grad


def _apply(function: type[torch.autograd.Function], *operands: Any) -> Any:
    # Straight to the higher-order operator: `Function.apply` would inspect signatures first.
    return functorch.custom_function_call(function, *operands)


class _PrimitiveFunction(torch.autograd.Function):
    """Any order, any mode: every rule binds again."""

    @staticmethod
    def forward(primitive: Primitive, *args: Tensor) -> tuple[Tensor, ...]:
        return tuple(primitive.emit(args))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.primitive = inputs[0]
        ctx.strides = [o.stride() for o in output]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(o for o in output if not differentiable(o)))
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *cts: Tensor | None) -> Any:
        args = alive(ctx.saved_tensors)
        return _differentiable_backward(ctx, ctx.primitive, args, alive(cts))

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Any:
        def push(args: Sequence[Tensor], dots: Sequence[Tensor | None]) -> Any:
            found = ctx.primitive.jvp(args, dots)
            return tuple(_contiguous(t, s) for t, s in zip(found, ctx.strides, strict=True))

        return functorch.below_jvp(push, ctx.saved_tensors, tangents)

    @staticmethod
    def vmap(info: Any, in_dims: Any, primitive: Primitive, *args: Tensor) -> Any:
        outputs, dims = primitive.batch(tuple(in_dims[1:]), info.batch_size, args)
        return tuple(outputs), tuple(dims)


def _contiguous(tangent: Tensor | None, strides: tuple[int, ...]) -> Tensor | None:
    # torch copies a tangent whose strides are not those of its primal, by an operation
    # (as_strided) that torch_xla cannot trace.
    if tangent is None or tangent.stride() == strides:
        return tangent
    return tangent.clone(memory_format=torch.contiguous_format)


@dataclasses.dataclass(eq=False)
class _Application:
    """One call of a primitive that is being differentiated; see NOTE [vmap below grad].

    Of a pair that was batched, the primitive is not known.
    """

    primitive: Primitive | None
    pair: Pair
    batched: tuple[int, _Application, Dims, Dims, Dims] | None = None


class _PairFunction(torch.autograd.Function):
    """Reverse mode of first order: outputs, then residuals."""

    @staticmethod
    def forward(application: _Application, *args: Tensor) -> tuple[Tensor, ...]:
        return tuple(application.pair.forward(args))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.application, args = inputs[0], inputs[1:]
        pair = ctx.application.pair
        n = pair.n_outputs
        ctx.n_args = len(args)
        ctx.plain = functorch.top_level() is None
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(o for i, o in enumerate(output) if i not in pair.cts))
        ctx.save_for_backward(*args, *output[n:])

    @staticmethod
    def backward(ctx: Any, *cts: Any) -> Any:
        application, n = ctx.application, ctx.n_args
        pair = application.pair
        saved = alive(ctx.saved_tensors)
        args, residuals, given = saved[:n], saved[n:], alive(cts[: pair.n_outputs])
        if torch.is_grad_enabled() and (ctx.plain or _is_watched_below(given)):
            # Plain autograd with create_graph=True; or the cotangents depend on what a gradient
            # further down is taken of, and the arguments do not.
            assert application.primitive is not None, "a batched pair is no leaf of a gradient"
            return _differentiable_backward(ctx, application.primitive, args, given)
        if all(c is None for c in given):
            return (None,) * (n + 1)
        grads = _apply(_BackwardFunction, application, n, len(residuals), *saved, *given)
        full: list[Tensor | None] = [None] * n
        for i, g in zip(pair.wrt, grads, strict=True):
            full[i] = g
        return (None, *full)

    @staticmethod
    def vmap(info: Any, in_dims: Any, application: _Application, *args: Tensor) -> Any:
        # See NOTE [vmap below grad].
        n = info.batch_size
        pair, arg_dims, out_dims, grad_dims = application.pair.batched(tuple(in_dims[1:]), n)
        inner = _Application(None, pair)
        application.batched = (_depth(), inner, arg_dims, out_dims, grad_dims)
        outs = _apply(_PairFunction, inner, *_moved(args, in_dims[1:], arg_dims, n))
        return outs, (*out_dims, *(None for _ in outs[len(out_dims) :]))


class _BackwardFunction(torch.autograd.Function):
    """The backward half of a pair."""

    @staticmethod
    def forward(
        application: _Application, n_args: int, n_residuals: int, *flat: Tensor | None
    ) -> Any:
        n = n_args + n_residuals
        args: Any = flat[:n_args]
        residuals: Any = flat[n_args:n]
        return tuple(application.pair.backward(args, residuals, flat[n:]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *cts: Any) -> Any:
        return (None,) * len(ctx.needs_input_grad)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Any,
        application: _Application,
        n_args: int,
        n_residuals: int,
        *flat: Tensor | None,
    ) -> Any:
        dims, n = in_dims[3:], info.batch_size
        if application.batched is None or application.batched[0] != _depth():
            pullback = _batched_pullback if application.primitive else _batched_again
            return pullback(application, n_args, n_residuals, flat, dims, n)
        _, inner, arg_dims, out_dims, grad_dims = application.batched
        wanted = (*arg_dims, *(None for _ in range(n_residuals)), *out_dims)
        moved = _moved(flat, dims, wanted, n)
        return _apply(_BackwardFunction, inner, n_args, n_residuals, *moved), grad_dims


def _depth() -> int:
    return len(functorch.levels())


def _batched_pullback(
    application: _Application,
    n_args: int,
    n_residuals: int,
    flat: Sequence[Tensor | None],
    dims: Sequence[int | None],
    n: int,
) -> Any:
    """Gradients of a batch of cotangents, computed from the inputs."""
    primitive = application.primitive
    assert primitive is not None
    used = [*range(n_args), *range(n_args + n_residuals, len(flat))]
    present = [i for i in used if flat[i] is not None]

    def pull(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(present, tensors, strict=True))
        args = [given[i] for i in range(n_args)]
        cts = [given.get(i) for i in range(n_args + n_residuals, len(flat))]
        return tuple(primitive.vjp(args, cts, application.pair.wrt))

    tensors: list[Any] = [flat[i] for i in present]
    grads = batching.vmap(tracing.current(), pull, [dims[i] for i in present], tensors)
    return grads, tuple(0 for _ in grads)


def _batched_again(
    application: _Application,
    n_args: int,
    n_residuals: int,
    flat: Sequence[Tensor | None],
    dims: Sequence[int | None],
    n: int,
) -> Any:
    """Likewise, of a pair that was batched at a level above: both of its passes are run."""
    pair, arg_dims, out_dims, grad_dims = application.pair.batched(tuple(dims[:n_args]), n)
    cts_from = n_args + n_residuals
    args = _moved(flat[:n_args], dims[:n_args], arg_dims, n)
    cts = _moved(flat[cts_from:], dims[cts_from:], out_dims, n)
    again = _Application(None, pair)
    kept = _apply(_PairFunction, again, *args)[len(out_dims) :]
    grads = _apply(_BackwardFunction, again, n_args, len(kept), *args, *kept, *cts)
    return grads, grad_dims


def _moved(
    tensors: Sequence[Tensor | None],
    dims: Sequence[int | None],
    wanted: Sequence[int | None],
    n: int,
) -> list[Tensor | None]:
    """`at_dim` of each tensor that there is."""
    return [
        t if t is None else at_dim(t, d, w, n)
        for t, d, w in zip(tensors, dims, wanted, strict=True)
    ]


def at_dim(t: Tensor, dim: int | None, wanted: int | None, n: int) -> Tensor:
    """`t` with its batch dimension where it is wanted; added, if it has none."""
    if wanted is None or dim == wanted:
        return t
    if dim is None:
        return t.unsqueeze(wanted).expand([*t.shape[:wanted], n, *t.shape[wanted:]])
    return t.movedim(dim, wanted)


def _differentiable_backward(
    ctx: Any, primitive: Primitive, args: Sequence[Tensor], cts: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    wrt = tuple(
        i
        for i, (a, need) in enumerate(zip(args, ctx.needs_input_grad[1:], strict=True))
        if need and differentiable(a)
    )
    full: list[Tensor | None] = [None] * len(args)
    if wrt and any(c is not None for c in cts):
        for i, g in zip(wrt, primitive.vjp(args, cts, wrt), strict=True):
            full[i] = g
    return (None, *full)


def zeros(aval: Any) -> Tensor:
    """Zeros on the device: a constant in a trace."""
    return torch.zeros(tuple(aval.shape), dtype=aval.dtype, device=runtime.device())
