"""What reads a result on the device as if it were an array of the host, on each backend."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import xfunc as xf

HOST = torch.tensor([1.0, 2.5, 4.0])
WAYS: dict[str, tuple[Callable[[torch.Tensor], object], object]] = {
    "np.asarray": (lambda y: np.asarray(y).tolist(), [1.0, 2.5, 4.0]),
    "np.array with a dtype": (lambda y: np.array(y, dtype=np.float64).dtype.name, "float64"),
    "float": (lambda y: float(y.sum()), 7.5),
    "int": (lambda y: int(y.sum()), 7),
    "bool": (lambda y: bool(y[0] > 0), True),
    "index": (lambda y: [10, 20, 30][y.argmax()], 30),
    "format": (lambda y: f"{y.sum():.2f}", "7.50"),
    "tolist": (lambda y: y.tolist(), [1.0, 2.5, 4.0]),
    "item": (lambda y: y[1].item(), 2.5),
    "numpy": (lambda y: y.cpu().numpy().tolist(), [1.0, 2.5, 4.0]),
    "np.mean of scalars": (lambda y: np.mean([y[0], y[2]]).item(), 2.5),
    "np.mean": (lambda y: np.mean(np.asarray(y)).item(), 2.5),
    "list of them to numpy": (lambda y: np.stack([y, y]).shape, (2, 3)),
    "torch.allclose": (lambda y: torch.allclose(y, HOST), True),
    "torch.equal": (lambda y: torch.equal(y.cpu(), HOST), True),
    "assert_close": (lambda y: torch.testing.assert_close(y, HOST, check_device=False), None),
    "add numpy": (lambda y: (y + np.ones(3, np.float32)).tolist(), [2.0, 3.5, 5.0]),
    "numpy add": (lambda y: np.asarray(np.ones(3, np.float32) + np.asarray(y)).tolist(),
                  [2.0, 3.5, 5.0]),
    "add host": (lambda y: (y + HOST).tolist(), [2.0, 5.0, 8.0]),
    "host add": (lambda y: (HOST + y).tolist(), [2.0, 5.0, 8.0]),
    "math": (lambda y: math.sqrt(y[2]), 2.0),
    "iterate": (lambda y: [float(v) for v in y], [1.0, 2.5, 4.0]),
    "max": (lambda y: float(max(y)), 4.0),
    "json": (lambda y: json.dumps({"loss": y.sum().item()}), '{"loss": 7.5}'),
    "copy": (lambda y: copy.deepcopy(y).tolist(), [1.0, 2.5, 4.0]),
    "pickle": (lambda y: pickle.loads(pickle.dumps(y)).tolist(), [1.0, 2.5, 4.0]),
    "from_dlpack": (lambda y: torch.from_dlpack(y).tolist(), [1.0, 2.5, 4.0]),
    "np.from_dlpack": (lambda y: np.from_dlpack(y).tolist(), [1.0, 2.5, 4.0]),
    "repr": (lambda y: "1.0000, 2.5000, 4.0000" in repr(y), True),
    "torch.tensor": (lambda y: torch.tensor(np.asarray(y)).tolist(), [1.0, 2.5, 4.0]),
    "to cpu": (lambda y: y.to("cpu").device.type, "cpu"),
    "device_get": (lambda y: xf.device_get(y).device.type, "cpu"),
}  # fmt: skip


# torch_xla's tensors are torch's own, of a device: what torch cannot do with those raises.
_NUMPY = TypeError, r"Use Tensor\.cpu\(\) to copy the tensor to host memory first"
REFUSED: dict[str, tuple[type[Exception], str]] = {
    **dict.fromkeys(
        (
            "np.asarray",
            "np.array with a dtype",
            "np.mean of scalars",
            "np.mean",
            "list of them to numpy",
            "add numpy",
            "numpy add",
            "torch.tensor",
        ),
        _NUMPY,
    ),
    "torch.allclose": (RuntimeError, "Expected XLA tensor"),
    "from_dlpack": (ValueError, "Unknown device type xla for Dlpack"),
    "np.from_dlpack": (RuntimeError, "Can't export to dlpack an XLA tensor"),
}


def is_torch_xla() -> bool:
    return os.environ.get("XFUNC_BACKEND") == "torch_xla"


# NumPy 2 warns so of any tensor of torch, and computes with it.
@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning")
@pytest.mark.parametrize("way", WAYS)
def test_result_is_read(way: str) -> None:
    read, want = WAYS[way]
    y = xf.jit(lambda x: x * 2)(HOST / 2)
    if is_torch_xla() and way in REFUSED:
        error, match = REFUSED[way]
        with pytest.raises(error, match=match):
            read(y)
        y = y.cpu()
    assert read(y) == want


def test_result_is_read_by_jax() -> None:
    y = xf.jit(lambda x: x * 2)(HOST / 2)
    z = jnp.asarray(y.cpu() if is_torch_xla() else y)
    assert np.asarray(z).tolist() == [1.0, 2.5, 4.0]
    assert float(jnp.sum(z)) == 7.5
