"""Deep equilibrium model: a layer applied until nothing changes, with the exact gradient.

The output is the solution `z` of ``layer(params, x, z) == z``. `xf.custom_root` differentiates it
by the implicit function theorem: its backward pass solves a linear equation by the same iteration.

In JAX: `jax.lax.custom_root`, or `jaxopt.FixedPointIteration(implicit_diff=True)`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import xfunc as xf
from examples.gallery._training import minimize

Params = dict[str, Tensor]


class Result(NamedTuple):
    """Trained weights, and the loss before each step of the training."""

    params: Params
    losses: Tensor


def init(key: Tensor, width: int) -> Params:
    """Random weights of a layer that is a contraction."""
    a, b = xf.random.split(key)
    into, bias, out = xf.random.normal(a, (3, width))
    again = xf.random.normal(b, (width, width)) / width**0.5
    return {"into": into, "bias": bias, "again": 0.4 * again, "out": out / width**0.5}


def layer(params: Params, x: Tensor, z: Tensor) -> Tensor:
    """One application, to inputs [n, 1] and states [n, width]."""
    return torch.tanh(z @ params["again"] + x * params["into"] + params["bias"])


def fixed_point(f: Any, z: Tensor) -> Tensor:
    """Apply `f` until the state changes no more, 100 times at most."""

    def moves(state: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        i, before, z = state
        return (i < 100) & ((z - before).abs().max() > 10 * torch.finfo(z.dtype).eps)

    return xf.while_loop(moves, lambda s: (s[0] + 1, s[2], f(s[2])), (torch.tensor(0), z, f(z)))[2]


def solve_linear(g: Any, y: Tensor) -> Tensor:
    """The `v` of ``g(v) == y``, where ``g(v) + v`` is a contraction."""
    return fixed_point(lambda v: g(v) + v - y, torch.zeros_like(y))


def equilibrium(params: Params, x: Tensor) -> Tensor:
    """The states [n, width] that the layer does not change."""
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

    optimizer, steps = xf.optim.adam(3e-2), torch.arange(100)
    params, losses = minimize(loss, init(xf.random.key(0), 16), optimizer, steps)
    result = xf.device_get(Result(params, losses))
    print(f"mean square error: {losses[0]:.1f} at first, {losses[-1]:.2f} after training")
    return result


if __name__ == "__main__":
    main()
