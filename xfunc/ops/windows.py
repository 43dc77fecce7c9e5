"""Pooling and resizing: each output is a weighted sum of a few inputs, one dimension at a time.

NOTE [taps]: along a dimension, output k is ``sum(weights[t, k] * x[places[t, k]])``. Places and
weights depend only on sizes. A read is a gather, and its derivative adds at the same places.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch

from xfunc.errors import UnsupportedOpError, fail
from xfunc.ops.registry import below, kernel, original
from xfunc.trace.literals import literal

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
    """Rows of places and weights, one row for each tap: see NOTE [taps]."""

    places: list[list[int]]
    weights: list[list[float]]

    @classmethod
    def of(cls, outputs: Sequence[Sequence[tuple[int, float]]], size: int) -> Taps:
        """From the (place, weight) pairs of each output."""
        most = max((len(o) for o in outputs), default=0)
        padded = [[*o, *[(0, 0.0)] * (most - len(o))] for o in outputs]
        clamped = [[(min(max(p, 0), size - 1), w) for p, w in o] for o in padded]
        return cls(
            [[o[t][0] for o in clamped] for t in range(most)],
            [[o[t][1] for o in clamped] for t in range(most)],
        )

    def tensors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        places = below(literal, torch.tensor(self.places, dtype=torch.int64, device="cpu"))
        return places, below(literal, torch.tensor(self.weights, dtype=x.dtype, device="cpu"))

    def read(self, x: Tensor, dim: int) -> Tensor:
        """Apply the taps along a dimension."""
        whole = all(w in (0, 1) for row in self.weights for w in row)
        if not (whole or x.is_floating_point()):
            refuse_integers("resizing by weights", x)
        places, weights = self.tensors(x)
        t, n = places.shape
        shape = (*x.shape[:dim], t, n, *x.shape[dim + 1 :])
        found = x.index_select(dim, places.reshape(-1)).reshape(shape)
        return (found * weights.reshape(t, n, *(1,) * (x.ndim - dim - 1))).sum(dim, dtype=x.dtype)

    def add(self, grad: Tensor, dim: int, size: int) -> Tensor:
        """The transpose of `read`, for an input of this size."""
        places, weights = self.tensors(grad)
        t, n = places.shape
        spread = grad.unsqueeze(dim) * weights.reshape(t, n, *(1,) * (grad.ndim - dim - 1))
        spread = spread.reshape(*grad.shape[:dim], t * n, *grad.shape[dim + 1 :])
        shape = (*grad.shape[:dim], size, *grad.shape[dim + 1 :])
        out = torch.zeros(shape, dtype=grad.dtype, device=grad.device)
        return out.index_add(dim, places.reshape(-1), spread)


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


def adaptive(size: int, out: int) -> Taps:
    """The means of `out` windows that divide the inputs evenly."""
    windows = [range(k * size // out, -(-(k + 1) * size // out)) for k in range(out)]
    return Taps.of([[(p, 1 / len(w)) for p in w] for w in windows], size)


def _adaptive_pool(x: Tensor, output_size: Sequence[int]) -> Tensor:
    sizes = x.shape[-len(output_size) :]
    if x.numel() and all(n % o == 0 for n, o in zip(sizes, output_size, strict=True)):
        return original(f"_adaptive_avg_pool{len(sizes)}d")(x, output_size)
    return read(x, [adaptive(n, o) for n, o in zip(sizes, output_size, strict=True)])


@kernel("_adaptive_avg_pool2d")
def adaptive_avg_pool2d(x: Tensor, output_size: Sequence[int]) -> Tensor:
    return _adaptive_pool(x, output_size)


@kernel("_adaptive_avg_pool3d")
def adaptive_avg_pool3d(x: Tensor, output_size: Sequence[int]) -> Tensor:
    return _adaptive_pool(x, output_size)


def _adaptive_backward(grad: Tensor, x: Tensor, spatial: int) -> Tensor:
    sizes, outs = x.shape[-spatial:], grad.shape[-spatial:]
    return add(grad, [adaptive(n, o) for n, o in zip(sizes, outs, strict=True)], sizes)


@kernel("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(grad: Tensor, x: Tensor) -> Tensor:
    return _adaptive_backward(grad, x, 2)


@kernel("_adaptive_avg_pool3d_backward")
def adaptive_avg_pool3d_backward(grad: Tensor, x: Tensor) -> Tensor:
    return _adaptive_backward(grad, x, 3)


def pooled(size: int, window: int, stride: int, pad: int, ceil: bool) -> int:
    """The number of windows."""
    extra = stride - 1 if ceil else 0
    n = (size + 2 * pad - window + extra) // stride + 1
    if ceil and (n - 1) * stride >= size + pad:  # The last window would start in the padding.
        n -= 1
    return n


def _average(
    size: int, window: int, stride: int, pad: int, ceil: bool, count_pad: bool, divide: bool
) -> Taps:
    outputs = []
    for k in range(pooled(size, window, stride, pad, ceil)):
        start = k * stride - pad
        end = min(start + window, size + pad)
        inside = range(max(start, 0), min(end, size))
        count = end - start if count_pad else len(inside)
        outputs.append([(p, 1 / count if divide else 1.0) for p in inside])
    return Taps.of(outputs, size)


def several(value: Sequence[int], n: int) -> list[int]:
    """One number for each of n dimensions, of which torch may have been given one for all."""
    return [*value] * n if len(value) == 1 else [*value]


def check_pool(
    x: Tensor,
    spatial: int,
    kernel_size: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1,),
) -> None:
    """Raise for arguments of a pooling operation that torch refuses."""
    each = (several(values, spatial) for values in (kernel_size, padding, dilation))
    for window, pad, step in zip(*each, strict=True):
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
    sizes: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil: bool,
    count_pad: bool,
    divide: bool,
) -> list[Taps]:
    n = len(sizes)
    windows = several(kernel_size, n)
    strides, pads = several(stride, n) if stride else windows, several(padding, n)
    return [
        _average(*args, ceil, count_pad, divide)
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
        # torch_xla 2.9 gets the rest wrong.
        taps = _average_taps(
            x.shape[-spatial:], kernel_size, stride, padding, ceil_mode, count_include_pad,
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
        sizes = x.shape[-spatial:]
        taps = _average_taps(
            sizes, kernel_size, stride, padding, ceil_mode, count_include_pad,
            divisor_override is None,
        )  # fmt: skip
        return add(grad, taps, sizes) / (divisor_override or 1)

    return pool


for _n in (2, 3):
    kernel(f"avg_pool{_n}d")(_avg_pool(_n))
    kernel(f"avg_pool{_n}d_backward")(_avg_pool_backward(_n))


# -- resizing -------------------------------------------------------------------------------------

Rule = Callable[[int, int, bool, float | None], Taps]


def _nearest(size: int, out: int, align: bool, scale: float | None, exact: bool = False) -> Taps:
    ratio = 1 / scale if scale else size / out
    ratio = torch.tensor(ratio, dtype=torch.float32, device="cpu").item()
    shift = 0.5 if exact else 0.0
    return Taps.of([[(min(int((k + shift) * ratio), size - 1), 1.0)] for k in range(out)], size)


def _nearest_exact(size: int, out: int, align: bool, scale: float | None) -> Taps:
    return _nearest(size, out, align, scale, True)


def _source(k: int, size: int, out: int, align: bool, scale: float | None) -> float:
    """The position in the input that output k corresponds to."""
    if align:
        return k * (size - 1) / (out - 1) if out > 1 else 0.0
    return (k + 0.5) * (1 / scale if scale else size / out) - 0.5


def _linear(size: int, out: int, align: bool, scale: float | None) -> Taps:
    outputs = []
    for k in range(out):
        at = max(_source(k, size, out, align, scale), 0.0)
        low = min(int(at), size - 1)
        part = min(at - low, 1.0) if low < size - 1 else 0.0
        outputs.append([(low, 1 - part), (low + 1, part)])
    return Taps.of(outputs, size)


def _cubic(size: int, out: int, align: bool, scale: float | None) -> Taps:
    outputs = []
    for k in range(out):
        at = _source(k, size, out, align, scale)
        low = math.floor(at)
        outputs.append([(low + j, _keys(at - low - j, -0.75)) for j in (-1, 0, 1, 2)])
    return Taps.of(outputs, size)


def _keys(x: float, a: float) -> float:
    """The cubic convolution kernel."""
    x = abs(x)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def _antialiased(reach: float, weight: Callable[[float], float]) -> Rule:
    def rule(size: int, out: int, align: bool, scale: float | None) -> Taps:
        if align:
            ratio = (size - 1) / (out - 1) if out > 1 else 0.0
        else:
            ratio = 1 / scale if scale else size / out
        support = reach * max(ratio, 1.0)
        outputs = []
        for k in range(out):
            centre = ratio * (k + 0.5)
            low = max(int(centre - support + 0.5), 0)
            high = min(int(centre + support + 0.5), size)
            weights = [weight((p - centre + 0.5) / max(ratio, 1.0)) for p in range(low, high)]
            outputs.append([(low + j, w / sum(weights)) for j, w in enumerate(weights)])
        return Taps.of(outputs, size)

    return rule


def _resize(
    rule: Rule,
    sizes: Sequence[int],
    outs: Sequence[int],
    align: bool,
    scales: Sequence[float | None],
) -> list[Taps]:
    return [
        rule(n, o, align, s if s and s > 0 else None)
        for n, o, s in zip(sizes, outs, scales, strict=True)
    ]


def _put(name: str, spatial: int, rule: Rule, aligns: bool) -> None:
    """Register the operation of this name and its derivative."""

    def split(args: tuple[object, ...]) -> tuple[bool, list[float | None]]:
        align = bool(args[0]) if aligns and args else False
        scales = [*(args[1:] if aligns else args)]
        return align, scales + [None] * (spatial - len(scales))  # pyright: ignore[reportReturnType]

    def forward(x: Tensor, output_size: Sequence[int], *args: object) -> Tensor:
        return read(x, _resize(rule, x.shape[-spatial:], output_size, *split(args)))

    def backward(
        grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], *args: object
    ) -> Tensor:
        sizes = input_size[-spatial:]
        return add(grad, _resize(rule, sizes, output_size, *split(args)), sizes)

    kernel(name)(forward)
    kernel(f"{name}_backward")(backward)


for _n, _kind in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
    _put(f"upsample_nearest{_n}d", _n, _nearest, False)
    _put(f"_upsample_nearest_exact{_n}d", _n, _nearest_exact, False)
    _put(f"upsample_{_kind}{_n}d", _n, _linear, True)
_put("upsample_bicubic2d", 2, _cubic, True)
_put("_upsample_bilinear2d_aa", 2, _antialiased(1.0, lambda x: max(1 - abs(x), 0.0)), True)
_put("_upsample_bicubic2d_aa", 2, _antialiased(2.0, lambda x: _keys(x, -0.5)), True)
