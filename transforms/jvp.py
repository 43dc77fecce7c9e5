"""`jvp`: forward-mode differentiation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar, overload

import torch

from xfunc import tree
from xfunc.errors import fail
from xfunc.program.program import differentiable
from xfunc.stages.checks import (
    Fun,
    Tensor,
    arrays,
    as_tensors,
    check_callable,
    check_same,
    labels_in,
    split_results,
)
from xfunc.stages.transformed import CallableOrLambda, Transform
from xfunc.torchlib import functorch
from xfunc.tree import PyTree

R = TypeVar("R")
Aux = TypeVar("Aux")


@overload
def jvp(
    fun: CallableOrLambda[..., R],
    primals: Sequence[object],
    tangents: Sequence[object],
    has_aux: Literal[False] = False,
) -> tuple[R, R]: ...
@overload
def jvp(
    fun: CallableOrLambda[..., tuple[R, Aux]],
    primals: Sequence[object],
    tangents: Sequence[object],
    has_aux: Literal[True],
) -> tuple[R, R, Aux]: ...
@overload
def jvp(
    fun: Fun, primals: Sequence[object], tangents: Sequence[object], has_aux: bool
) -> tuple[PyTree, ...]: ...
def jvp(
    fun: Fun, primals: Sequence[object], tangents: Sequence[object], has_aux: bool = False
) -> tuple[PyTree, ...]:
    """The value of `fun` at `primals` and its derivative along `tangents`.

    Args:
        fun: a function of trees of tensors.
        primals: a tuple or list of arguments.
        tangents: for each argument a tree of the same structure, shapes and dtypes; where the
            argument is not floating, the tangent is ignored and may be anything of its shape.
        has_aux: whether `fun` returns ``(outputs, aux)``.

    Returns:
        ``(outputs, output_tangents)``, or ``(outputs, output_tangents, aux)``; the tangent of an
        output that is not floating is zero.

    Source: ``jax.jvp``.
    """
    check_callable(fun, "jvp", "jvp(fun, primals, tangents)")
    if not all(isinstance(given, (tuple, list)) for given in (primals, tangents)):
        fail(
            TypeError,
            "jvp needs a tuple of primals and a tuple of tangents",
            "write jvp(f, (x,), (t,)).",
        )
    return Jvp(fun, has_aux)(tuple(primals), tuple(tangents))


class Jvp(Transform[..., PyTree]):
    """``(primals, tangents) -> (outputs, output tangents)``."""

    def __init__(self, fun: Fun, has_aux: bool):
        self._has_aux = has_aux
        super().__init__(fun, has_aux, "jvp")

    def apply(self, primals: object, tangents: object) -> PyTree:
        primals, tangents = as_tensors(primals), as_tensors(tangents)
        found = push(self.fun, primals, tangents, self.__name__, self._has_aux)
        return found if self._has_aux else found[:2]


def push(
    fun: Fun, primals: object, tangents: object, name: str, has_aux: bool = False
) -> tuple[PyTree, PyTree, PyTree]:
    """`jvp` inside a trace: outputs, their tangents, aux."""
    flat_primals, structure = tree.flatten(primals)
    leaves = arrays(flat_primals, name, labels_in(primals, "primals"))
    dots = tangents_of(leaves, structure, tangents, name)
    floating = [i for i, d in enumerate(dots) if d is not None]
    out_trees: list[tree.Structure] = []
    picks: list[bool] = []

    def flat(*xs: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        full = list(leaves)
        for i, x in zip(floating, xs, strict=True):
            full[i] = x
        out, aux = split_results(fun(*tree.unflatten(structure, full)), fun, has_aux, name)
        outs, out_tree = tree.flatten(out)
        aux_leaves, aux_tree = tree.flatten(aux)
        out_trees[:] = [out_tree, aux_tree]
        picks[:] = map(differentiable, outs)
        smooth = tuple(o for o, p in zip(outs, picks, strict=True) if p)
        rest = (o for o, p in zip(outs, picks, strict=True) if not p)
        return smooth, (*rest, *aux_leaves)

    xs = tuple(leaves[i] for i in floating)
    ts = tuple(t for t in dots if t is not None)
    if xs:
        smooth, out_dots, rest = functorch.jvp(flat, xs, ts)
    else:
        smooth, rest = flat()
        out_dots = tuple(torch.zeros_like(o) for o in smooth)
    values, derivatives = iter(smooth), iter(out_dots)
    others = iter(rest)
    outs, tangents_out = list[Tensor](), list[Tensor]()
    for is_smooth in picks:
        o = next(values) if is_smooth else next(others)
        outs.append(o)
        tangents_out.append(next(derivatives) if is_smooth else torch.zeros_like(o))
    out_tree, aux_tree = out_trees
    return (
        tree.unflatten(out_tree, outs),
        tree.unflatten(out_tree, tangents_out),
        tree.unflatten(aux_tree, others),
    )


def tangents_of(
    leaves: list[Tensor], structure: tree.Structure, tangents: object, name: str
) -> list[Tensor | None]:
    """The checked tangent of each leaf; None for leaves that are not floating."""
    if tree.structure(tangents) != structure:
        check_same(
            tangents,
            tree.unflatten(structure, leaves),
            what="tangents and primals",
            name=name,
            hint="give a tangent for each leaf of the primals.",
        )
    pairs = zip(leaves, tree.leaves(tangents), strict=True)
    result: list[Tensor | None] = [t if differentiable(x) else None for x, t in pairs]
    smooth = [t if t is not None else x for t, x in zip(result, leaves, strict=True)]
    check_same(
        tree.unflatten(structure, smooth),
        tree.unflatten(structure, leaves),
        what="tangents and primals",
        name=name,
        root="tangents",
        hint="make tangents of the shapes and dtypes of the primals (torch.ones_like).",
    )
    return result
