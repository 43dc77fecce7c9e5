"""`jacfwd`, `jacrev` and `hessian`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeAlias, cast

import torch

from xfunc import tree
from xfunc.program import vma
from xfunc.stages.checks import (
    Fun,
    Tensor,
    check_differentiable,
    check_floating,
    chosen,
    labels_of,
    not_chosen,
    split_results,
)
from xfunc.stages.transformed import CallableOrLambda, Transform
from xfunc.torchlib import functorch
from xfunc.tree import Function, PyTree

P = ParamSpec("P")
Flat: TypeAlias = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]  # outputs and aux


def jacfwd(
    fun: CallableOrLambda[P, object],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
) -> Transform[P, PyTree]:
    """The Jacobian of `fun`, column by column, in forward mode.

    Args:
        fun: a function of trees of tensors.
        argnums: position, or positions, of the arguments to differentiate with respect to.
        has_aux: whether `fun` returns ``(out, aux)``.

    Returns:
        A function that returns, in place of each output leaf of shape ``o``, a tree like the
        argument (a tuple of them if `argnums` is a sequence) with leaves of shape ``o + i``, where
        ``i`` is the input leaf's shape; with `has_aux`, ``(jacobian, aux)``.

    Source: ``jax.jacfwd``.
    """
    return Jacobian(fun, argnums, has_aux, forward=True)


def jacrev(
    fun: CallableOrLambda[P, object],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
) -> Transform[P, PyTree]:
    """The Jacobian of `fun`, row by row, in reverse mode; see `jacfwd`.

    Args:
        fun: a function of trees of tensors.
        argnums: position, or positions, of the arguments to differentiate with respect to.
        has_aux: whether `fun` returns ``(out, aux)``.

    Returns:
        A function of the same arguments that returns, in place of each output leaf of shape ``o``,
        a tree like the argument (a tuple of them if `argnums` is a sequence) with leaves of shape
        ``o + i``, where ``i`` is the input leaf's shape; with `has_aux`, ``(jacobian, aux)``.

    Source: ``jax.jacrev``.
    """
    return Jacobian(fun, argnums, has_aux, forward=False)


jacobian = jacrev


def hessian(
    fun: CallableOrLambda[P, object],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
) -> Transform[P, PyTree]:
    """The matrix of second derivatives: ``jacfwd(jacrev(fun))``.

    Args:
        fun: a function of trees of tensors.
        argnums: position, or positions, of the arguments to differentiate with respect to.
        has_aux: whether `fun` returns ``(out, aux)``.

    Returns:
        A function of the same arguments that returns, in place of each output leaf of shape ``o``,
        a tree like the argument, whose leaves are trees like the argument, with leaves of shape
        ``o + i + j``, where ``i`` and ``j`` are the shapes of input leaves. If `argnums` is a
        sequence, a tuple of trees takes the place of each tree. With `has_aux`, ``(hessian, aux)``.

    Source: ``jax.hessian``.
    """
    return jacfwd(jacrev(fun, argnums, has_aux), argnums, has_aux)


class Jacobian(Transform[..., PyTree]):
    """The result of `jacfwd` and `jacrev`."""

    def __init__(self, fun: Fun, argnums: int | Sequence[int], has_aux: bool, forward: bool):
        self._argnums = argnums if isinstance(argnums, int) else tuple(argnums)
        self._has_aux, self._forward = has_aux, forward
        options = (self._argnums, has_aux, forward)
        super().__init__(fun, options, "jacfwd" if forward else "jacrev")

    def static_scalars(self, structure: tree.Structure) -> Sequence[bool]:
        return not_chosen(self._argnums, structure)

    def apply(self, *args: object, **kwargs: object) -> PyTree:
        args, kwargs, nums = chosen(self._argnums, args, kwargs, self.__name__)
        leaves, structure = tree.flatten([args[i] for i in nums])
        check_floating(leaves, labels_of(self.fun, args, nums), self.__name__, real=True)
        trees: list[tree.Structure] = []

        def flat(*xs: Tensor) -> Flat:
            full = list(args)
            for i, x in zip(nums, tree.unflatten(structure, xs), strict=True):
                full[i] = x
            out = self.fun(*full, **kwargs)
            out, aux = split_results(out, self.fun, self._has_aux, self.__name__)
            outs, out_tree = tree.flatten(out)
            check_differentiable(outs, out_tree, self.fun, self.__name__)
            aux_leaves, aux_tree = tree.flatten(aux)
            trees[:] = [out_tree, aux_tree]
            return tuple(outs), tuple(aux_leaves)

        columns = _forward if self._forward else _reverse
        if leaves:
            blocks, aux = columns(flat, leaves)
        else:
            outs, aux = flat()
            blocks = [list[Tensor]() for _ in outs]
        out_tree, aux_tree = trees
        per_output: list[PyTree] = []
        for row in blocks:
            picked = tree.unflatten(structure, row)
            per_output.append(picked[0] if isinstance(self._argnums, int) else tuple(picked))
        jacobian = tree.unflatten(out_tree, per_output)
        return (jacobian, tree.unflatten(aux_tree, aux)) if self._has_aux else jacobian


_vmap = cast("Callable[..., Function]", torch.func.vmap)  # pyright: ignore[reportUnknownMemberType]


def _basis(x: Tensor) -> Tensor:
    """One-hot tensors of the shape of `x`, stacked along a new first axis."""
    n = x.numel()
    return torch.eye(n, dtype=x.dtype, device=x.device).reshape(n, *x.shape)


def _forward(
    flat: Callable[..., Flat], leaves: list[Tensor]
) -> tuple[list[list[Tensor]], tuple[Tensor, ...]]:
    columns: list[list[Tensor]] = []
    aux: tuple[Tensor, ...] = ()
    # Aux does not depend on the tangent. Not -1: for an output that does not either, torch reads
    # beyond its shape.
    out_dims = (0, None)
    for i, x in enumerate(leaves):
        if not x.numel():  # torch's vmap takes no batch of nothing.
            outs, aux = flat(*leaves)
            columns.append([o.new_zeros((*o.shape, *x.shape)) for o in outs])
            continue

        def push(tangent: Tensor, i: int = i) -> Flat:
            def along(xi: Tensor) -> Flat:
                return flat(*leaves[:i], xi, *leaves[i + 1 :])

            _, dots, aux = functorch.jvp(along, (leaves[i],), (tangent,))
            return dots, aux

        dots, aux = _vmap(push, out_dims=out_dims)(_basis(x))
        columns.append([d.movedim(0, -1).reshape((*d.shape[1:], *x.shape)) for d in dots])
    return [list(row) for row in zip(*columns, strict=True)], aux


def _reverse(
    flat: Callable[..., Flat], leaves: list[Tensor]
) -> tuple[list[list[Tensor]], tuple[Tensor, ...]]:
    """Row by row. The pullback of a complex output along ``e`` is the real part of its row, that
    along ``1j * e`` the imaginary part.
    """
    outs, pull, aux = vma.vjp(flat, *leaves)
    rows: list[list[Tensor]] = []
    for i, o in enumerate(outs):
        if not o.numel():
            rows.append([x.new_zeros((*o.shape, *x.shape)) for x in leaves])
            continue
        zeros = [torch.zeros_like(p) for p in outs]

        def pull_row(ct: Tensor, i: int = i, zeros: list[Tensor] = zeros) -> tuple[Tensor, ...]:
            return pull((*zeros[:i], ct, *zeros[i + 1 :]))

        grads = _vmap(pull_row)(_basis(o))
        if o.dtype.is_complex:
            grads = list(map(torch.complex, grads, _vmap(pull_row)(1j * _basis(o))))
        rows.append([g.reshape((*o.shape, *x.shape)) for g, x in zip(grads, leaves, strict=True)])
    return rows, aux
