"""MAML: initial weights from which one step of gradient descent learns a new sine wave.

The inner step is `xf.grad`, the outer one differentiates through it, and `xf.vmap` adapts to each
task of a batch by itself. No weight is changed in place, so nothing has to be copied or restored
between tasks.

In JAX: `jax.grad` of a function that calls `jax.grad`, under `jax.vmap`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

import xfunc as xf
from examples.gallery._perceptron import Params, init, perceptron
from examples.gallery._training import minimize


class Task(NamedTuple):
    """Points of one function, [n, 1]: to adapt to, and to be judged by."""

    x: Tensor
    y: Tensor
    new_x: Tensor
    new_y: Tensor


class Result(NamedTuple):
    """Trained weights, and the loss on new tasks before and after the inner step."""

    params: Params
    before: float
    after: float


def loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
    """The mean square of errors."""
    return (perceptron(params, x) - y).square().mean()


def adapt(params: Params, x: Tensor, y: Tensor) -> Params:
    """Weights after one step of gradient descent."""
    return xf.tree.map(lambda p, g: p - 0.1 * g, params, xf.grad(loss)(params, x, y))


def meta_loss(params: Params, tasks: Task) -> Tensor:
    """The mean loss after adaptation, over tasks with a leading axis."""

    def of_task(task: Task) -> Tensor:
        return loss(adapt(params, task.x, task.y), task.new_x, task.new_y)

    return xf.vmap(of_task)(tasks).mean()


def sines(key: Tensor, n: int) -> Task:
    """Sine waves of random amplitude and phase, each at ten points for either purpose."""
    a, b, c = xf.random.split(key, 3)
    amplitude = xf.random.uniform(a, (n, 1, 1), minval=0.5, maxval=2.0)
    phase = xf.random.uniform(b, (n, 1, 1), maxval=torch.pi)
    x, new_x = xf.random.uniform(c, (2, n, 10, 1), minval=-3.0, maxval=3.0)
    return Task(x, amplitude * (x + phase).sin(), new_x, amplitude * (new_x + phase).sin())


def main() -> Result:
    """Train on sine waves, and adapt to others."""
    a, b, c = xf.random.split(xf.random.key(0), 3)
    start, keys = init(a, 1, 32, 32, 1), xf.random.split(b, 500)
    params, _ = minimize(lambda p, k: meta_loss(p, sines(k, 16)), start, xf.optim.adam(5e-3), keys)
    tasks = sines(c, 500)
    before = xf.vmap(loss, (None, 0, 0))(params, tasks.new_x, tasks.new_y).mean().item()
    after = meta_loss(params, tasks).item()
    print(f"loss on new tasks: {before:.1f}, and {after:.1f} after one step")
    return Result(params, before, after)


if __name__ == "__main__":
    main()
