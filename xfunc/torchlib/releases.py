"""What differs between releases of torch: all that asks for its version, or for what some lack."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch


def properties(*names: str) -> list[Callable[..., object]]:
    """The getters of these properties of tensors, without those that this release no longer has.

    Named tensors went with torch 2.13.
    """
    bases = (torch._C.TensorBase, torch.Tensor)
    found = [next((vars(b)[n] for b in bases if n in vars(b)), None) for n in names]
    return [f.__get__ for f in found if f is not None]


@functools.cache
def load_tangents_of_compositions() -> None:
    """Import what torch imports at the first forward derivative.

    It compiles them by ``torch.jit.script``, at which torch 2.12 and later warn: of its own code.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")


def refusing_reads(kind: type[torch.Tensor], message: str) -> Callable[[Any], object]:
    """What to do with each new tensor of a kind without memory, lest a read ends the process.

    Reads that do not ask the tensor first, like `to_dlpack`, raise a RuntimeError from then on.
    """
    private: Any = torch._C
    if (
        set_message := getattr(private, "_set_storage_data_ptr_access_error_msg", None)
    ) is not None:
        storage = torch._C.TensorBase.untyped_storage
        return lambda tensor: set_message(storage(tensor)._cdata, message)
    _refuse_as_data(kind, message)
    return private._set_throw_on_mutable_data_ptr


def _refuse_as_data(kind: type[torch.Tensor], message: str) -> None:
    """Refuse ``x.data = tensor`` of a kind without memory: x, torch's own, would be read.

    For builds of torch without CUDA, in which reading the memory itself cannot be refused.
    """
    data: Any = vars(torch._C.TensorBase)["data"]

    def set_data(self: torch.Tensor, value: Any) -> None:
        if isinstance(value, kind) and not isinstance(self, kind):
            raise RuntimeError(message)
        data.__set__(self, value)

    whole: Any = torch.Tensor
    whole.data = property(data.__get__, set_data, data.__delete__, data.__doc__)
