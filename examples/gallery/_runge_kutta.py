"""The classical Runge-Kutta method, and a pendulum to solve by it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import xfunc as xf


def runge_kutta(f: Callable[[Any], Any], y: Any, time: float, steps: int = 10) -> Any:
    """The solution of ``dy/dt == f(y)`` after `time`; `y` is a tree."""
    h = time / steps

    def move(y: Any, slope: Any, h: float) -> Any:
        return xf.tree.map(lambda y, k: y + h * k, y, slope)

    def step(_: Tensor, y: Any) -> Any:
        a = f(y)
        b = f(move(y, a, h / 2))
        c = f(move(y, b, h / 2))
        d = f(move(y, c, h))
        return move(y, xf.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, a, b, c, d), h)

    return xf.fori_loop(0, steps, step, y)


def pendulum(y: Tensor) -> Tensor:
    """The velocity of an angle and its speed, with friction."""
    return torch.stack([y[1], -4 * torch.sin(y[0]) - 0.3 * y[1]])
