"""Views. Below functionalisation (see `registry`) each is a copy, and writing to it a scatter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xfunc.errors import UnsupportedOpError, fail
from xfunc.ops.registry import batched, composition, kernel
from xfunc.rules.views import check_strides
from xfunc.torchlib.in_place import REPLACED

Tensor = torch.Tensor


def _places(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None) -> Tensor:
    """Positions of the elements in the array, in row-major order."""
    check_strides(x.numel(), size, stride, offset or 0)
    place = torch.full(tuple(size), offset or 0, device=x.device, dtype=torch.int64)
    for k, (n, step) in enumerate(zip(size, stride, strict=True)):
        along = [1] * len(size)
        along[k] = n
        place = place + (torch.arange(n, device=x.device) * step).reshape(along)
    return place.reshape(-1)


# torch's derivative also counts the overwritten elements.
@batched("as_strided_scatter")
@composition("as_strided_scatter")
def as_strided_scatter(
    x: Tensor,
    src: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Tensor:
    places = _places(x, size, stride, storage_offset)
    return x.reshape(-1).scatter(0, places, src.reshape(-1)).reshape(x.shape)


@kernel("unfold_backward")
def unfold_backward(
    grad: Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int
) -> Tensor:
    if not input_sizes:
        return grad.sum()
    dim %= len(input_sizes)
    start = torch.arange(grad.shape[dim], device=grad.device) * step
    places = (start[:, None] + torch.arange(size, device=grad.device)).reshape(-1)
    out = torch.zeros(tuple(input_sizes), dtype=grad.dtype, device=grad.device)
    return out.index_add(dim, places, grad.movedim(-1, dim + 1).flatten(dim, dim + 1))


@kernel("roll")
def roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    if not x.numel():
        return x.clone()
    if not dims:
        return roll(x.reshape(-1), shifts, (0,)).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        cut = -shift % x.shape[dim]
        rest = x.narrow(dim, cut, x.shape[dim] - cut)
        x = torch.cat([rest, x.narrow(dim, 0, cut)], dim)
    return x


@batched("_chunk_cat")
@kernel("_chunk_cat")
def chunk_cat(tensors: Sequence[Tensor], dim: int, num_chunks: int) -> Tensor:
    dim %= tensors[0].ndim
    parts = []
    for x in tensors:
        size = -(-x.shape[dim] // num_chunks)
        pad = torch.zeros(
            *x.shape[:dim], size * num_chunks - x.shape[dim], *x.shape[dim + 1 :],
            dtype=x.dtype, device=x.device,
        )  # fmt: skip
        whole = torch.cat([x, pad], dim)
        parts.append(whole.reshape(*x.shape[:dim], num_chunks, -1))
    return torch.cat(parts, dim + 1)


@kernel("_new_zeros_with_same_feature_meta")
def zeros_like_primal(tangents: Tensor, primal: Tensor, *, self_num_batch_dims: int = 0) -> Tensor:
    # For tangents of views and of written arrays. torch's own asks for the size of the storage,
    # which an XLA array does not have.
    return tangents.new_zeros((*tangents.shape[:self_num_batch_dims], *primal.shape))


@batched("set_.source_Tensor")
def set_of_a_batch(x: Tensor, source: Tensor) -> Tensor:
    # torch's fallback silently leaves x unchanged.
    fail(UnsupportedOpError, *REPLACED)
