"""Numbers, arrays and tensors of the CPU among the arguments of a call that is like the last one.

Unusual arguments are left to `xfunc.stages.arguments.prepare`, which also raises the errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from xfunc.backends.pjrt import client
from xfunc.backends.pjrt.array import Array, make
from xfunc.backends.pjrt.shardings import sharding
from xfunc.core.avals import NUMBERS, dtype_of
from xfunc.torchlib import functorch
from xfunc.torchlib.values import SUPPORTED

_WIDE, _LARGE = (torch.float32, torch.float64), 1e38


class HostData:
    """Takes such arguments to the only device.

    Attributes:
        kinds: the classes of arguments that may be taken.
    """

    def __init__(self) -> None:
        self._where = sharding(None)
        with functorch.bottom_level():  # A transform of torch's would wrap it.
            self._plain_keys = torch._C._dispatch_keys(torch.empty(0, device="cpu")).raw_repr()
        self._dtypes = {client.numpy_dtype(d): d for d in SUPPORTED}
        self._takes: dict[type, Callable[[Any], Array | None]] = {
            torch.Tensor: self._tensor,
            np.ndarray: self._array,
            **{dtype.type: self._scalar for dtype in self._dtypes},
            **dict.fromkeys(NUMBERS, self._number),
        }
        self.kinds = self._takes.keys()

    def taken(self, x: object) -> Array | None:
        """See `xfunc.backends.protocol.Runtime.taken`."""
        take = self._takes.get(type(x))
        return None if take is None or not client.x64().value else take(x)

    def _number(self, x: Any) -> Array | None:
        kind = type(x)
        if kind is int and not -(2**63) <= x < 2**63:
            return None
        dtype = dtype_of(kind)
        if kind is int or kind is bool or (dtype in _WIDE and abs(x) < _LARGE):
            return self._made(np.array(x, client.numpy_dtype(dtype)))
        return self._made(
            torch.tensor(x, dtype=dtype, device="cpu").numpy()
        )  # NumPy may warn of infinities.

    def _tensor(self, x: torch.Tensor) -> Array | None:
        keys = torch._C._dispatch_keys(x).raw_repr()
        if keys != self._plain_keys or x.requires_grad or (x.data_ptr() == 0 and x.numel() > 0):
            return None
        if x.dtype not in SUPPORTED:
            return None
        # Its own memory could never be resized again, if it were NumPy's too.
        return self._made(client.as_numpy(x.clone(memory_format=torch.contiguous_format)))

    def _array(self, x: np.ndarray[Any, Any]) -> Array | None:
        return self._made(x.copy()) if x.dtype in self._dtypes else None

    def _scalar(self, x: np.generic) -> Array:
        return self._made(np.array(x))

    def _made(self, x: np.ndarray[Any, Any]) -> Array:
        aval = torch.Size(x.shape), self._dtypes[x.dtype]
        return make(client.put_array(x, self._where), aval)
