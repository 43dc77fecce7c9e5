"""Gauss-Newton: nonlinear least squares without a matrix, by products with the Jacobian.

`xf.linearize` runs the model once and gives products with its Jacobian, `xf.vjp` those with the
transpose; conjugate gradients need no more. The parameters are a dict, which `xf.ravel_pytree`
makes a vector. Steps that do not reduce the error are undone, and the next one is damped more.

In JAX: `jax.linearize`, `jax.vjp` and `jax.scipy.sparse.linalg.cg`, or `jaxopt`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import xfunc as xf
from examples.gallery._conjugate_gradients import conjugate_gradients

Params = dict[str, Tensor]


class Result(NamedTuple):
    """The data, the fitted parameters, and half the square sum of errors before each step."""

    x: Tensor
    y: Tensor
    params: Params
    errors: Tensor


def peaks(params: Params, x: Tensor) -> Tensor:
    """A sum of bell curves at the places [n]."""
    distance = (x[:, None] - params["center"]) / params["width"]
    return (params["height"] * torch.exp(-0.5 * distance.square())).sum(-1)


@xf.jit(static_argnames="steps")
def fit(params: Params, x: Tensor, y: Tensor, steps: int) -> tuple[Params, Tensor]:
    """The parameters of least squares, and the error before each step."""
    start, unravel = xf.ravel_pytree(params)

    def residuals(flat: Tensor) -> Tensor:
        return peaks(unravel(flat), x) - y

    def step(state: tuple[Tensor, Tensor], _: None) -> Any:
        flat, damping = state
        errors, pull = xf.vjp(residuals, flat)
        product = xf.linearize(residuals, flat)[1]
        right = -pull(errors)[0]
        move = conjugate_gradients(lambda v: pull(product(v))[0] + damping * v, right)
        better = residuals(flat + move).norm() < errors.norm()
        damping = damping * torch.where(better, 0.3, 3.0)
        return (torch.where(better, flat + move, flat), damping), 0.5 * errors.square().sum()

    (flat, _), errors = xf.scan(step, (start, torch.ones_like(start[0])), length=steps)
    return unravel(flat), errors


def main() -> Result:
    """Fit two peaks that overlap."""
    x = torch.linspace(-4, 4, 100)
    tensor = torch.tensor
    true = {"height": tensor([1.0, 2.0]), "center": tensor([-0.8, 1.0]), "width": tensor([0.7, 1])}
    guess = {"height": torch.ones(2), "center": tensor([-2.0, 2.0]), "width": torch.ones(2)}
    y = peaks(true, x) + 0.05 * xf.random.normal(xf.random.key(0), (100,)).cpu()
    params, errors = xf.device_get(fit(guess, x, y, steps=20))
    print(f"error: {errors[0].item():.0f} at the guess, {errors[-1].item():.2f} after 20 steps")
    for name, value in params.items():
        first, second = value.tolist()
        print(f"{name}: {first:.1f} and {second:.1f}")
    return Result(x, y, params, errors)


if __name__ == "__main__":
    main()
