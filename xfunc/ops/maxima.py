"""Max pooling, with the positions of the maxima, and its inverse.

NOTE [the place of NaN]: the maximum of a window with NaN is NaN, at the last one, as in torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch

from xfunc.ops.reductions import first_place
from xfunc.ops.registry import composition, defunctionalized, kernel, original
from xfunc.ops.single_evaluation import materialize
from xfunc.ops.windows import check_adaptive, check_pool
from xfunc.rules.operands import each
from xfunc.rules.windows import pool_count
from xfunc.trace.literals import literal

Tensor = torch.Tensor
Windows = list[list[int]]  # for each output along a dimension, its input positions


def _pool(x: Tensor, windows: Sequence[Windows]) -> tuple[Tensor, Tensor]:
    """The maximum of each window, and its position within the pooled dimensions."""
    spatial = len(windows)
    sizes, outs = x.shape[-spatial:], [len(rows) for rows in windows]
    found = []
    for window in itertools.product(*windows):
        found.append(
            [
                sum(p * math.prod(sizes[k + 1 :]) for k, p in enumerate(places))
                for places in itertools.product(*window)
            ]
        )
    most = max(map(len, found), default=1)
    # A repeated position changes nothing.
    table = torch.tensor([[*r, *[r[0]] * (most - len(r))] for r in found], device="cpu")
    table = defunctionalized(literal, table.to(torch.int64).reshape(-1, most))
    flat = x.reshape(*x.shape[:-spatial], math.prod(sizes))
    seen = materialize(flat.index_select(-1, table.reshape(-1)).unflatten(-1, tuple(table.shape)))
    value, place = _maxima(seen, table)
    shape = (*x.shape[:-spatial], *outs)
    return value.reshape(shape), place.reshape(shape)


def _maxima(seen: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum of each window, along the last dimension, and its position."""
    value = seen.amax(-1, keepdim=True)
    which = first_place(seen, value, seen.ndim - 1)
    place = places.expand(seen.shape).gather(-1, which)
    if seen.is_floating_point():  # See NOTE [the place of NaN].
        last = torch.where(seen.isnan(), places, -1).amax(-1, keepdim=True)
        place = torch.where(value.isnan(), last, place)
    return value[..., 0], place[..., 0]


def _windows(size: int, window: int, stride: int, pad: int, dilation: int, ceil: bool) -> Windows:
    n = pool_count(size, dilation * (window - 1) + 1, stride, pad, ceil)
    starts = [k * stride - pad for k in range(n)]
    rows = [[s + j * dilation for j in range(window)] for s in starts]
    return [[p for p in row if 0 <= p < size] for row in rows]


def _adaptive(size: int, out: int) -> Windows:
    return [[*range(k * size // out, -(-(k + 1) * size // out))] for k in range(out)]


def _max_pool(name: str, spatial: int) -> Callable[..., tuple[Tensor, Tensor]]:
    def pool(
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:
        check_pool(x, spatial, kernel_size, padding, dilation)
        if all(d == 1 for d in dilation):
            options = (kernel_size, stride, padding, dilation, ceil_mode)
            value, place = original(name)(x, *options)
            if x.is_floating_point():  # See NOTE [the place of NaN].
                sizes = x.shape[-spatial:]
                exact = torch.float32 if math.prod(sizes) < 2**24 else torch.float64
                places = torch.arange(math.prod(sizes), dtype=exact, device=x.device)
                marked = torch.where(x.isnan(), places.reshape(sizes), -1)
                last, _ = original(name)(marked, *options)
                place = torch.where(value.isnan(), last.long(), place)
            return value, place
        windows = each(kernel_size, spatial)
        lists = (windows, stride or windows, padding, dilation)
        along = zip(x.shape[-spatial:], *(each(v, spatial) for v in lists), strict=True)
        return _pool(x, [_windows(n, w, s, p, d, ceil_mode) for n, w, s, p, d in along])

    return pool


def _scattered(grad: Tensor, x: Tensor, place: Tensor, spatial: int) -> Tensor:
    kept, sizes = x.shape[:-spatial], x.shape[-spatial:]
    out = torch.zeros(*kept, math.prod(sizes), dtype=grad.dtype, device=grad.device)
    found = out.scatter_add(-1, place.flatten(-spatial), grad.flatten(-spatial))
    return found.reshape(x.shape)


def _max_pool_backward(name: str, spatial: int) -> Callable[..., Tensor]:
    def backward(grad: Tensor, x: Tensor, kernel_size: Sequence[int], *options: object) -> Tensor:
        if 0 not in x.shape and math.prod(each(kernel_size, spatial)) <= _FEW:
            return original(f"{name}_backward")(grad, x, kernel_size, *options)
        place = options[-1]
        assert isinstance(place, Tensor)
        return _scattered(grad, x, place, spatial)

    return backward


_FEW = 27
"""The size of windows up to which each of their elements is a sum of its own."""


def _adaptive_pool_backward(spatial: int) -> Callable[..., Tensor]:
    return lambda grad, x, place: _scattered(grad, x, place, spatial)


def _adaptive_pool(spatial: int) -> Callable[..., tuple[Tensor, Tensor]]:
    def pool(x: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
        sizes = x.shape[-spatial:]
        check_adaptive(x, spatial)
        return _pool(x, [_adaptive(n, o) for n, o in zip(sizes, output_size, strict=True)])

    return pool


def _starts(u: Tensor, size: int, window: int, out: int) -> Tensor:
    """Where the windows of fractional pooling begin along a dimension, ``[..., out]``."""
    if out == 1:
        return torch.full((*u.shape, 1), size - window, device=u.device)
    step = torch.full((), size - window, dtype=u.dtype, device=u.device) / (out - 1)
    k, u = torch.arange(out - 1, dtype=u.dtype, device=u.device), u[..., None]
    first = ((k + u) * step).long() - (u * step).long()
    return torch.cat([first, torch.full_like(first[..., :1], size - window)], -1)


def _fractional_pool(spatial: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """Windows at random distances. Source: Graham, "Fractional Max-Pooling", 2014."""

    def pool(
        x: Tensor, kernel_size: Sequence[int], output_size: Sequence[int], samples: Tensor
    ) -> tuple[Tensor, Tensor]:
        kept, sizes = x.shape[:-spatial], x.shape[-spatial:]
        samples = samples.reshape(*kept, spatial)
        if spatial == 2:
            samples = samples.flip(-1)  # torch takes the width first.
        places = torch.zeros((), dtype=torch.int64, device=x.device)
        windows, outs = each(kernel_size, spatial), each(output_size, spatial)
        for d, (size, window, out) in enumerate(zip(sizes, windows, outs, strict=True)):
            if out + window - 1 + (spatial == 3) > size:  # In 3d, torch asks for one more.
                raise RuntimeError(
                    f"fractional_max_pool{spatial}d: windows of {window} with {out} outputs do not "
                    f"fit into {size} elements"
                )
            along = _starts(samples[..., d], size, window, out)[..., None]
            along = along + torch.arange(window, device=x.device)
            after = (1,) * (spatial - d - 1)
            shape = (*kept, *(1,) * d, out, *after, *(1,) * d, window, *after)
            places = places * size + along.reshape(shape)
        places = materialize(places.flatten(-spatial))
        flat = x.reshape(*kept, math.prod(sizes))
        seen = flat.gather(-1, places.flatten(len(kept))).reshape(places.shape)
        return _maxima(materialize(seen), places)

    return pool


def _fractional_pool_backward(spatial: int) -> Callable[..., Tensor]:
    return lambda grad, x, kernel_size, output_size, place: _scattered(grad, x, place, spatial)


for _n in (2, 3):
    _name = f"max_pool{_n}d_with_indices"
    kernel(_name)(_max_pool(_name, _n))
    kernel(f"{_name}_backward")(_max_pool_backward(_name, _n))
    kernel(f"adaptive_max_pool{_n}d")(_adaptive_pool(_n))
    kernel(f"adaptive_max_pool{_n}d_backward")(_adaptive_pool_backward(_n))
    kernel(f"fractional_max_pool{_n}d")(_fractional_pool(_n))
    kernel(f"fractional_max_pool{_n}d_backward")(_fractional_pool_backward(_n))


# -- the inverse of max pooling -------------------------------------------------------------------


_SIDES = {2: ("two", "height, width"), 3: ("three", "depth, height, width")}


def _unpool(x: Tensor, place: Tensor, sizes: Sequence[int], spatial: int) -> Tensor:
    if place.dtype is not torch.int64:
        raise RuntimeError(f"elements in indices should be type int64 but got: {place.dtype}")
    if len(sizes) != spatial:
        count, sides = _SIDES[spatial]
        raise RuntimeError(
            f"There should be exactly {count} elements ({sides}) in output_size, but got "
            f"{len(sizes)} elements."
        )
    if x.ndim not in (spatial + 1, spatial + 2):
        raise RuntimeError(
            f"Input to max_unpooling{spatial}d should be a {spatial + 1}d or {spatial + 2}d "
            f"Tensor, but got a tensor with {x.ndim} dimensions."
        )
    if place.shape != x.shape:
        raise RuntimeError(
            f"Expected shape of indices to be same as that of the input tensor ({[*x.shape]}) but "
            f"got indices tensor with shape: {[*place.shape]}"
        )
    kept = x.shape[:-spatial]
    empty = torch.zeros(*kept, math.prod(sizes), dtype=x.dtype, device=x.device)
    full = empty.scatter(-1, place.flatten(-spatial), x.flatten(-spatial))
    return full.reshape(*kept, *sizes)


@composition("max_unpool2d")
def max_unpool2d(x: Tensor, place: Tensor, output_size: Sequence[int]) -> Tensor:
    return _unpool(x, place, output_size, 2)


@composition("max_unpool3d")
def max_unpool3d(
    x: Tensor,
    place: Tensor,
    output_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> Tensor:
    return _unpool(x, place, output_size, 3)
