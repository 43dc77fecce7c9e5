"""The training loop of the examples that need no other."""

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

import xfunc as xf

T = TypeVar("T")


def minimize(
    loss: Callable[[T, Tensor], Tensor],
    params: T,
    optimizer: xf.optim.GradientTransformation,
    xs: Tensor,
) -> tuple[T, Tensor]:
    """Take one step down ``loss(params, x)`` for each `x` of `xs`, all in one program.

    Returns:
        The parameters, and the loss before each step.
    """

    def step(carry: tuple[T, object], x: Tensor) -> tuple[tuple[T, object], Tensor]:
        params, state = carry
        value, grads = xf.value_and_grad(loss)(params, x)
        updates, state = optimizer.update(grads, state, params)
        return (xf.optim.apply_updates(params, updates), state), value

    @xf.jit
    def run(params: T, xs: Tensor) -> tuple[T, Tensor]:
        (params, _), losses = xf.scan(step, (params, optimizer.init(params)), xs)
        return params, losses

    return run(params, xs)
