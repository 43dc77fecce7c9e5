"""`map`: apply a function to each slice, one after the other or in batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, overload

import torch

from xfunc import tree
from xfunc.core.locations import described
from xfunc.core.wrappers import Part
from xfunc.errors import fail
from xfunc.stages.checks import Fun, as_tensors, check_callable
from xfunc.stages.transformed import Transform
from xfunc.transforms.scan.scan import scan
from xfunc.transforms.vmap import vmap
from xfunc.tree import PyTree

R = TypeVar("R")
X = TypeVar("X")


@overload  # See NOTE [types of lambdas] in `xfunc.tree`.
def map(f: Callable[[X], R], xs: X, batch_size: int | None = None) -> R: ...
@overload
def map(f: Callable[[PyTree], R], xs: PyTree, batch_size: int | None = None) -> R: ...
def map(f: Callable[[PyTree], R], xs: PyTree, batch_size: int | None = None) -> R:
    """``stack([f(x) for x in xs])``, by a loop over the leading axis.

    Takes the memory of one call; `vmap` computes all at once. Differentiable in both modes.

    Args:
        f: a pure function of a tree of tensors; it may close over traced values.
        xs: a tree of tensors with a common leading axis.
        batch_size: how many slices to compute at once, by `vmap`; None: one.

    Returns:
        A tree like the result of `f`. A leaf of shape ``[...]`` becomes ``[n, ...]``, where n is
        the length of the leading axis of `xs`.

    Raises:
        TreeMismatchError: the leaves of `xs` differ in length.
        ValueError: `batch_size` is not positive, or `xs` has no leaves.

    Source: ``jax.lax.map``.
    """
    check_callable(f, "map", "map(f, xs)")
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        fail(
            ValueError,
            f"map of {described(f)} has batch_size={batch_size!r}",
            "give a positive integer, or None.",
        )
    if batch_size is None:
        return scan(_Step(f), None, xs)[1]
    return _BatchedMap(f, batch_size)(xs)


class _Step(Part):
    """The function as the body of a `scan` that carries nothing."""

    called = "map"

    def __init__(self, f: Fun):
        super().__init__(f, "map")

    def __call__(self, carry: None, x: PyTree) -> tuple[None, PyTree]:
        return carry, self.fun(x)


class _BatchedMap(Transform[..., PyTree]):
    """``xs -> ys`` in batches, with a smaller one for the remainder."""

    def __init__(self, f: Fun, batch_size: int):
        self._batch_size = batch_size
        super().__init__(f, batch_size, "map")

    def apply(self, xs: object) -> PyTree:
        xs, b = as_tensors(xs), self._batch_size
        leaves = tree.leaves(xs)
        lengths = {x.shape[0] if x.ndim else None for x in leaves}
        n = lengths.pop() if len(lengths) == 1 else None
        if n is None:
            return scan(_Step(self.fun), None, xs)[1]  # Reports the error.
        full = n - n % b
        parts: list[PyTree] = []
        if full:
            batches = tree.map(lambda x: x[:full].reshape(full // b, b, *x.shape[1:]), xs)
            ys = scan(_Step(vmap(self.fun)), None, batches)[1]
            parts.append(tree.map(lambda y: y.reshape(full, *y.shape[2:]), ys))
        if n > full or not parts:
            if n == full:
                return scan(_Step(self.fun), None, xs)[1]
            parts.append(vmap(self.fun)(tree.map(lambda x: x[full:], xs)))
        return parts[0] if len(parts) == 1 else tree.map(_joined, *parts)


def _joined(*parts: torch.Tensor) -> torch.Tensor:
    return torch.cat(parts)
