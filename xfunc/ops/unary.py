"""Elementwise functions of one operand."""

from __future__ import annotations

import math

import torch

from xfunc.ops.registry import composition, kernel
from xfunc.torchlib.functorch import differentiates_twice

Tensor = torch.Tensor


def _logarithm(name: str, base: float) -> None:
    @kernel(name)
    def run(x: Tensor) -> Tensor:
        found, scale = torch.log(x), 1 / math.log(base)
        if x.is_complex():  # For zero, one part is infinite.
            return torch.complex(found.real * scale, found.imag * scale)
        return found * scale


_logarithm("log2", 2.0)
_logarithm("log10", 10.0)


@composition("special_ndtr")
def normal_distribution(x: Tensor) -> Tensor:
    # torch adds 1 to `erf`, which leaves little of a small result.
    return 0.5 * torch.erfc(x * -math.sqrt(0.5))


@kernel("round.decimals")
def round_to(x: Tensor, *, decimals: int) -> Tensor:
    """As torch does: a power of ten beyond the dtype makes NaN."""
    if not x.is_floating_point():
        raise NotImplementedError(f'"round" with decimals is not implemented for {x.dtype}')
    if not decimals:
        return x.round()
    power = x.new_full((), 10.0 ** min(abs(decimals), 308) * (10.0 if abs(decimals) > 308 else 1.0))
    return (x / power).round() * power if decimals < 0 else (x * power).round() / power


@kernel("threshold")
def threshold(x: Tensor, least: float, value: float) -> Tensor:
    return torch.where(x <= least, x.new_full((), value), x)


@kernel("nan_to_num")
def nan_to_num(
    x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    if x.is_complex():
        parts = (nan_to_num(p, nan, posinf, neginf) for p in (x.real, x.imag))
        return torch.complex(*parts)
    if not x.is_floating_point():
        return x.clone()
    ends = torch.finfo(x.dtype)
    highest = x.new_full((), ends.max if posinf is None else posinf)
    lowest = x.new_full((), ends.min if neginf is None else neginf)
    y = torch.where(x.isnan(), x.new_full((), nan or 0.0), x)
    return torch.where(x == math.inf, highest, torch.where(x == -math.inf, lowest, y))


# Not by ``1 + erf(x)``, or tanh, which are not zero far below 0; nor is ``1 - tanh ** 2``.
def _double_inner(x: Tensor) -> Tensor:
    return math.sqrt(8 / math.pi) * (x + 0.044715 * x * x * x)


@kernel("gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate not in ("none", "tanh"):
        raise RuntimeError(f"approximate argument must be either none or tanh, not {approximate!r}")
    if approximate == "tanh":
        return x / (1 + torch.exp(-_double_inner(x)))
    return 0.5 * x * torch.erfc(-x * math.sqrt(0.5))


def _is_changed_twice(x: Tensor, *, approximate: str = "none") -> bool:
    return approximate == "tanh" and differentiates_twice((x,))


@composition("gelu", when=_is_changed_twice)
def smooth_gelu(x: Tensor, *, approximate: str) -> Tensor:
    return x * torch.sigmoid(_double_inner(x))


@composition("mish")
def mish(x: Tensor) -> Tensor:
    # Beyond 20, it is 1.
    w = torch.exp(x.clamp(max=20))
    n = w * w + 2 * w
    return x * (n / (n + 2))  # tanh(softplus(x))


@kernel("gelu_backward")
def gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        inner = _double_inner(x)
        above, below = (1 / (1 + torch.exp(y)) for y in (-inner, inner))
        slope = math.sqrt(8 / math.pi) * (1 + 3 * 0.044715 * x * x)
        return grad * (above + x * above * below * slope)
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return grad * (0.5 * torch.erfc(-x * math.sqrt(0.5)) + x * density)


@kernel("logit")
def logit(x: Tensor, eps: float | None = None) -> Tensor:
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    if eps is not None:  # With crossed bounds, the lower one applies first.
        x = torch.where(x < eps, eps, x.clamp(max=1 - eps))
    return torch.log(x / (1 - x))
