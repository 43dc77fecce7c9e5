"""Random points of the plane, for the examples that learn a distribution."""

import torch
from torch import Tensor

import xfunc as xf


def eight_places(key: Tensor, n: int) -> Tensor:
    """Points [n, 2] close to eight places on a circle."""
    a, b = xf.random.split(key)
    angle = xf.random.randint(a, (n,), 0, 8) * (torch.pi / 4)
    return torch.stack([angle.cos(), angle.sin()], -1) + 0.05 * xf.random.normal(b, (n, 2))


def moons(key: Tensor, n: int) -> Tensor:
    """Points [n, 2] of two interleaved half circles, with noise."""
    a, b, c = xf.random.split(key, 3)
    angle = torch.pi * xf.random.uniform(a, (n,))
    arc = torch.stack([angle.cos() - 0.5, angle.sin() - 0.25], -1)
    sign = xf.random.rademacher(b, (n, 1), torch.float32)
    return sign * arc + 0.1 * xf.random.normal(c, (n, 2))
