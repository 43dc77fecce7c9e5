"""Kalman filter: the likelihood of a state-space model, and its parameters by gradient ascent.

The filter is a function of one observation, which `xf.scan` runs over the series. The gradient goes
through that loop, inside another scan, of optimizer steps, which fits the noise of the motion and
of the sensor.

In JAX: `jax.lax.scan` inside `jax.value_and_grad`, with `optax.adam`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import xfunc as xf
from examples.gallery._training import minimize


class Noise(NamedTuple):
    """Logarithms of standard deviations: of changes of the velocity, and of the sensor."""

    motion: Tensor
    sensor: Tensor


class Result(NamedTuple):
    """The fitted noise, log likelihoods, and arrays over time."""

    noise: Noise
    log_likelihoods: Tensor  # before each step of the fit
    positions: Tensor
    observations: Tensor
    means: Tensor
    deviations: Tensor


def kalman_filter(noise: Noise, observations: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The log likelihood of positions [time], and means and deviations of the filtered ones."""
    move = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=observations.dtype)
    motion = torch.diag(torch.stack([torch.zeros_like(noise.motion), (2 * noise.motion).exp()]))

    def step(state: tuple[Tensor, Tensor], y: Tensor) -> Any:
        mean, cov = state  # of [position, velocity], given the observations before
        variance, error = cov[0, 0] + (2 * noise.sensor).exp(), y - mean[0]
        term = -0.5 * (error**2 / variance + (2 * torch.pi * variance).log())
        gain = cov[0] / variance
        mean, cov = mean + gain * error, cov - torch.outer(gain, cov[0])
        return (move @ mean, move @ cov @ move.T + motion), (term, mean[0], cov[0, 0].sqrt())

    start = torch.zeros_like(motion[0]), torch.eye(2, dtype=motion.dtype)
    _, (terms, means, deviations) = xf.scan(step, start, observations)
    return terms.sum(), (means, deviations)


def main() -> Result:
    """Fit the noise to a simulated series, whose velocity is a random walk."""
    kicks, errors = xf.random.normal(xf.random.key(0), (2, 200))
    positions = (0.1 * kicks).cumsum(0).cumsum(0)
    observations = positions + 2 * errors

    def loss(noise: Noise, _: Tensor) -> Tensor:
        return -kalman_filter(noise, observations)[0]

    start = Noise(torch.zeros(()), torch.zeros(()))
    noise, losses = minimize(loss, start, xf.optim.adam(0.05), torch.arange(200))
    _, (means, deviations) = xf.jit(kalman_filter)(noise, observations)
    result = xf.device_get(Result(noise, -losses, positions, observations, means, deviations))
    first, last = result.log_likelihoods[[0, -1]].tolist()
    print(f"log likelihood: {first:.0f} at first, {last:.0f} at the end")
    print(f"noise of the motion: {noise.motion.exp().item():.2f}, and 0.10 in truth")
    print(f"noise of the sensor: {noise.sensor.exp().item():.1f}, and 2.0 in truth")
    return result


if __name__ == "__main__":
    main()
