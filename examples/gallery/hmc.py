"""Hamiltonian Monte Carlo: many chains that sample a density known up to a factor.

A chain is written for one point: `xf.grad` gives the force, `xf.fori_loop` the trajectory and
`xf.scan` the samples. `xf.vmap` over keys runs all chains in one program.

In JAX: `jax.vmap` of a chain made with `jax.lax.scan`, as in `blackjax`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import xfunc as xf

MEAN = torch.tensor([1.0, -2.0])
COVARIANCE = torch.tensor([[1.0, 0.8], [0.8, 2.0]])
PRECISION = torch.linalg.inv(COVARIANCE)


class Result(NamedTuple):
    """Samples [chain, sample, 2], and the share of accepted proposals."""

    samples: Tensor
    accepted: float


def gaussian(x: Tensor) -> Tensor:
    """The log density of a point [2], but for a constant."""
    return -0.5 * (x - MEAN) @ PRECISION @ (x - MEAN)


def chain(
    log_density: Callable[[Tensor], Tensor], start: Tensor, key: Tensor, samples: int
) -> tuple[Tensor, Tensor]:
    """Samples, each by a trajectory of 5 leapfrog steps, and whether each was accepted."""
    force, size = xf.grad(log_density), 0.6

    def leapfrog(_: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, momentum = state
        momentum = momentum + 0.5 * size * force(x)
        x = x + size * momentum
        return x, momentum + 0.5 * size * force(x)

    def step(x: Tensor, key: Tensor) -> Any:
        for_momentum, for_choice = xf.random.split(key)
        momentum = xf.random.normal(for_momentum, x.shape)
        proposal, end = xf.fori_loop(0, 5, leapfrog, (x, momentum))
        gain = log_density(proposal) - log_density(x)
        gain = gain + 0.5 * (momentum.square() - end.square()).sum()
        accept = xf.random.uniform(for_choice, ()).log() < gain
        x = torch.where(accept, proposal, x)
        return x, (x, accept)

    return xf.scan(step, start, xf.random.split(key, samples))[1]


def main() -> Result:
    """Sample a Gaussian, and compare mean and covariance."""

    @xf.jit
    @xf.vmap
    def run(key: Tensor) -> tuple[Tensor, Tensor]:
        start, moves = xf.random.split(key)
        return chain(gaussian, 5 * xf.random.normal(start, (2,)), moves, 550)

    samples, accepted = xf.device_get(run(xf.random.split(xf.random.key(0), 64)))
    samples, accepted = samples[:, 50:], accepted[:, 50:].float().mean().item()
    points = samples.reshape(-1, 2)
    print(f"64 chains of 500 samples; {accepted:.0%} of the proposals accepted")
    (x, y), (xx, xy, _, yy) = points.mean(0).tolist(), torch.cov(points.T).flatten().tolist()
    print(f"mean: {x:.1f}, {y:.1f}, and 1.0, -2.0 in truth")
    print(f"covariance: {xx:.1f}, {xy:.1f}, {yy:.1f}, and 1.0, 0.8, 2.0 in truth")
    return Result(samples, accepted)


if __name__ == "__main__":
    main()
