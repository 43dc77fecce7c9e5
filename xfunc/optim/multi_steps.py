"""`multi_steps`: one update from the gradients of several batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from xfunc import tree
from xfunc.optim.transformation import (
    GradientTransformation,
    at_least_float32,
    zero_count,
    zeros_like,
)
from xfunc.transforms import cond
from xfunc.tree import PyTree


class MultiStepsState(NamedTuple):
    """The state of `multi_steps`.

    Attributes:
        mini_step: gradients accumulated since the last update, int32 of shape ``[]``.
        gradient_step: updates so far, int32 of shape ``[]``.
        inner_opt_state: the state of the inner transformation.
        acc_grads: the accumulated gradients, with the shapes of the weights.
    """

    mini_step: Tensor
    gradient_step: Tensor
    inner_opt_state: PyTree
    acc_grads: PyTree


def multi_steps(
    opt: GradientTransformation,
    every_k_schedule: int | Callable[[Tensor], int | Tensor],
    use_grad_mean: bool = True,
    *,
    accumulator_dtype: torch.dtype | None = None,
) -> GradientTransformation:
    """Accumulate gradients, and update once every k steps.

    Args:
        opt: it gets the accumulated gradients every k steps, and does not run in between.
        every_k_schedule: k, or a function from the number of updates so far, an int32 tensor of
            shape ``[]``, to k.
        use_grad_mean: whether to accumulate the mean of the gradients, or their sum.
        accumulator_dtype: dtype in which they are accumulated, and of the updates; None: float32,
            or float64 for weights that are.

    Returns:
        A transformation. Its updates are zero but at every k-th step. Its state has the fields
        `mini_step`, `gradient_step`, `inner_opt_state` and `acc_grads`.

    Example:
        >>> opt = xf.optim.multi_steps(xf.optim.sgd(1.0), 2)
        >>> first, state = opt.update(torch.tensor([1.0]), opt.init(torch.zeros(1)))
        >>> second, state = opt.update(torch.tensor([3.0]), state)
        >>> first.tolist(), second.tolist()
        ([0.0], [-2.0])

    Semantics: ``optax.MultiSteps(...).gradient_transformation()``.
    """

    def init(params: PyTree) -> MultiStepsState:
        zeros = tree.map(
            lambda p: zeros_like(p, accumulator_dtype or at_least_float32(p.dtype)), params
        )
        return MultiStepsState(zero_count(), zero_count(), opt.init(params), zeros)

    def update(
        updates: PyTree, state: PyTree, params: PyTree = None
    ) -> tuple[PyTree, MultiStepsState]:
        step = state.mini_step + 1
        k = every_k_schedule
        is_last = step >= (k(state.gradient_step) if callable(k) else k)

        def add(total: Tensor, u: Tensor) -> Tensor:
            u = u.to(total.dtype)
            return total + ((u - total) / step if use_grad_mean else u)

        def emit(total: PyTree, inner: PyTree, params: PyTree) -> tuple[PyTree, PyTree, PyTree]:
            new, inner = opt.update(total, inner, params)
            new = tree.map(lambda u, t: u.to(t.dtype), new, total)
            return new, inner, tree.map(torch.zeros_like, total)

        def skip(total: PyTree, inner: PyTree, params: PyTree) -> tuple[PyTree, PyTree, PyTree]:
            return tree.map(torch.zeros_like, total), inner, total

        total = tree.map(add, state.acc_grads, updates)
        new, inner, total = cond(is_last, emit, skip, total, state.inner_opt_state, params)
        count = torch.where(is_last, 0, step).to(step.dtype)
        return new, MultiStepsState(count, state.gradient_step + is_last, inner, total)

    return GradientTransformation(init, update)
