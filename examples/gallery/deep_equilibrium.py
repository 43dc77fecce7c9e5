"""Deep equilibrium model: a layer applied until nothing changes, with the exact gradient.

The output `z` is the solution of `layer(params, x, z) == z`. `xf.custom_root` differentiates the
solution by the implicit function theorem: a linear equation is solved in the backward pass, and no
iteration is kept in memory, whatever their number.

In JAX: `jax.lax.custom_root`, or `jaxopt.FixedPointIteration` with `implicit_diff=True`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import xfunc as xf

Params = dict[str, Tensor]


class Result(NamedTuple):
    """Trained weights, and the loss at each step of the training."""

    params: Params
    losses: Tensor


def init(key: Tensor, width: int) -> Params:
    """Weights of a layer that is a contraction at first."""
    a, b, c, d = xf.random.split(key, 4)
    return {
        "again": xf.random.normal(a, (width, width)) * 0.4 / width**0.5,
        "into": xf.random.normal(b, (1, width)),
        "bias": xf.random.normal(c, (width,)),
        "out": xf.random.normal(d, (width, 1)) / width**0.5,
    }


def layer(params: Params, x: Tensor, z: Tensor) -> Tensor:
    """One application, to inputs [n, 1] and states [n, width]."""
    return torch.tanh(z @ params["again"] + x @ params["into"] + params["bias"])


def fixed_point(f: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Apply `f` until a step changes nothing that matters, 100 times at most."""

    def moves(state: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        i, before, z = state
        return (i < 100) & ((z - before).abs().max() > 10 * torch.finfo(z.dtype).eps)

    first = (torch.tensor(0), z, f(z))
    return xf.while_loop(moves, lambda state: (state[0] + 1, state[2], f(state[2])), first)[2]


def equilibrium(params: Params, x: Tensor) -> Tensor:
    """The states [n, width] that the layer leaves as they are."""

    def change(z: Tensor) -> Tensor:
        return layer(params, x, z) - z

    def solve(f: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
        return fixed_point(lambda z: f(z) + z, z)

    def linear_solve(g: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
        return fixed_point(lambda v: g(v) + v - y, torch.zeros_like(y))

    def tangent_solve(g: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
        return xf.custom_linear_solve(g, y, linear_solve, transpose_solve=linear_solve)

    start = torch.zeros(len(x), params["bias"].shape[0], dtype=x.dtype)
    return xf.custom_root(change, start, solve, tangent_solve)


def loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
    """The mean square of errors."""
    return (equilibrium(params, x) @ params["out"] - y).square().mean()


@xf.jit(static_argnames="steps")
def train(params: Params, x: Tensor, y: Tensor, steps: int) -> tuple[Params, Tensor]:
    """Adam; the weights, and the loss before each step."""
    optimizer = xf.optim.adam(3e-2)

    def step(carry: Any, _: None) -> Any:
        params, state = carry
        value, grads = xf.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(grads, state)
        return (xf.optim.apply_updates(params, updates), state), value

    (params, _), losses = xf.scan(step, (params, optimizer.init(params)), length=steps)
    return params, losses


def main() -> Result:
    """Fit a function of one number."""
    x = torch.linspace(-2, 2, 64)[:, None]
    params, losses = train(init(xf.random.key(0), 16), x, torch.sin(3 * x), steps=100)
    losses = losses.cpu()
    print(f"mean square error: {losses[0].item():.2f} at first, {losses[-1].item():.3f} at the end")
    return Result(params, losses)


if __name__ == "__main__":
    main()
