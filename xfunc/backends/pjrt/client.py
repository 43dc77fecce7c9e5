"""JAX as a client of PJRT: which devices it has, and data on them."""

from __future__ import annotations

import functools
import glob
import os
from types import ModuleType
from typing import Any

import numpy as np
import torch

from xfunc.errors import fail


@functools.cache
def jax() -> ModuleType:
    """JAX, with integers and floats of 64 bits; the first call starts its devices.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import jax

        config: Any = jax.config
    except ImportError as error:
        raise ImportError(
            "the backend 'pjrt' needs JAX, which is not installed\n"
            "Hint: pip install 'xfunc[pjrt]', or 'xfunc[cuda12]' for a GPU."
        ) from error
    if not _has_accelerator() and not config.jax_platforms:
        # JAX would ask an installed libtpu, which looks for its machine over the network.
        config.update("jax_platforms", "cpu")
    config.update("jax_enable_x64", True)
    if jax.device_count() > 1:
        fail(
            NotImplementedError,
            f"the backend 'pjrt' runs on one device, but JAX has {jax.device_count()}",
            "show JAX one of them (CUDA_VISIBLE_DEVICES=0), or use the backend 'torch_xla'.",
        )
    return jax


def _has_accelerator() -> bool:
    kinds = "/dev/accel*", "/dev/vfio/[0-9]*", "/dev/nvidia[0-9]*"
    return "JAX_PLATFORMS" in os.environ or any(map(glob.glob, kinds))


def platform() -> str:
    """``"cpu"``, ``"gpu"`` or ``"tpu"``."""
    return jax().default_backend()


def put(tensor: torch.Tensor) -> Any:
    """The values of a plain tensor of the CPU in a new ``jax.Array``."""
    tensor = tensor.resolve_conj().resolve_neg()
    # JAX copies: what the tensor holds may change while the copy is used.
    return jax().device_put(as_numpy(tensor), may_alias=False)


def get(array: Any) -> torch.Tensor:
    """The values of a ``jax.Array`` in a new tensor of the CPU."""
    found = np.asarray(array)
    if found.dtype.name == "bfloat16":
        return torch.from_numpy(found.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(found.copy())


def as_numpy(tensor: torch.Tensor) -> Any:
    """The memory of a plain tensor of the CPU as an array; bfloat16 as JAX has it."""
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return tensor.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.detach().numpy()


@functools.cache
def numpy_dtype(dtype: torch.dtype) -> Any:
    """NumPy's dtype of a torch dtype, bfloat16 as JAX has it."""
    return as_numpy(torch.empty(0, dtype=dtype)).dtype
