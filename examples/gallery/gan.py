"""Generative adversarial network: two networks with two optimizers that take turns in one loop.

Each player's loss takes both players' weights, and `argnums` selects one for the gradient: nothing
has to be detached, frozen or set to zero. The discriminator also pays for its slope at real
points, a gradient within the gradient.

In JAX: two `optax.adam` states carried through `jax.lax.scan`.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import xfunc as xf
from examples.gallery._perceptron import Params, init, perceptron
from examples.gallery._points import eight_places


class Result(NamedTuple):
    """Points [n, 2]: generated before and after the training, and real ones."""

    before: Tensor
    after: Tensor
    real: Tensor


def network(params: Params, x: Tensor) -> Tensor:
    """The generator, or the discriminator, of features [..., 2]."""
    return perceptron(params, x, F.leaky_relu)


def generator_loss(g: Params, d: Params, noise: Tensor) -> Tensor:
    """Small where generated points pass for real ones; `g` generates, `d` discriminates."""
    return F.softplus(-network(d, network(g, noise))).mean()


def discriminator_loss(g: Params, d: Params, noise: Tensor, real: Tensor) -> Tensor:
    """Small where points are told apart by a function that is flat at the real ones, [n, 2]."""
    slopes = xf.vmap(xf.grad(lambda x: network(d, x).sum()))(real)
    told = F.softplus(network(d, network(g, noise))).mean() + F.softplus(-network(d, real)).mean()
    return told + 0.05 * slopes.square().sum(-1).mean()


@xf.jit
def train(generator: Params, discriminator: Params, keys: Tensor) -> Params:
    """The generator after one step of each player for each key."""
    optimizer = xf.optim.adam(xf.optim.cosine_decay_schedule(2e-3, len(keys)), b1=0.5, b2=0.9)

    def step(carry: Any, key: Tensor) -> Any:
        (g, g_state), (d, d_state) = carry
        a, b = xf.random.split(key)
        noise, real = xf.random.normal(a, (256, 2)), eight_places(b, 256)
        grads = xf.grad(discriminator_loss, argnums=1)(g, d, noise, real)
        updates, d_state = optimizer.update(grads, d_state)
        d = xf.optim.apply_updates(d, updates)
        updates, g_state = optimizer.update(xf.grad(generator_loss)(g, d, noise), g_state)
        return ((xf.optim.apply_updates(g, updates), g_state), (d, d_state)), None

    players = (generator, optimizer.init(generator)), (discriminator, optimizer.init(discriminator))
    return xf.scan(step, players, keys)[0][0][0]


def main() -> Result:
    """Train the players, and generate points."""
    a, b, c, d, e = xf.random.split(xf.random.key(0), 5)
    generator, discriminator = init(a, 2, 64, 64, 2), init(b, 2, 64, 64, 1)
    trained = train(generator, discriminator, xf.random.split(c, 1500))
    noise, real = xf.random.normal(d, (2000, 2)), eight_places(e, 2000)
    before, after = (network(p, noise) for p in (generator, trained))
    result = xf.device_get(Result(before, after, real))
    for name, points in (("at first", result.before), ("after training", result.after)):
        gap = torch.cdist(points, result.real).amin(-1).mean().item()
        print(f"{name}, a generated point is {gap:.2f} from the next real one")
    return result


if __name__ == "__main__":
    main()
