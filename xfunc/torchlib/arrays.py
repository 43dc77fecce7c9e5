"""NumPy's arrays as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def from_numpy(x: Any) -> Any:
    """A NumPy array or scalar as a CPU tensor with data of its own; anything else unchanged."""
    if not isinstance(x, (np.ndarray, np.generic)):
        return x
    array = np.asarray(x)
    if array.dtype.name == "bfloat16":  # of ml_dtypes, as JAX hands out
        return torch.from_numpy(np.array(array, order="C").view(np.int16)).view(torch.bfloat16)
    try:
        # A copy: torch takes no negative strides, and warns of memory that it may not write.
        return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
    except TypeError:  # of strings or objects
        return x
