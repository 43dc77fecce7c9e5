"""The padding pass's rule for convolutions."""

from __future__ import annotations

from xfunc.hlo import Instruction, wire
from xfunc.symbolic.padding.layouts import MaybeLayout, own
from xfunc.symbolic.padding.rules import result
from xfunc.symbolic.padding.values import Inexact, PaddedValue, Relayout
from xfunc.symbolic.polynomial import Polynomial

_NUMBERS = 16  # field of HloInstructionProto; below, fields of ConvolutionDimensionNumbers
_KERNEL_IN, _KERNEL_OUT, _KERNEL_SPATIAL = 3, 4, 6
_BATCH, _FEATURE, _SPATIAL = 7, 8, 11
_OUT_BATCH, _OUT_FEATURE, _OUT_SPATIAL = 9, 10, 12


def convolution(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """Summed dimensions, spatial and feature alike, are padded with 0 in both operands."""
    x, kernel = operands
    numbers = wire.message(wire.fields(i.proto.SerializeToString()), _NUMBERS)
    batch, feature = wire.integer(numbers, _BATCH), wire.integer(numbers, _FEATURE)
    kernel_in, kernel_out = wire.integer(numbers, _KERNEL_IN), wire.integer(numbers, _KERNEL_OUT)
    spatial, kernel_spatial = (wire.integers(numbers, k) for k in (_SPATIAL, _KERNEL_SPATIAL))
    groups = max(i.proto.feature_group_count, i.proto.batch_group_count)
    grouped = (x.padded(batch), x.padded(feature), kernel.padded(kernel_in))
    if groups > 1 and (any(grouped) or kernel.padded(kernel_out)):
        raise Inexact("convolution in groups of a number that varies", i)
    for d in (feature, *spatial):
        x = m.plain(x, d)
    for d in (kernel_in, *kernel_spatial):
        kernel = m.plain(kernel, d)
    windows = m.symbolic.sizes(i, "window")
    for k, d in enumerate(kernel_spatial):
        _, stride, low, _, dilation, base, reversed_ = windows[7 * k : 7 * k + 7]
        if any(isinstance(n, Polynomial) for n in (stride, low, dilation, base)):
            raise Inexact(f"convolution with {low} in front, by steps of {stride}", i)
        if reversed_ and kernel.padded(d):
            raise Inexact("convolution with a kernel of varying size, reversed", i)
    x = m.masked(x, (feature, *spatial), 0)
    kernel = m.masked(kernel, (kernel_in, *kernel_spatial), 0)
    layouts: list[MaybeLayout] = [None] * len(i.shape.dims)
    layouts[wire.integer(numbers, _OUT_BATCH)] = x.layouts[batch]
    layouts[wire.integer(numbers, _OUT_FEATURE)] = kernel.layouts[kernel_out]
    for d in wire.integers(numbers, _OUT_SPATIAL):
        layouts[d] = own(i.shape.dims[d], m.symbolic.dims(i)[d])
    return result(m, i, [x.id, kernel.id], layouts)
