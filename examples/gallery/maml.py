"""MAML: initial weights from which one step of gradient descent learns a new sine wave.

The inner step is `xf.grad`, the outer one differentiates through it, and `xf.vmap` adapts to each
task of a batch by itself. No parameter is changed in place, so nothing has to be copied or
restored between tasks.

In JAX: `jax.grad` of a function that calls `jax.grad`, under `jax.vmap`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import xfunc as xf

Params = list[tuple[Tensor, Tensor]]  # weight and bias of each layer


class Result(NamedTuple):
    """Trained weights, and the loss on new tasks before and after the inner step."""

    params: Params
    before: float
    after: float


class Task(NamedTuple):
    """Points of one function: to adapt to, and to be judged by."""

    x: Tensor
    y: Tensor
    new_x: Tensor
    new_y: Tensor


def init(key: Tensor, sizes: tuple[int, ...]) -> Params:
    """Random weights of a network with these numbers of features."""
    pairs = list(zip(sizes, sizes[1:], strict=False))
    keys = xf.random.split(key, len(pairs))
    shapes = zip(keys, pairs, strict=True)
    return [(xf.random.normal(k, (m, n)) / m**0.5, torch.zeros(n)) for k, (m, n) in shapes]


def network(params: Params, x: Tensor) -> Tensor:
    """The function of numbers [n] that the weights stand for."""
    *hidden, (weight, bias) = params
    h = x[:, None]
    for w, b in hidden:
        h = torch.tanh(h @ w + b)
    return (h @ weight + bias)[:, 0]


def loss(params: Params, x: Tensor, y: Tensor) -> Tensor:
    """The mean square of errors."""
    return (network(params, x) - y).square().mean()


def adapt(params: Params, x: Tensor, y: Tensor) -> Params:
    """Weights after one step of gradient descent."""
    return xf.tree.map(lambda p, g: p - 0.1 * g, params, xf.grad(loss)(params, x, y))


def sine(key: Tensor) -> Task:
    """A sine wave of random amplitude and phase, at ten points for each purpose."""
    a, b, c = xf.random.split(key, 3)
    amplitude = xf.random.uniform(a, (), minval=0.5, maxval=2.0)
    phase = xf.random.uniform(b, (), maxval=torch.pi)
    x = xf.random.uniform(c, (2, 10), minval=-3.0, maxval=3.0)
    y = amplitude * torch.sin(x + phase)
    return Task(x[0], y[0], x[1], y[1])


def meta_loss(params: Params, tasks: Task) -> Tensor:
    """The mean loss after adaptation, over tasks with a leading axis."""

    def of_task(task: Task) -> Tensor:
        return loss(adapt(params, task.x, task.y), task.new_x, task.new_y)

    return xf.vmap(of_task)(tasks).mean()


@xf.jit
def train(params: Params, keys: Tensor) -> Params:
    """Adam on the loss after adaptation to 32 new tasks for each key."""
    optimizer = xf.optim.adam(xf.optim.cosine_decay_schedule(1e-2, len(keys)))

    def step(carry: Any, key: Tensor) -> Any:
        params, state = carry
        grads = xf.grad(meta_loss)(params, xf.vmap(sine)(xf.random.split(key, 16)))
        updates, state = optimizer.update(grads, state)
        return (xf.optim.apply_updates(params, updates), state), None

    return xf.scan(step, (params, optimizer.init(params)), keys)[0][0]


def main() -> Result:
    """Train on sine waves, and adapt to others."""
    a, b, c = xf.random.split(xf.random.key(0), 3)
    params = train(init(a, (1, 32, 32, 1)), xf.random.split(b, 500))
    tasks = xf.vmap(sine)(xf.random.split(c, 500))
    before = xf.vmap(loss, in_axes=(None, 0, 0))(params, tasks.new_x, tasks.new_y).mean()
    result = Result(params, before.item(), meta_loss(params, tasks).item())
    print(f"loss on new tasks: {result.before:.1f}, and {result.after:.1f} after one step")
    return result


if __name__ == "__main__":
    main()
