"""`cond` and `switch`: run one of several functions, chosen by a traced value.

How a choice is differentiated and batched is in `switch_primitive`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, TypeVarTuple, overload

import torch

from xfunc import tree
from xfunc.core.avals import Aval, short
from xfunc.core.locations import described, function_name
from xfunc.core.types import ArrayLike
from xfunc.core.wrappers import Bundle, Part
from xfunc.errors import fail, kind_of, short_repr
from xfunc.program.bind import bind
from xfunc.program.primitive import Tensor
from xfunc.stages.arguments import avals_of
from xfunc.stages.checks import Fun, arrays, as_tensors, check_same, is_sequence, labels_in
from xfunc.stages.joined_inputs import SharedInputs
from xfunc.stages.staging import Staged, requires_grad_mask
from xfunc.stages.transformed import Transform
from xfunc.torchlib import functorch
from xfunc.torchlib.eager import is_eager
from xfunc.transforms.select_primitive import constant_unless
from xfunc.transforms.switch_primitive import Switch
from xfunc.tree import Leaf, NumberTree, PyTree

R = TypeVar("R")
Operands = TypeVarTuple("Operands")
S = TypeVar("S")


@overload  # See NOTE [types of lambdas] in `xfunc.tree`.
def cond(
    pred: ArrayLike,
    true_fun: Callable[..., R],
    false_fun: Callable[..., R],
    operand: NumberTree,
    /,
    *operands: PyTree,
) -> R: ...
@overload
def cond(
    pred: ArrayLike,
    true_fun: Callable[[*Operands], R],
    false_fun: Callable[[*Operands], R],
    *operands: *Operands,
) -> R: ...
@overload
def cond(
    pred: ArrayLike, true_fun: Callable[..., R], false_fun: Callable[..., R], *operands: PyTree
) -> R: ...
def cond(
    pred: ArrayLike, true_fun: Callable[..., R], false_fun: Callable[..., R], *operands: PyTree
) -> R:
    """``true_fun(*operands)`` if `pred`, else ``false_fun(*operands)``.

    Only the chosen function runs. Both are traced, and must return trees of the same structure,
    shapes and dtypes. Batched over `pred` (by `vmap`) both run and each example selects.

    Args:
        pred: a scalar boolean (or a number: whether it is not zero).
        true_fun: a pure function of trees of tensors; it may close over traced values.
        false_fun: likewise.
        operands: what the chosen function is called with.

    Returns:
        The result of the chosen function, of the shapes and dtypes that all of them return.

    Raises:
        TypeError: `pred` is not a scalar.
        TreeMismatchError: the two results differ; every path that does is listed.

    Source: ``jax.lax.cond``.
    """
    return Choice((false_fun, true_fun), "cond")(pred, *operands)


@overload
def switch(
    index: ArrayLike,
    branches: Sequence[Callable[..., R]],
    operand: NumberTree,
    /,
    *operands: PyTree,
) -> R: ...
@overload
def switch(
    index: ArrayLike, branches: Sequence[Callable[[*Operands], R]], *operands: *Operands
) -> R: ...
@overload
def switch(index: ArrayLike, branches: Sequence[Callable[..., R]], *operands: PyTree) -> R: ...
def switch(index: ArrayLike, branches: Sequence[Callable[..., R]], *operands: PyTree) -> R:
    """``branches[index](*operands)``, the index clamped into range.

    Args:
        index: an integer scalar.
        branches: at least one pure function; see `cond`.
        operands: what the chosen function is called with.

    Returns:
        The result of the chosen function, of the shapes and dtypes that all of them return.

    Raises:
        TypeError: `index` is not an integer scalar.
        ValueError: there are no branches.
        TreeMismatchError: the results differ; every path that does is listed.

    Source: ``jax.lax.switch``.
    """
    if not is_sequence(branches):
        fail(
            TypeError,
            f"switch was given {short_repr(branches)} ({kind_of(branches)}) as its branches",
            "pass a list of functions: switch(index, [f, g], x).",
        )
    if not branches:
        fail(ValueError, "switch has no branches", "give at least one function.")
    return Choice(tuple(branches), "switch")(index, *operands)


class Choice(Transform[..., PyTree]):
    """``(index or predicate, *operands) -> result``."""

    def __init__(self, funs: tuple[Fun, ...], kind: str):
        for f in funs:
            if not callable(f):
                fail(
                    TypeError,
                    f"{kind} was given {short_repr(f)} as a function, which is not callable",
                    "pass functions, and their arguments after them: "
                    f"{'cond(pred, f, g, x)' if kind == 'cond' else 'switch(i, [f, g], x)'}.",
                )
        self._funs, self._kind = funs, kind
        super().__init__(Bundle(funs), kind, kind)
        self.__name__ = f"{kind} of " + ", ".join(function_name(f) for f in self._in_order(funs))
        self._branches = [Staged(f, value=Part(f, "branch")) for f in funs]

    def _in_order(self, xs: Sequence[S]) -> Sequence[S]:
        """As the user wrote them: the function for true comes first."""
        return xs[::-1] if self._kind == "cond" else xs

    def apply(self, which: object, *operands: object) -> PyTree:
        name = self.__name__
        index = self._index(as_tensors(which))
        operands = as_tensors(operands)
        leaves, structure = tree.flatten((operands, {}))
        leaves = arrays(leaves, name, labels_in(operands, "operands"))
        if is_eager():
            return self._eager(index, operands)
        found = [
            b.find(structure, avals_of(leaves), requires_grad_mask(leaves)) for b in self._branches
        ]
        self._check_results([(e.out_tree, e.program.outputs) for e, _ in found])
        inputs = SharedInputs([index, *leaves])
        own = range(1, 1 + len(leaves))
        uses = tuple((*own, *inputs.add(entry, leaves, held)) for entry, held in found)
        programs = tuple(e.program for e, _ in found)
        outs = bind(Switch(programs, uses, inputs.avals), inputs.flat)
        # A value that all branches return unchanged does not depend on `which`.
        for k in range(len(outs)):
            passed = {None if (i := p.forwards[k]) is None else u[i]
                      for p, u in zip(programs, uses, strict=True)}  # fmt: skip
            if len(passed) == 1 and (place := passed.pop()) is not None:
                outs[k] = inputs.flat[place]
        return tree.unflatten(found[0][0].out_tree, outs)

    def _index(self, which: Leaf) -> Tensor:
        is_cond = self._kind == "cond"
        wanted = "a scalar boolean" if is_cond else "an integer scalar"
        ok = isinstance(which, Tensor) and which.ndim == 0
        if not is_cond:
            ok = ok and not which.dtype.is_floating_point and not which.dtype.is_complex
            ok = ok and which.dtype is not torch.bool
        if not ok:
            what = short(which) if isinstance(which, Tensor) else kind_of(which)
            fail(
                TypeError,
                f"{self.__name__}: the {'predicate' if is_cond else 'index'} is {what}, not "
                f"{wanted}",
                "reduce it with .any() or .all(), or use torch.where or xf.vmap to choose for "
                "each element."
                if is_cond
                else "pass an integer scalar.",
            )
        if is_cond:
            return (which != 0).to(torch.int32)
        return which.clamp(0, len(self._funs) - 1).to(torch.int32)

    def _check_results(self, found: Sequence[tuple[tree.Structure, Sequence[Aval]]]) -> None:
        want, *others = (tree.unflatten(*f) for f in found)
        names = [f"branch {k} ({described(f)})" for k, f in enumerate(self._funs)]
        if self._kind == "cond":
            roles = "false_fun", "true_fun"
            names = [f"{r} ({described(f)})" for r, f in zip(roles, self._funs, strict=True)]
        for name, got in zip(names[1:], others, strict=True):
            check_same(
                got,
                want,
                what=f"the results of {name} and {names[0]}",
                name=self._kind,
                root="result",
                hint="return the same structure, shapes and dtypes from every branch.",
            )

    def _eager(self, index: Tensor, operands: tuple[object, ...]) -> PyTree:
        """The result under `disable_jit`."""
        if functorch.is_batched(index):
            results = list[tuple[list[Leaf], tree.Structure]]()
            for k, f in enumerate(self._funs):
                own = tree.map(lambda x, p=index == k: constant_unless(p, x), operands)
                results.append(tree.flatten(as_tensors(f(*own))))
            outs = results[-1][0]
            for k in reversed(range(len(results) - 1)):
                pairs = zip(results[k][0], outs, strict=True)
                outs = [torch.where(index == k, a, b) for a, b in pairs]
            return tree.unflatten(results[0][1], outs)
        return as_tensors(self._funs[int(functorch.innermost(index))](*operands))
