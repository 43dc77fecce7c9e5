"""`associative_scan`: all prefixes of an associative operation, in logarithmic depth."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from xfunc import tree
from xfunc.core.avals import short
from xfunc.core.locations import described
from xfunc.errors import TreeMismatchError, fail
from xfunc.stages.checks import (
    Fun,
    Tensor,
    arrays,
    as_results,
    as_tensors,
    check_callable,
    check_same,
    labels_in,
)
from xfunc.stages.transformed import Transform
from xfunc.torchlib.prefixes import prefixes
from xfunc.tree import PyTree

T = TypeVar("T")


def associative_scan(
    fn: Callable[[PyTree, PyTree], object], elems: T, reverse: bool = False, axis: int = 0
) -> T:
    """``[x0, fn(x0, x1), fn(fn(x0, x1), x2), ...]`` along an axis.

    Args:
        fn: an associative function of two trees like `elems`, vectorised along `axis`: it is called
            with slices that hold many elements, and combines them element by element.
        elems: a tree of tensors of one size along `axis`.
        reverse: whether to combine from the end.
        axis: the axis to scan over.

    Returns:
        A tree like `elems`: element i combines those up to i. Work is linear in the length n; the
        depth is about ``2 log2(n)`` calls of `fn`.

    Raises:
        TreeMismatchError: the leaves of `elems` differ in length, or `fn` changes shapes or dtypes.

    Source: ``jax.lax.associative_scan``; Blelloch, "Prefix Sums and Their Applications", 1990.
    """
    check_callable(fn, "associative_scan", "associative_scan(fn, elems)")
    return AssociativeScan(fn, bool(reverse), axis)(elems)


class AssociativeScan(Transform[..., PyTree]):
    """``xs -> prefixes``."""

    def __init__(self, f: Fun, reverse: bool, axis: int):
        self._reverse, self._axis = reverse, axis
        super().__init__(f, (reverse, axis), "associative_scan")

    def apply(self, xs: PyTree) -> PyTree:
        name = f"associative_scan of {described(self.fun)}"
        xs = as_tensors(xs)
        leaves, self_tree = tree.flatten(xs)
        labels = labels_in(xs, "elems")
        leaves = arrays(leaves, name, labels)
        for x, label in zip(leaves, labels, strict=True):
            if type(self._axis) is not int or not -x.ndim <= self._axis < x.ndim:
                fail(
                    TreeMismatchError,
                    f"{name} has axis={self._axis!r}, but {label} is {short(x)}",
                    "give an axis that every leaf has.",
                )
        lengths = {x.shape[self._axis] for x in leaves}
        if len(lengths) != 1:
            lines = "".join(
                f"\n  {p}: {x.shape[self._axis]}" for p, x in zip(labels, leaves, strict=True)
            )
            fail(
                TreeMismatchError,
                f"{name}: the leaves differ in length along axis {self._axis}:{lines}",
                "give all leaves the same length.",
            )
        # From here on the axis is the first, and is put back where `f` sees the values.
        moved = [x.movedim(self._axis, 0) for x in leaves]
        if self._reverse:
            moved = [x.flip(0) for x in moved]

        def combine(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
            a_tree, b_tree = (
                tree.unflatten(self_tree, [x.movedim(0, self._axis) for x in t]) for t in (a, b)
            )
            out = as_results(self.fun(a_tree, b_tree), name)
            check_same(
                out,
                a_tree,
                what="what the function returns and what it receives",
                name=name,
                root="result",
                hint="return a tree of the same structure, shapes and dtypes.",
            )
            return [x.movedim(self._axis, 0) for x in tree.leaves(out)]

        outs = prefixes(combine, moved)
        if self._reverse:
            outs = [x.flip(0) for x in outs]
        return tree.unflatten(self_tree, [x.movedim(0, self._axis) for x in outs])
