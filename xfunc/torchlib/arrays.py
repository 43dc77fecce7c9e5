"""NumPy arrays as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def from_numpy(x: Any) -> Any:
    """A NumPy array or scalar as a CPU tensor that owns its data; anything else unchanged."""
    if not isinstance(x, (np.ndarray, np.generic)):
        return x
    array = np.asarray(x)
    if array.dtype.name == "bfloat16":  # from ml_dtypes, as in JAX's arrays
        return torch.from_numpy(np.array(array, order="C").view(np.int16)).view(torch.bfloat16)
    try:
        # A copy: torch rejects negative strides, and warns about read-only memory.
        return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
    except TypeError:  # strings or objects
        return x
