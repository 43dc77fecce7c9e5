"""A pole on a cart, as pure functions, and many of them by `xf.vmap`.

Source: Barto, Sutton, Anderson, "Neuronlike Adaptive Elements That Can Solve Difficult Learning
Control Problems", 1983.
"""

import torch
from torch import Tensor

import xfunc as xf


def start(key: Tensor) -> Tensor:
    """Place and speed of the cart, angle of the pole and its speed, [4]; close to upright."""
    return xf.random.uniform(key, (4,), minval=-0.05, maxval=0.05)


def move(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """The state after 0.02 s of a push to the left (0) or right (1), and whether the pole fell."""
    place, speed, angle, spin = state
    sin, cos = angle.sin(), angle.cos()
    push = (20.0 * action - 10.0 + 0.05 * spin**2 * sin) / 1.1
    turn = (9.8 * sin - cos * push) / (2 / 3 - 0.05 * cos**2 / 1.1)
    change = torch.stack([speed, push - 0.05 * turn * cos / 1.1, spin, turn])
    return state + 0.02 * change, (place.abs() > 2.4) | (angle.abs() > 0.21)
