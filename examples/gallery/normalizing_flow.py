"""Normalizing flow: a density on the plane, learned from points of two half moons.

The flow is written for one point: a scan over affine couplings with stacked weights, which returns
the point in the base space and the log determinant. `xf.vmap` makes it a function of a batch, and
a scan over keys is the training.

In JAX: a `distrax.Chain` of couplings, under `jax.vmap`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import xfunc as xf
from examples.gallery._points import moons
from examples.gallery._training import minimize

Params = dict[str, Tensor]  # of all couplings, stacked


class Result(NamedTuple):
    """The flow, and the mean log density of held-out points, without and with training."""

    params: Params
    before: float
    after: float


def init(key: Tensor, layers: int, hidden: int) -> Params:
    """Weights of couplings that do nothing at first."""
    into, bias = xf.random.normal(key, (2, layers, hidden))
    return {"into": into, "bias": bias, "out": torch.zeros(layers, hidden, 2)}


def to_base(params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
    """A point [2] in the base space, and the log determinant of the Jacobian."""

    def couple(carry: tuple[Tensor, Tensor], p: Params) -> Any:
        (fixed, moved), log_det = carry
        shift, scale = torch.tanh(fixed * p["into"] + p["bias"]) @ p["out"]
        moved = moved * scale.exp() + shift
        return (torch.stack([moved, fixed]), log_det + scale), None  # the other one is next

    return xf.scan(couple, (x, torch.zeros_like(x[0])), params)[0]


def log_density(params: Params, x: Tensor) -> Tensor:
    """The log density of a point [2]."""
    z, log_det = to_base(params, x)
    return log_det - 0.5 * z.square().sum() - torch.tensor(2 * torch.pi).log()


def loss(params: Params, points: Tensor) -> Tensor:
    """The negative mean log density of points [n, 2]."""
    return -xf.vmap(log_density, in_axes=(None, 0))(params, points).mean()


def main() -> Result:
    """Train a flow, and evaluate it on other points."""
    a, b, c = xf.random.split(xf.random.key(0), 3)
    start, points, steps = init(a, layers=8, hidden=32), moons(b, 2000), 1000
    optimizer = xf.optim.adam(xf.optim.cosine_decay_schedule(1e-2, steps))
    keys = xf.random.split(c, steps)
    params, _ = minimize(lambda p, key: loss(p, moons(key, 256)), start, optimizer, keys)
    result = Result(params, -loss(start, points).item(), -loss(params, points).item())
    print(f"mean log density: {result.before:.1f} before training, {result.after:.1f} after")
    return result


if __name__ == "__main__":
    main()
