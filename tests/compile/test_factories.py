"""Functions that make tensors, in traced code, with a default device of the user's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import xfunc as xf

MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as_tensor": lambda x: torch.as_tensor(x) + 1,
    "as_tensor with a dtype": lambda x: torch.as_tensor(x, dtype=torch.float64) + 1,
    "asarray": lambda x: torch.asarray(x) + 1,
    "as_tensor of numbers": lambda x: torch.as_tensor([1.0, 1.0]) + x,
    "zeros": lambda x: torch.zeros(2) + x + 1,
    "full_like": lambda x: torch.full_like(x, 1.0) + x,
}


@pytest.mark.parametrize("transform", [xf.jit, xf.vmap, lambda f: xf.jit(xf.vmap(f))])
@pytest.mark.parametrize("name", MADE)
def test_tensors_are_made_with_a_default_device(name: str, transform: Callable) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    with torch.device("cpu"):
        assert transform(MADE[name])(x).tolist() == [[2.0, 3.0], [4.0, 5.0]]
