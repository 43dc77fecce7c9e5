"""Deep equilibrium model: a layer applied until nothing changes, with the exact gradient.

The output is the solution `z` of ``layer(params, x, z) == z``. `xf.custom_root` differentiates it
by the implicit function theorem: the backward pass solves a linear equation, by the same iteration,
and needs no step of the forward pass.

In JAX: `jax.lax.custom_root`, or `jaxopt.FixedPointIteration(implicit_diff=True)`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

import xfunc as xf
from examples.gallery._training import minimize

Params = dict[str, Tensor]
Map = Callable[[Tensor], Tensor]


class Result(NamedTuple):
    """Trained weights, and the loss before each step of the training."""

    params: Params
    losses: Tensor


def init(key: Tensor, width: int) -> Params:
    """Random weights of a layer that is a contraction."""
    a, b = xf.random.split(key)
    into, bias, out = xf.random.normal(a, (3, width))
    again = 0.4 * xf.random.normal(b, (width, width)) / width**0.5
    return {"into": into, "bias": bias, "again": again, "out": out / width**0.5}


def layer(params: Params, x: Tensor, z: Tensor) -> Tensor:
    """One application, to inputs [n, 1] and states [n, width]."""
    return torch.tanh(z @ params["again"] + x * params["into"] + params["bias"])


def fixed_point(f: Map, z: Tensor) -> Tensor:
    """Apply `f` until it changes nothing that matters, 100 times at most."""

    def moves(state: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        i, before, z = state
        return (i < 100) & ((z - before).abs().max() > 10 * torch.finfo(z.dtype).eps)

    first = torch.tensor(0), z, f(z)
    return xf.while_loop(moves, lambda state: (state[0] + 1, state[2], f(state[2])), first)[2]


def solve_linear(g: Map, y: Tensor) -> Tensor:
    """The `v` of ``g(v) == y``, where ``g(v) + v`` is a contraction."""
    return fixed_point(lambda v: g(v) + v - y, torch.zeros_like(y))


def equilibrium(params: Params, x: Tensor) -> Tensor:
    """The states [n, width] that the layer leaves as they are."""

    return xf.custom_root(
        lambda z: layer(params, x, z) - z,
        torch.zeros_like(x * params["bias"]),
        lambda change, z: fixed_point(lambda z: change(z) + z, z),
        lambda g, y: xf.custom_linear_solve(g, y, solve_linear, transpose_solve=solve_linear),
    )


def main() -> Result:
    """Fit a function of one number."""
    x = torch.linspace(-2, 2, 64)[:, None]

    def loss(params: Params, _: Tensor) -> Tensor:
        return (equilibrium(params, x) @ params["out"] - torch.sin(3 * x[:, 0])).square().mean()

    start = init(xf.random.key(0), 16)
    params, losses = minimize(loss, start, xf.optim.adam(3e-2), torch.arange(100))
    first, last = losses[[0, -1]].tolist()
    print(f"mean square error: {first:.1f} at first, {last:.2f} after training")
    return xf.device_get(Result(params, losses))


if __name__ == "__main__":
    main()
