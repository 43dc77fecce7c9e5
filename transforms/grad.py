"""`grad` and `value_and_grad`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

import torch

from xfunc import tree
from xfunc.core import ambient
from xfunc.core.avals import short
from xfunc.core.locations import described
from xfunc.errors import fail, kind_of
from xfunc.program import vma
from xfunc.stages.checks import (
    Fun,
    Tensor,
    as_results,
    check_floating,
    chosen,
    labels_of,
    not_chosen,
    split_aux,
)
from xfunc.stages.transformed import CallableOrLambda, Transform
from xfunc.torchlib import functorch
from xfunc.trace import tracing
from xfunc.transforms.checkpoint import checkpoint
from xfunc.tree import PyTree

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")


@overload
def grad(
    fun: CallableOrLambda[Concatenate[T, Q], object],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
) -> Transform[Concatenate[T, Q], T]: ...
@overload
def grad(
    fun: CallableOrLambda[P, object],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
) -> Transform[P, PyTree]: ...
def grad(
    fun: Callable[..., object], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Transform[..., PyTree]:
    """The gradient of a scalar function.

    Args:
        fun: returns a real floating scalar, or ``(scalar, aux)`` if `has_aux`.
        argnums: position, or positions, of the arguments to differentiate with respect to: trees
            of floating or complex tensors. The gradient of ``z = x + iy`` is ``df/dx + i df/dy``,
            as torch's; JAX's is the complex conjugate.
        has_aux: whether `fun` returns a second, undifferentiated result.

    Returns:
        A function of the same arguments that returns the gradient (a tree like the argument; a
        tuple of them if `argnums` is a sequence), or ``(gradient, aux)``.

    Raises:
        TypeError: the output is not a real floating scalar, or a differentiated input is not
            floating.

    Source: ``jax.grad``.
    """
    return ValueAndGrad(fun, argnums, has_aux, with_value=False)


@overload
def value_and_grad(
    fun: CallableOrLambda[Concatenate[T, Q], R],
    argnums: Literal[0] = 0,
    has_aux: Literal[False] = False,
) -> Transform[Concatenate[T, Q], tuple[R, T]]: ...
@overload
def value_and_grad(
    fun: CallableOrLambda[P, R],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
) -> Transform[P, tuple[R, PyTree]]: ...
def value_and_grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Transform[..., tuple[Any, PyTree]]:
    """Like `grad`, but returns ``(value, gradient)``, or ``((value, aux), gradient)``.

    Args:
        fun: see `grad`.
        argnums: see `grad`.
        has_aux: see `grad`.

    Returns:
        A function of the same arguments that returns such a pair: the value is a scalar, and the
        gradient a tree like the argument (a tuple of them if `argnums` is a sequence).

    Source: ``jax.value_and_grad``.
    """
    return ValueAndGrad(fun, argnums, has_aux, with_value=True)


def _plain(
    trace: tracing.Trace, flat: Fun, leaves: list[Tensor]
) -> tuple[Tensor, list[Tensor], tuple[Tensor, ...]]:
    """Value, gradients and aux by plain autograd, if nothing else differentiates.

    This is a third cheaper than torch.func.vjp, which wraps every tensor and always builds the
    graph of the backward pass too.
    """
    xs = trace.copies(leaves, tracked=True)
    with trace.plain_autograd():
        value, aux = flat(*xs)
        grads: list[Tensor | None] = [None] * len(xs)
        if value.requires_grad:
            ct = None
            if vma.checked():
                ct = vma.unreduced(torch.ones_like(value), vma.vma_of(value))
            with functorch.own_gradient():
                grads = list(torch.autograd.grad(value, xs, ct, allow_unused=True))
            if vma.checked():
                pairs = zip(grads, leaves, strict=True)
                grads = [g if g is None else vma.psum_unvarying(g, vma.vma_of(x)) for g, x in pairs]
    full = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)]
    return value.detach(), full, tuple(a.detach() for a in aux)


class ValueAndGrad(Transform[..., PyTree]):
    """The result of `grad` and `value_and_grad`."""

    def __init__(self, fun: Fun, argnums: int | Sequence[int], has_aux: bool, with_value: bool):
        name = "value_and_grad" if with_value else "grad"
        self._argnums = argnums if isinstance(argnums, int) else tuple(argnums)
        self._has_aux, self._with_value = has_aux, with_value
        super().__init__(fun, (self._argnums, has_aux, with_value), name)

    def static_scalars(self, structure: tree.Structure) -> Sequence[bool]:
        return not_chosen(self._argnums, structure)

    def apply(self, *args: object, **kwargs: object) -> PyTree:
        name = self.__name__
        args, kwargs, nums = chosen(self._argnums, args, kwargs, name)
        leaves, structure = tree.flatten([args[i] for i in nums])
        check_floating(leaves, labels_of(self.fun, args, nums), name)
        rest: list[tree.Structure] = []

        def call(*xs: Tensor) -> tuple[Tensor, PyTree]:
            full = list(args)
            for i, x in zip(nums, tree.unflatten(structure, xs), strict=True):
                full[i] = x
            out = self.fun(*full, **kwargs)
            value, aux = split_aux(out, self.fun, self._has_aux, name)
            return self._scalar(value), as_results(aux, name, "aux")

        override = ambient.override()
        run = checkpoint(call) if override is not None and override.whole else call

        def flat(*xs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            value, aux = run(*xs)
            aux_leaves, aux_tree = tree.flatten(aux)
            rest[:] = [aux_tree]
            return value, tuple(aux_leaves)

        trace = tracing.current()
        if not leaves:
            (value, aux), grads = flat(), ()
        elif trace is not None and trace.may_use_plain_autograd():
            value, grads, aux = _plain(trace, flat, leaves)
        else:
            value, pull, aux = vma.vjp(flat, *leaves)
            grads = pull(torch.ones_like(value))
        gradient = tree.unflatten(structure, grads)
        result = gradient[0] if isinstance(self._argnums, int) else tuple(gradient)
        aux = tree.unflatten(rest[0], aux)
        if self._with_value:
            return ((value, aux), result) if self._has_aux else (value, result)
        return (result, aux) if self._has_aux else result

    def _scalar(self, value: object) -> Tensor:
        if type(value) is float:
            value = torch.full((), value)
        if not isinstance(value, Tensor):
            what = kind_of(value)
        elif value.ndim or not value.dtype.is_floating_point:
            what = short(value)
        else:
            return value
        fail(
            TypeError,
            f"{self.__name__} needs a function that returns a real floating scalar, but "
            f"{described(self.fun)} returned {what}",
            "reduce it with .sum() or .mean(); use jacrev or vjp for other outputs, and "
            "has_aux=True to return other values as well.",
        )
