"""Hyperparameters: 64 trainings at once, and then gradient descent through training.

The rate, the weights' decay, the slope of the activation and the bound of the loss are arguments of
the whole training, like any others. `xf.vmap` runs over them, and `xf.grad` differentiates the
error at other points with respect to them, through every step of `xf.scan`.

In JAX: `jax.vmap` and `jax.grad` of a training in `jax.lax.scan`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import xfunc as xf

Tensors = dict[str, Any]  # torch's functions say `float` for an option that may be traced.
RANGES = {"rate": (-4, -1), "decay": (-12, -5), "slope": (0.0, 0.5), "delta": (0.1, 3.0)}


def points(key: Tensor, n: int, outliers: float) -> tuple[Tensor, Tensor]:
    """Places [n] and values [n] of a curve, of which a part is far off."""
    keys = xf.random.split(key, 3)
    x = xf.random.uniform(keys[0], (n,), minval=-2.0, maxval=2.0)
    is_off = xf.random.bernoulli(keys[1], outliers, (n,))
    return x, torch.sin(3 * x) + torch.where(is_off, 3 * xf.random.normal(keys[2], (n,)), 0)


def predict(weights: Tensors, settings: Tensors, x: Tensor) -> Tensor:
    """The curve at the places `x` [n]."""
    hidden = F.leaky_relu(x[:, None] * weights["in"] + weights["bias"], settings["slope"])
    return hidden @ weights["out"]


def error(settings: Tensors, key: Tensor, steps: int = 200) -> Tensor:
    """The mean squared error at other points, after training with these settings."""
    keys = xf.random.split(key, 5)
    x, y = points(keys[0], 40, outliers=0.2)
    weights = {n: xf.random.normal(keys[i + 1], (32,)) for i, n in enumerate(("in", "bias", "out"))}
    weights["out"] = weights["out"] / 10

    def step(weights: Tensors, _: None) -> tuple[Tensors, None]:
        slope = xf.grad(lambda w: F.huber_loss(predict(w, settings, x), y, delta=settings["delta"]))
        decay, rate = settings["decay"].exp(), settings["rate"].exp()
        return xf.tree.map(lambda w, g: (1 - decay) * w - rate * g, weights, slope(weights)), None

    weights, _ = xf.scan(xf.checkpoint(step), weights, length=steps)
    x, y = points(keys[4], 200, outliers=0.0)
    return F.mse_loss(predict(weights, settings, x), y)


@xf.jit
def tune(settings: Tensors, key: Tensor) -> Tensor:
    """The error before each of 30 steps of gradient descent on the settings."""
    optimizer = xf.optim.adam(0.1)

    def step(state: tuple[Tensors, Any], _: None) -> Any:
        value, slope = xf.value_and_grad(error)(state[0], key)
        updates, rest = optimizer.update(slope, state[1])
        return (xf.optim.apply_updates(state[0], updates), rest), value

    return xf.scan(step, (settings, optimizer.init(settings)), length=30)[1]


def main() -> tuple[Tensor, Tensor]:
    """The errors of 64 settings, and those of tuning the first."""
    key, *keys = xf.random.split(xf.random.key(0), 1 + len(RANGES))
    ranges = zip(keys, RANGES.items(), strict=True)
    settings = {n: xf.random.uniform(k, (64,), minval=a, maxval=b) for k, (n, (a, b)) in ranges}
    searched = xf.jit(xf.vmap(error, in_axes=(0, None)))(settings, key)
    tuned = tune({n: values[0] for n, values in settings.items()}, key)
    print(f"64 settings: error {searched.max().item():.2f} to {searched.min().item():.2f}")
    print(f"the first, tuned in 30 steps: {tuned[0].item():.2f} to {tuned[-1].item():.2f}")
    return searched, tuned


if __name__ == "__main__":
    main()
