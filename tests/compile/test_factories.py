"""Functions that make tensors in traced code, and the devices that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


W = torch.tensor([3.0, 4.0])
PLACED: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "ones": lambda x, d: x + torch.ones(2, device=d),
    "arange": lambda x, d: x + torch.arange(2, device=d),
    "eye": lambda x, d: torch.eye(2, device=d) @ x,
    "window": lambda x, d: x + torch.hann_window(2, device=d),
    "tensor": lambda x, d: x + torch.tensor([1.0, 2.0], device=d),
    "asarray": lambda x, d: x + torch.asarray([1.0, 2.0], device=d),
    "new_zeros": lambda x, d: x + x.new_zeros(2, device=d),
    "ones_like": lambda x, d: x + torch.ones_like(x, device=d),
    "as_tensor of a value": lambda x, d: torch.as_tensor(x, device=d) + 1,
    "to": lambda x, d: x.to(d) * W.to(d),
    "to by name": lambda x, d: x.to(device=d) + 1,
    "to with a dtype": lambda x, d: x.to(d, torch.float64) + 1,
    "context": lambda x, d: x + _inside(torch.device(d)),
    "module": lambda x, d: torch.nn.Flatten(0).to(d)(x),
}


def _inside(device: torch.device) -> torch.Tensor:
    with device:
        return torch.full((2,), 3.0)


@pytest.mark.quick
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "xla", "own"])
@pytest.mark.parametrize("name", PLACED)
def test_accelerators_in_traced_code_are_the_device_of_the_program(name: str, device: str) -> None:
    f, x = PLACED[name], torch.tensor([1.0, 2.0])
    found = xf.jit(lambda x: f(x, x.device if device == "own" else device))(x)
    torch.testing.assert_close(found.cpu(), f(x, torch.device("cpu")))


_to: Any = torch.Tensor.to

AS_OF_A_TENSOR: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "its device": lambda x, w: x.to(w.device) + torch.ones(2, device=w.device),
    "the tensor": lambda x, w: x.to(w),
    "the tensor by name": lambda x, w: _to(x.double(), tensor=w) * w,
    "comparison": lambda x, w: x * w if x.device == w.device else x,
    "cuda": lambda x, w: x.cuda() * w if x.device.type == "lazy" else x * w,
}


@pytest.mark.quick
@pytest.mark.parametrize("transform", [xf.jit, xf.vmap, xf.jacrev])
@pytest.mark.parametrize("name", AS_OF_A_TENSOR)
def test_device_of_a_tensor_from_outside(name: str, transform: Any) -> None:
    f, x = AS_OF_A_TENSOR[name], torch.tensor([[1.0, 2.0], [5.0, 6.0]])
    expected = {xf.jit: lambda x: f(x, W), xf.vmap: lambda x: f(x, W)}.get(
        transform, lambda x: torch.autograd.functional.jacobian(lambda x: f(x, W), x)
    )(x)
    for w in (W, xf.device_put(W)):
        found = transform(lambda x, w=w: f(x, w))(x)
        torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("rows", [0, 3, 5])
@pytest.mark.parametrize("columns", [0, 2, 4])
@pytest.mark.parametrize("function", [torch.tril_indices, torch.triu_indices])
def test_indices_of_triangles(function: Any, rows: int, columns: int) -> None:
    for offset in (-7, -1, 0, 2):
        for dtype in (torch.int64, torch.int32):
            expected = function(rows, columns, offset, dtype=dtype)
            f = xf.jit(lambda x, k=offset, d=dtype: function(rows, columns, k, dtype=d) + x)
            found = f(torch.zeros((), dtype=dtype)).cpu()
            torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [None, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("function", [torch.fft.fftfreq, torch.fft.rfftfreq])
def test_frequencies(function: Any, dtype: torch.dtype | None) -> None:
    for n in (1, 2, 5, 8):
        found = xf.jit(lambda n=n: function(n, d=0.3, dtype=dtype))()
        torch.testing.assert_close(found.cpu(), function(n, d=0.3, dtype=dtype), rtol=0, atol=0)
