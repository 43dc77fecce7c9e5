"""Tensors of torch_xla's device, beside the programs that run on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import xfunc as xf

pytestmark = [pytest.mark.torch_xla, pytest.mark.one_device]

READS: dict[str, Callable[[torch.Tensor], object]] = {
    "cpu": lambda x: x.cpu(),
    "to with another dtype": lambda x: x.to("cpu", torch.complex64),
    "tolist": lambda x: torch.tensor(x.tolist()),
    "item": lambda x: torch.tensor([v.item() for v in x.flatten()]),
    "copy_": lambda x: torch.zeros(x.shape, dtype=x.dtype).copy_(x),
    "device_get": xf.device_get,
    "an operation computed on the host": lambda x: torch.trace(x).cpu(),
}


@pytest.fixture(autouse=True)
def _on_torch_xla() -> None:
    xf.config.set_backend("torch_xla")


def on_device(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return xf.device_put(torch.ones(shape, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("read", READS)
def test_read_of_complex_tensor(read: str, dtype: torch.dtype) -> None:
    x = torch.randn(2, 2, dtype=dtype)
    got, want = (READS[read](y) for y in (xf.jit(lambda x: x * 2)(x), x * 2))
    torch.testing.assert_close(got, want)


def test_donated_clone_leaves_its_source() -> None:
    add = xf.jit(lambda x: x + 1, donate_argnums=0)
    x = on_device(3)
    for _ in range(2):
        assert add(x.clone()).tolist() == [2, 2, 2]
    assert x.tolist() == [1, 1, 1]


def test_donated_tensor_leaves_its_clone_and_what_is_pending() -> None:
    both = xf.jit(lambda x, y: (x + 1, x + y), donate_argnums=0)
    for _ in range(2):
        x = on_device(3)
        clone, pending = x.clone(), x * 5
        assert [t.tolist() for t in both(x, clone)] == [[2, 2, 2], [2, 2, 2]]
        assert clone.tolist() == [1, 1, 1]
        assert pending.tolist() == [5, 5, 5]


def test_donated_equal_scalars() -> None:
    add = xf.jit(lambda x, y: (x + 1, y + 1), donate_argnums=(0, 1))
    device = on_device().device
    for _ in range(2):
        x, y = (torch.tensor(3.0).to(device) for _ in range(2))
        assert [t.item() for t in add(x, y)] == [4, 4]
