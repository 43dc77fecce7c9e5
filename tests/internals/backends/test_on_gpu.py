"""Tensors that torch has where the programs run: they go there without passing the host.

There is no GPU here; so these are of the CPU, on which JAX takes and gives them in the same way.
`benchmarks.gpu` has the same on a GPU.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.backends.pjrt import gpu_arrays
from xfunc.backends.pjrt.shardings import sharding

pytestmark = pytest.mark.usefixtures("pjrt")
DTYPES = [getattr(torch, name) for name in sorted(gpu_arrays._OF_DLPACK)]
OF: dict[str, Any] = {
    "whole": lambda x: x,
    "strided": lambda x: x[:, ::2],
    "transposed": lambda x: x.T,
    "expanded": lambda x: x[:1].expand(5, -1),
    "conjugate": lambda x: x.conj(),
    "imaginary": lambda x: x.conj().imag if x.is_complex() else x,
    "scalar": lambda x: x[0, 0],
}


def values(dtype: torch.dtype) -> torch.Tensor:
    x = torch.arange(12).reshape(3, 4)
    return torch.complex(x.double(), -x.double()).to(dtype) if dtype.is_complex else x.to(dtype)


@pytest.mark.parametrize("kind", OF)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_on_gpu_copied_every_dtype(kind: str, dtype: torch.dtype) -> None:
    given = OF[kind](values(dtype))
    before = given.clone().resolve_conj().resolve_neg()
    back = torch.from_dlpack(gpu_arrays.copied(given, sharding(None)))
    if kind != "expanded":
        given.zero_()
    assert back.dtype is given.dtype
    torch.testing.assert_close(back, before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        (True, {}),
        (False, {"index": 1}),
        (False, {"platform": "cpu"}),
        (False, {"dtype": "torch.float8_e5m2"}),
        (False, {"devices": 2}),
    ],
    ids=str,
)
def test_on_gpu_is_shared_on_same_gpu_only(expected: bool, changes: dict[str, Any]) -> None:
    case = {"index": 0, "platform": "gpu", "dtype": "torch.float32", "devices": 1} | changes
    devices = [
        SimpleNamespace(platform=case["platform"], local_hardware_id=k)
        for k in range(case["devices"])
    ]
    where: Any = SimpleNamespace(device_set=devices)
    device = torch.device("cuda", case["index"])
    assert gpu_arrays._is_shared(case["dtype"], device, where) is expected


def test_result_to_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a copy there, of what a program made; of what torch has written to, through the host."""
    gpu, moved = torch.device("cuda", 0), []

    def get(array: Any, device: torch.device) -> torch.Tensor:
        moved.append(device)
        return torch.from_dlpack(array).clone()

    monkeypatch.setattr(gpu_arrays, "get", get)
    y: Any = xf.jit(lambda x: x + 1)(torch.zeros(3))
    to: Any = torch.ops.aten._to_copy.default
    found = to(y, device=gpu)
    assert type(found) is torch.Tensor
    assert found.tolist() == [1.0, 1.0, 1.0]
    half = to(y, device=gpu, dtype=torch.float16)
    assert half.dtype is torch.float16
    assert moved == [gpu, gpu]
    image = xf.jit(lambda x: x + 1)(torch.zeros(1, 2, 3, 4))
    last = to(image, device=gpu, memory_format=torch.channels_last)
    assert last.is_contiguous(memory_format=torch.channels_last)
    moved.clear()
    assert to(y, dtype=torch.float64).dtype is torch.float64
    y.mul_(2)
    assert y._data.on_gpu(gpu) is None
    assert to(y, device=torch.device("cpu")).tolist() == [2.0, 2.0, 2.0]
    assert not moved


def test_jit_argument_on_gpu_is_copied_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are on the GPU; the host has the others."""
    taken = []

    def put(tensor: torch.Tensor, where: Any) -> Any:
        if tensor.ndim == 0:
            return None
        taken.append(tensor)
        return gpu_arrays.copied(tensor, where)

    monkeypatch.setattr(gpu_arrays, "put", put)
    x, f = torch.arange(3.0), xf.jit(lambda x, y: x * y)
    first = f(x, torch.tensor(2.0))
    x.zero_()
    assert [t.shape for t in taken] == [(3,)]
    assert first.tolist() == [0.0, 2.0, 4.0]
    assert f(x, torch.tensor(2.0)).tolist() == [0.0, 0.0, 0.0]
