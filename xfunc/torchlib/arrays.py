"""NumPy arrays as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

BITS = {
    torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8,
}  # fmt: skip
"""Dtypes that NumPy has only from ml_dtypes, as in JAX's arrays, and those of their bits."""
_from_numpy = torch.from_numpy  # An open trace has another in its place.
_NAMED = {str(dtype).removeprefix("torch."): dtype for dtype in BITS}


def copied(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """The values of a NumPy array, which may be from ml_dtypes, in a new tensor of the CPU."""
    dtype = _NAMED.get(array.dtype.name)
    if dtype is None:
        # A copy: torch rejects negative strides, and warns about read-only memory.
        found = _from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
    else:
        bits = np.array(array, order="C").view(str(BITS[dtype]).removeprefix("torch."))
        found = _from_numpy(bits).view(dtype)
    # Without elements, NumPy's strides are 0, which torch does not view as other dtypes.
    return found if array.size else found.new_empty(array.shape)


def from_numpy(x: Any) -> Any:
    """A NumPy array or scalar as a CPU tensor that owns its data; anything else unchanged."""
    if not isinstance(x, (np.ndarray, np.generic)):
        return x
    try:
        return copied(np.asarray(x))
    except TypeError:  # strings or objects
        return x
