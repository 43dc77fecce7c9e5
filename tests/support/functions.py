"""Small values and functions that tests of `jit`, of the cache and of survival have in common."""

from __future__ import annotations

from typing import Any

import torch


def vector(*values: float) -> torch.Tensor:
    """One to three, unless told otherwise."""
    return torch.tensor(values or (1.0, 2.0, 3.0), dtype=torch.float32)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def scaled(x: torch.Tensor, k: Any = 2) -> torch.Tensor:
    """Doubles."""
    return x * k


def power(x: torch.Tensor, *, n: int) -> torch.Tensor:
    return x**n


class Model:
    scale = 2.0

    def __init__(self) -> None:
        self.weight = vector()
        self.power = 2

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.apply(x)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x**self.power * self.weight
