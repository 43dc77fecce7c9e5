"""Variational autoencoder: images of digits from eight numbers each.

The encoder draws from a key that the caller passes in, by the reparameterized normal distribution,
so the evidence bound is an ordinary function with a gradient. It is written for one image and
batched by `xf.vmap`, with a key for each.

In JAX: the same, with `jax.random.normal` and `jax.vmap`.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import xfunc as xf
from examples.gallery._digits import digits
from examples.gallery._perceptron import Params, init, perceptron
from examples.gallery._training import minimize

LATENT = 8


class Weights(NamedTuple):
    """Of the two networks."""

    encoder: Params
    decoder: Params


class Result(NamedTuple):
    """Trained weights, and the bound on new images, in nats, before and after the training."""

    weights: Weights
    before: float
    after: float


def divergence(mean: Tensor, log_deviation: Tensor) -> Tensor:
    """KL divergence of a normal distribution from the standard one."""
    return 0.5 * (mean**2 + (2 * log_deviation).exp() - 1 - 2 * log_deviation).sum()


def bound(weights: Weights, image: Tensor, key: Tensor) -> Tensor:
    """The evidence lower bound of an image [28, 28], by one draw."""
    mean, log_deviation = perceptron(weights.encoder, image.flatten()).chunk(2)
    z = mean + log_deviation.exp() * xf.random.normal(key, mean.shape)
    logits = perceptron(weights.decoder, z, torch.relu)
    fit = -F.binary_cross_entropy_with_logits(logits, image.flatten(), reduction="sum")
    return fit - divergence(mean, log_deviation)


def loss(weights: Weights, key: Tensor) -> Tensor:
    """The negative mean bound of 64 images."""
    a, b = xf.random.split(key)
    keys = xf.random.split(b, 64)
    return -xf.vmap(bound, in_axes=(None, 0, 0))(weights, digits(a, 64)[0], keys).mean()


def main() -> Result:
    """Train on images, and evaluate the bound on others."""
    a, b, c, d = xf.random.split(xf.random.key(0), 4)
    start = Weights(init(a, 28 * 28, 64, 2 * LATENT), init(b, LATENT, 64, 28 * 28))
    weights, _ = minimize(loss, start, xf.optim.adam(3e-3), xf.random.split(c, 600))
    result = Result(weights, -loss(start, d).item(), -loss(weights, d).item())
    print(f"evidence bound: {result.before:.0f} nats at first, {result.after:.0f} after training")
    return result


if __name__ == "__main__":
    main()
