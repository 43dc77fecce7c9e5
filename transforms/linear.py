"""`closure_convert` and `linear_transpose`: a function's closed-over values, and its adjoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from xfunc import tree
from xfunc.core.avals import ShapeDtypeStruct, aval_of, short
from xfunc.core.locations import described, function_name
from xfunc.core.wrappers import Part
from xfunc.errors import fail, short_repr
from xfunc.program.bind import bind
from xfunc.program.program import differentiable
from xfunc.stages.arguments import avals_of
from xfunc.stages.checks import Fun, Tensor, arrays, as_tensors, check_same, labels_in
from xfunc.stages.staging import Staged
from xfunc.transforms.vjp import vjp
from xfunc.tree import PyTree

R = TypeVar("R")


def closure_convert(
    fun: Callable[..., R], *example_args: object
) -> tuple[Callable[..., R], list[Tensor]]:
    """`fun` as a function that takes its closed-over values as arguments, and those values.

    Args:
        fun: a function of trees of tensors, traced here.
        example_args: arguments of the shapes and dtypes that it will be called with.

    Returns:
        ``(converted, consts)``: ``converted(*args, *consts)`` is ``fun(*args)``. `consts` only
        contains values that may be differentiated; other tensors stay inside.

    Source: ``jax.closure_convert``.
    """
    name = f"closure_convert({function_name(fun)})"
    args = as_tensors(example_args)
    leaves, structure = tree.flatten((args, {}))
    leaves = arrays(leaves, name, labels_in(args, "arguments"))
    entry, held = Staged(fun, value=Part(fun, "closure")).find(structure, avals_of(leaves))
    inside = entry.inputs(leaves, held)[len(leaves) :]
    moved = [i for i, c in enumerate(inside) if differentiable(c)]
    n, like = len(args), tree.unflatten(structure, [aval_of(x) for x in leaves])[0]

    def converted(*args_and_consts: object) -> PyTree:
        given, consts = args_and_consts[:n], args_and_consts[n:]
        if len(consts) != len(moved):
            fail(
                TypeError,
                f"{name} was called with {len(consts)} values of what it closes over, but it "
                f"closes over {len(moved)}",
                "call it with (*args, *consts).",
            )
        given = as_tensors(given)
        check_same(
            given,
            like,
            what="the arguments and the example arguments",
            name=name,
            hint="convert the function for each kind of arguments.",
        )
        captures: list[PyTree] = list(inside)
        for i, c in zip(moved, consts, strict=True):
            captures[i] = c
        outs = bind(entry.call, [*tree.leaves(given), *captures])
        return entry.out_tree.unflatten(outs)

    return converted, [inside[i] for i in moved]


def linear_transpose(fun: Fun, *primals: object) -> Callable[[object], tuple[PyTree, ...]]:
    """The transpose of a linear function: from a cotangent of its result to those of its arguments.

    Args:
        fun: a linear function of trees of floating tensors.
        primals: arguments; only their structure, shapes and dtypes matter (`ShapeDtypeStruct`).

    Returns:
        A function of a tree like the result of `fun` that returns a tuple of trees like `primals`.

    Raises:
        TypeError: `fun` is not linear.

    Source: ``jax.linear_transpose``.
    """
    leaves, structure = tree.flatten(primals)
    made = [x if isinstance(x, ShapeDtypeStruct) else as_tensors(x) for x in leaves]
    whole = tree.structure((primals, {}))
    for label, x in zip(Staged(fun).labels(whole), made, strict=True):
        if not isinstance(x, torch.Tensor | ShapeDtypeStruct):
            fail(
                TypeError,
                f"linear_transpose of {described(fun)}: {label} is {short_repr(x)}, not an array",
                "bind what is no array, with functools.partial.",
            )
    avals = [aval_of(x) for x in made]
    _check_linear(fun, avals, whole)

    def transposed(ct: object) -> tuple[PyTree, ...]:
        where = next((x.device for x in tree.leaves(ct) if isinstance(x, torch.Tensor)), None)
        zeros = [torch.zeros(a.shape, dtype=a.dtype, device=where) for a in avals]
        return vjp(fun, *tree.unflatten(structure, zeros))[1](ct)

    return transposed


def _check_linear(fun: Fun, avals: Sequence[ShapeDtypeStruct], structure: tree.Structure) -> None:
    """Raise unless the derivative is the same everywhere."""
    entry, _ = Staged(fun, value=Part(fun, "linear")).find(structure, avals_of(avals))
    program, n = entry.program, len(avals)
    for i, a in enumerate((*avals, *entry.outputs)):
        if not differentiable(a):
            what = f"argument leaf {i}" if i < n else f"result leaf {i - n}"
            fail(
                TypeError,
                f"linear_transpose of {described(fun)}: {what} is {short(a)}, not floating",
                "transpose a function of floating arrays.",
            )
    pullback = program.pullback(tuple(range(n)), tuple(range(len(entry.outputs))))
    used = {i for read in pullback.lowering.dependencies for i in read if i < n}
    if used:
        path = structure.accessors()[min(used)][1:].codify("")
        fail(
            TypeError,
            f"linear_transpose of {described(fun)}, which is not linear in argument {path}",
            "use vjp, which takes the point at which to differentiate.",
        )
