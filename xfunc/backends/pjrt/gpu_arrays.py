"""Arrays shared by torch and JAX on a GPU, without copies to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from xfunc.backends.pjrt import client

if TYPE_CHECKING:
    import jax


def _is_shared(dtype: str, device: torch.device, where: jax.sharding.Sharding) -> bool:
    """Whether torch and JAX can read each other's arrays on this GPU."""
    [first, *others] = where.device_set
    if others or first.platform != "gpu" or dtype.removeprefix("torch.") not in _OF_DLPACK:
        return False
    index = torch.cuda.current_device() if device.index is None else device.index
    return first.local_hardware_id == index


_OF_DLPACK = frozenset(
    "bool uint8 int8 int16 int32 int64 float16 bfloat16 "
    "float32 float64 complex64 complex128".split()
)


def put(tensor: torch.Tensor, sharding: jax.sharding.Sharding) -> jax.Array | None:
    """The values of a tensor of torch's in a new array on its GPU; None: they belong elsewhere."""
    on_gpu = tensor.is_cuda and tensor.numel() > 0
    if on_gpu and _is_shared(str(tensor.dtype), tensor.device, sharding):
        return copied(tensor, sharding)
    return None


def copied(tensor: torch.Tensor, sharding: jax.sharding.Sharding) -> jax.Array:
    """The values of a tensor that is already in the right place."""
    held = tensor.detach().resolve_conj().resolve_neg().contiguous()
    jax = client.jax()
    with client.x64()(True):
        # A copy, as torch may write to its own, and a program reuses donated arrays.
        copy = jax.numpy.array(jax.numpy.from_dlpack(held), copy=True)
        return jax.block_until_ready(jax.device_put(copy, sharding))


def get(array: jax.Array, device: torch.device) -> torch.Tensor | None:
    """The values of an array in a new tensor on this GPU; None: they are not there."""
    if not array.size or not _is_shared(array.dtype.name, device, array.sharding):
        return None
    result = torch.from_dlpack(array).clone()
    torch.cuda.current_stream(device).synchronize()  # Then JAX may use the memory again.
    return result
