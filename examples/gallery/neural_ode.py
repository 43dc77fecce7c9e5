"""Neural ODE: a network as the velocity of a point, trained with the adjoint method.

`xf.custom_vjp` gives the solver its own backward pass: the same solver takes the point, the
cotangent and the gradient of the weights backwards in time, so no intermediate point is kept. Its
state is any tree, and `xf.vmap` over starting points goes through the custom rule.

In JAX: `jax.experimental.ode.odeint`, or `diffrax` with `BacksolveAdjoint`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import xfunc as xf
from examples.gallery._perceptron import Params, init, perceptron
from examples.gallery._runge_kutta import pendulum, runge_kutta
from examples.gallery._training import minimize


class Result(NamedTuple):
    """Trained weights, and the root mean square error of states after 1 s, before and after."""

    params: Params
    before: float
    after: float


@xf.custom_vjp
def flow(params: Params, y: Tensor) -> Tensor:
    """The state [2] one second after `y`."""
    return runge_kutta(lambda y: perceptron(params, y), y, 1.0)


def forward(params: Params, y: Tensor) -> Any:
    """The end, which is all that the backward pass starts from."""
    end = flow(params, y)
    return end, (params, end)


def backward(residuals: Any, ct: Tensor) -> Any:
    """The cotangents at the start, by integrating back from the end."""
    params, end = residuals

    def back(state: Any) -> Any:
        y, ct, _ = state
        speed, pull = xf.vjp(perceptron, params, y)
        of_params, of_y = pull(ct)
        return -speed, of_y, of_params

    start = end, ct, xf.tree.map(torch.zeros_like, params)
    _, of_y, of_params = runge_kutta(back, start, 1.0)
    return of_params, of_y


flow.defvjp(forward, backward)


def loss(params: Params, starts: Tensor, ends: Tensor) -> Tensor:
    """The mean square error of the ends, [n, 2]."""
    return (xf.vmap(flow, (None, 0))(params, starts) - ends).square().mean()


def main() -> Result:
    """Learn a pendulum from states at the start and the end of a second."""
    a, b = xf.random.split(xf.random.key(0))
    start = init(a, 2, 32, 2)
    starts, others = xf.random.uniform(b, (2, 128, 2), minval=-2.0, maxval=2.0)
    truth = xf.jit(xf.vmap(lambda y: runge_kutta(pendulum, y, 1.0)))
    ends, other_ends = truth(starts), truth(others)
    steps = torch.arange(500)
    params, _ = minimize(lambda p, _: loss(p, starts, ends), start, xf.optim.adam(1e-2), steps)
    before, after = (loss(p, others, other_ends).sqrt().item() for p in (start, params))
    print(f"root mean square error: {before:.1f} at first, {after:.2f} after training")
    return Result(params, before, after)


if __name__ == "__main__":
    main()
