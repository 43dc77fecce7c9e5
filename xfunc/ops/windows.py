"""Pooling and resizing: each output is a weighted sum of a few inputs, one dimension at a time.

NOTE [taps]: along a dimension, output k is ``sum(weights[t, k] * x[places[t, k]])``. Places and
weights depend only on sizes. A read is a gather, and its derivative adds at the same places. Both
are computed on the device, from numbers that are polynomials or ratios of sizes, so that with
dynamic shapes they are those of the actual sizes. Without `materialize`, each output would compute
its own places and weights again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch

from xfunc.errors import UnsupportedOpError, fail
from xfunc.ops.registry import kernel, original
from xfunc.ops.single_evaluation import materialize
from xfunc.rules.operands import each
from xfunc.rules.windows import pool_count

Tensor = torch.Tensor


def refuse_integers(what: str, x: Tensor) -> None:
    """Raise for an integer array."""
    if not x.is_floating_point():
        fail(
            UnsupportedOpError,
            f"{what} is not lowered for {x.dtype}",
            "convert to a floating dtype first, and back after it.",
        )


@dataclasses.dataclass(frozen=True)
class Taps:
    """Rows of places and weights, one row for each tap: see NOTE [taps].

    Attributes:
        places: int64.
        weights: float64; None: all are 1.
        fewer: whether some outputs have fewer taps: the others have weight 0, and read nothing.
    """

    places: Tensor
    weights: Tensor | None = None
    fewer: bool = False

    @classmethod
    def of(cls, places: Tensor, weights: Tensor | None, size: int, fewer: bool = False) -> Taps:
        """Places outside of a dimension become those of its ends."""
        places = materialize(places.clamp(0, size - 1))
        return cls(places, None if weights is None else materialize(weights), fewer)

    def _weighted(self, x: Tensor, dim: int) -> Tensor:
        """The values times the weights, whose taps are at `dim`."""
        if self.weights is None:
            return x
        weights = self.weights.to(x.dtype)
        weights = weights.reshape(*weights.shape, *(1,) * (x.ndim - dim - 2))
        return torch.where(weights == 0, 0, x * weights) if self.fewer else x * weights

    def read(self, x: Tensor, dim: int) -> Tensor:
        """Apply the taps along a dimension."""
        if self.weights is not None:
            refuse_integers("resizing by weights", x)
        shape = (*x.shape[:dim], *self.places.shape, *x.shape[dim + 1 :])
        found = x.index_select(dim, self.places.reshape(-1)).reshape(shape)
        return self._weighted(found, dim).sum(dim, dtype=x.dtype)

    def add(self, grad: Tensor, dim: int, size: int) -> Tensor:
        """The transpose of `read`, for an input of this size."""
        t, n = self.places.shape
        spread = grad.unsqueeze(dim).expand(*grad.shape[:dim], t, *grad.shape[dim:])
        spread = self._weighted(spread, dim)
        spread = spread.reshape(*grad.shape[:dim], t * n, *grad.shape[dim + 1 :])
        shape = (*grad.shape[:dim], size, *grad.shape[dim + 1 :])
        out = torch.zeros(shape, dtype=grad.dtype, device=grad.device)
        return out.index_add(dim, self.places.reshape(-1), spread)


def _counted(n: int, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.arange(n, dtype=dtype, device=device)


def read(x: Tensor, taps: Sequence[Taps]) -> Tensor:
    """Apply taps along the last dimensions."""
    for k, t in enumerate(taps):
        x = t.read(x, x.ndim - len(taps) + k)
    return x


def add(grad: Tensor, taps: Sequence[Taps], sizes: Sequence[int]) -> Tensor:
    """The transpose of `read`."""
    for k, (t, n) in enumerate(zip(taps, sizes, strict=True)):
        grad = t.add(grad, grad.ndim - len(taps) + k, n)
    return grad


# -- average pooling ------------------------------------------------------------------------------


def adaptive(size: int, out: int, device: torch.device) -> Taps:
    """The means of `out` windows that divide the inputs evenly."""
    windows = [(k * size // out, -(-(k + 1) * size // out)) for k in range(out)]
    k = _counted(out, device)
    start, end = k * size // out, -(-(k + 1) * size // out)
    most = max((high - low for low, high in windows), default=0)
    places = start + _counted(most, device).unsqueeze(1)
    return Taps.of(places, (places < end) / (end - start).double(), size, fewer=True)


def check_adaptive(x: Tensor, spatial: int) -> None:
    """Raise for an array that has nothing to pool."""
    if not all(x.shape[-spatial:]):
        raise RuntimeError(
            f"Expected input to have non-zero size for non-batch dimensions, but got: {[*x.shape]}"
        )


def _adaptive_pool(x: Tensor, output_size: Sequence[int]) -> Tensor:
    sizes = x.shape[-len(output_size) :]
    check_adaptive(x, len(output_size))
    if x.numel() and all(o and n % o == 0 for n, o in zip(sizes, output_size, strict=True)):
        return original(f"_adaptive_avg_pool{len(sizes)}d")(x, output_size)
    taps = [adaptive(n, o, x.device) for n, o in zip(sizes, output_size, strict=True)]
    return read(x, taps)


@kernel("_adaptive_avg_pool2d")
def adaptive_avg_pool2d(x: Tensor, output_size: Sequence[int]) -> Tensor:
    return _adaptive_pool(x, output_size)


@kernel("_adaptive_avg_pool3d")
def adaptive_avg_pool3d(x: Tensor, output_size: Sequence[int]) -> Tensor:
    return _adaptive_pool(x, output_size)


def _adaptive_backward(grad: Tensor, x: Tensor, spatial: int) -> Tensor:
    sizes, outs = x.shape[-spatial:], grad.shape[-spatial:]
    taps = [adaptive(n, o, x.device) for n, o in zip(sizes, outs, strict=True)]
    return add(grad, taps, sizes)


@kernel("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(grad: Tensor, x: Tensor) -> Tensor:
    return _adaptive_backward(grad, x, 2)


@kernel("_adaptive_avg_pool3d_backward")
def adaptive_avg_pool3d_backward(grad: Tensor, x: Tensor) -> Tensor:
    return _adaptive_backward(grad, x, 3)


def _average(
    size: int,
    window: int,
    stride: int,
    pad: int,
    ceil: bool,
    count_pad: bool,
    divide: bool,
    device: torch.device,
) -> Taps:
    start = _counted(pool_count(size, window, stride, pad, ceil), device) * stride - pad
    end = (start + window).clamp(max=size + pad)
    places = start + _counted(window, device).unsqueeze(1)
    weights = ((places >= 0) & (places < size)).double()
    if divide:
        count = end - start if count_pad else end.clamp(max=size) - start.clamp(min=0)
        weights = weights / count
    return Taps.of(places, weights, size, fewer=True)


def check_pool(
    x: Tensor,
    spatial: int,
    kernel_size: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1,),
) -> None:
    """Raise for arguments of a pooling operation that torch refuses."""
    numbers = (each(values, spatial) for values in (kernel_size, padding, dilation))
    for window, pad, step in zip(*numbers, strict=True):
        if pad < 0:
            raise RuntimeError(f"pad must be non-negative, but got pad: {pad}")
        if 2 * pad > step * (window - 1) + 1:
            raise RuntimeError(
                f"pad should be at most half of effective kernel size, but got pad={pad}, "
                f"kernel_size={window} and dilation={step}"
            )
    if not (spatial < x.ndim <= spatial + 2 and all(x.shape[-spatial - 1 :])):
        raise RuntimeError(
            f"Expected {spatial + 1}D or {spatial + 2}D (batch mode) tensor with optional 0 dim "
            f"batch size for input, but got: {[*x.shape]}"
        )


def _average_taps(
    x: Tensor,
    spatial: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil: bool,
    count_pad: bool,
    divide: bool,
) -> list[Taps]:
    n, sizes = spatial, x.shape[-spatial:]
    windows = each(kernel_size, n)
    strides, pads = each(stride, n) if stride else windows, each(padding, n)
    return [
        _average(*args, ceil, count_pad, divide, x.device)
        for args in zip(sizes, windows, strides, pads, strict=True)
    ]


def _avg_pool(spatial: int) -> Callable[..., Tensor]:
    def pool(
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        refuse_integers("average pooling", x)
        check_pool(x, spatial, kernel_size, padding)
        if divisor_override == 0:
            raise RuntimeError("divisor must be not zero")
        if not (any(padding) or ceil_mode or divisor_override):
            return original(f"avg_pool{spatial}d")(x, kernel_size, stride, (0,))
        taps = _average_taps(
            x, spatial, kernel_size, stride, padding, ceil_mode, count_include_pad,
            divisor_override is None,
        )  # fmt: skip
        return read(x, taps) / (divisor_override or 1)

    return pool


def _avg_pool_backward(spatial: int) -> Callable[..., Tensor]:
    def pool(
        grad: Tensor,
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Tensor:
        taps = _average_taps(
            x, spatial, kernel_size, stride, padding, ceil_mode, count_include_pad,
            divisor_override is None,
        )  # fmt: skip
        return add(grad, taps, x.shape[-spatial:]) / (divisor_override or 1)

    return pool


for _n in (2, 3):
    kernel(f"avg_pool{_n}d")(_avg_pool(_n))
    kernel(f"avg_pool{_n}d_backward")(_avg_pool_backward(_n))


# -- resizing -------------------------------------------------------------------------------------

Rule = Callable[[int, int, bool, float | None, torch.device], Taps]


def _nearest(
    size: int, out: int, align: bool, scale: float | None, device: torch.device, shift: float = 0.0
) -> Taps:
    # In float32, as torch does.
    at = _counted(out, device, torch.float32) + shift
    return Taps.of((at * (1 / scale if scale else size / out)).long().unsqueeze(0), None, size)


def _nearest_exact(
    size: int, out: int, align: bool, scale: float | None, device: torch.device
) -> Taps:
    return _nearest(size, out, align, scale, device, 0.5)


def _source(size: int, out: int, align: bool, scale: float | None, device: torch.device) -> Tensor:
    """The positions in the input that the outputs correspond to."""
    k = _counted(out, device, torch.float64)
    if align:
        return k * ((size - 1) / (out - 1) if out > 1 else 0.0)
    return (k + 0.5) * (1 / scale if scale else size / out) - 0.5


def _linear(size: int, out: int, align: bool, scale: float | None, device: torch.device) -> Taps:
    at = _source(size, out, align, scale, device).clamp(0, size - 1)
    low = at.floor()
    low, part = low.long(), at - low
    return Taps.of(torch.stack([low, low + 1]), torch.stack([1 - part, part]), size)


def _cubic(size: int, out: int, align: bool, scale: float | None, device: torch.device) -> Taps:
    at = _source(size, out, align, scale, device)
    low = at.floor()
    offsets = _counted(4, device).unsqueeze(1) - 1
    return Taps.of(low.long() + offsets, _keys(at - low - offsets, -0.75), size)


def _keys(x: Tensor, a: float) -> Tensor:
    """The cubic convolution kernel."""
    x = x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, 0))


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _antialiased(reach: float, weight: Callable[[Tensor], Tensor]) -> Rule:
    def rule(size: int, out: int, align: bool, scale: float | None, device: torch.device) -> Taps:
        if align:
            ratio = (size - 1) / (out - 1) if out > 1 else 0.0
        else:
            ratio = 1 / scale if scale else size / out
        support = reach * max(ratio, 1.0)
        centre = (_counted(out, device, torch.float64) + 0.5) * ratio
        low = (centre - support + 0.5).clamp(min=0).long()
        high = (centre + support + 0.5).clamp(max=size).long()
        places = low + _counted(2 * math.ceil(support) + 1, device).unsqueeze(1)
        weights = weight((places - centre + 0.5) / max(ratio, 1.0))
        weights = torch.where(places < high, weights, 0)
        return Taps.of(places, weights / weights.sum(0), size, fewer=True)

    return rule


def _resize(
    rule: Rule,
    sizes: Sequence[int],
    outs: Sequence[int],
    align: bool,
    scales: Sequence[float | None],
    device: torch.device,
) -> list[Taps]:
    return [
        rule(n, o, align, s if s and s > 0 else None, device)
        for n, o, s in zip(sizes, outs, scales, strict=True)
    ]


def _put(name: str, spatial: int, rule: Rule, aligns: bool) -> None:
    """Register the operation of this name and its derivative."""

    def split(args: tuple[object, ...]) -> tuple[bool, list[float | None]]:
        align = bool(args[0]) if aligns and args else False
        scales = [*(args[1:] if aligns else args)]
        return align, scales + [None] * (spatial - len(scales))  # pyright: ignore[reportReturnType]

    def forward(x: Tensor, output_size: Sequence[int], *args: object) -> Tensor:
        sizes = x.shape[-spatial:]
        if not (all(sizes) and all(output_size)):
            raise RuntimeError(
                "Input and output sizes should be greater than 0, but got "
                f"input {[*sizes]} output {[*output_size]}"
            )
        return read(x, _resize(rule, sizes, output_size, *split(args), x.device))

    def backward(
        grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], *args: object
    ) -> Tensor:
        sizes = input_size[-spatial:]
        taps = _resize(rule, sizes, output_size, *split(args), grad.device)
        return add(grad, taps, sizes)

    kernel(name)(forward)
    kernel(f"{name}_backward")(backward)


for _n, _kind in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
    _put(f"upsample_nearest{_n}d", _n, _nearest, False)
    _put(f"_upsample_nearest_exact{_n}d", _n, _nearest_exact, False)
    _put(f"upsample_{_kind}{_n}d", _n, _linear, True)
_put("upsample_bicubic2d", 2, _cubic, True)
_put("_upsample_bilinear2d_aa", 2, _antialiased(1.0, _triangle), True)
_put("_upsample_bicubic2d_aa", 2, _antialiased(2.0, lambda x: _keys(x, -0.5)), True)
