"""Tensors of the CPU to the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xfunc.backends.torch_xla.runtime import device, xla
from xfunc.core.types import AutogradContext
from xfunc.torchlib.functorch import any_dual, top_level
from xfunc.torchlib.storageless import is_without_memory, with_memory

# torch_xla would make these signed, unless torch's dispatcher moves them.
_BY_DISPATCHER = frozenset({torch.uint16, torch.uint32, torch.uint64})


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's value on the device (differentiable), in its own buffer."""
    if tensor.device == device():
        return tensor
    if tensor.requires_grad or top_level() is not None or any_dual(tensor) or not is_data(tensor):
        return tensor.to(device())
    return uploaded(tensor)


def all_to_device(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """`to_device` of each; tensors that require gradients move together, as one autograd node."""
    if not torch.is_grad_enabled() or top_level() is not None:
        return list(map(to_device, tensors))
    watched = {i: t for i, t in enumerate(tensors) if t.requires_grad and is_data(t)}
    made: Any = _Upload.apply(*watched.values()) if watched else ()
    moved = dict(zip(watched, made, strict=True))
    return [moved[i] if i in moved else to_device(t) for i, t in enumerate(tensors)]


class _Upload(torch.autograd.Function):
    """`uploaded` with gradients that go back to the CPU."""

    @staticmethod
    def forward(ctx: AutogradContext, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(_uploaded(tensors))

    @staticmethod
    def backward(ctx: object, *cts: torch.Tensor | None) -> object:
        return tuple(None if c is None else c.cpu() for c in cts)


def is_data(tensor: torch.Tensor) -> bool:
    """Whether `uploaded` takes a tensor on which nothing is recorded."""
    strided = tensor.is_cpu and tensor.layout is torch.strided
    return strided and tensor.dtype not in _BY_DISPATCHER


# NOTE [scalars of one's own]
# torch_xla gives equal 0-d CPU tensors the same buffer, and remembers it. If it were donated, two
# of them in one call would donate it twice, and the next one would find a buffer that is gone.
def uploaded(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a CPU tensor on the device, in their own buffer."""
    return _uploaded([tensor])[0]


def _uploaded(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    where = [str(device())] * len(tensors)
    return xla()._xla_tensors_from_aten(list(map(plain, tensors)), where)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same values without the bits for "conjugate" and "negative", which torch_xla refuses."""
    if is_without_memory(tensor):
        tensor = with_memory(tensor)
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor
