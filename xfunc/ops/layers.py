"""Layer, group and batch normalisation.

Not by XLA's batch normalisation, which computes the variance as a difference of two large numbers:
off by a quarter where the mean is a thousand times the deviation.

Narrow dtypes are normalised in a wider one, whose mean and deviation are kept for the derivative,
which would otherwise treat the rounded values as exact.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table

from xfunc.errors import UnsupportedOpError, fail
from xfunc.ops.registry import composition, differentiable, is_nested, is_twice, kernel
from xfunc.rules.operands import HALF

Tensor = torch.Tensor
Three = tuple[Tensor, Tensor, Tensor]


def _normal(x: Tensor, dims: list[int], eps: float) -> Three:
    """`x` with mean 0 and variance 1 along dimensions; the mean; and 1 / deviation."""
    mean = x.mean(dims, keepdim=True)
    rest = x - mean
    scale = torch.rsqrt(rest.square().mean(dims, keepdim=True) + eps)
    return rest * scale, mean, scale


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


@kernel("native_layer_norm")
def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Three:
    if not shape or tuple(x.shape[-len(shape) :]) != tuple(shape):
        wanted = f"[*{''.join(f', {n}' for n in shape)}]"
        raise RuntimeError(
            f"Given normalized_shape={[*shape]}, expected input with shape {wanted}, but got input "
            f"of size{[*x.shape]}"
        )
    normal, mean, scale = _normal(x, [*range(-len(shape), 0)], eps)
    return _affine(normal, weight, bias), mean, scale


@kernel("native_group_norm")
def group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    pixels: int,
    groups: int,
    eps: float,
) -> Three:
    normal, mean, scale = _normal(x.reshape(batch, groups, channels // groups * pixels), [-1], eps)
    along = (1, channels, *(1 for _ in x.shape[2:]))
    weight, bias = (p if p is None else p.reshape(along) for p in (weight, bias))
    out = _affine(normal.reshape(x.shape), weight, bias)
    return out, mean.squeeze(-1), scale.squeeze(-1)


def _with_constant_statistics(norm: Callable[..., Any]) -> Callable[..., Any]:
    """`norm`, whose mean and 1 / deviation have no derivatives, as in torch's own rules."""

    def run(*args: Any) -> Any:
        out, mean, scale, *others = norm(*args)
        return (out, mean.detach(), scale.detach(), *others)

    return run


def _derived(
    composed: Callable[..., Three], norm: Callable[..., Three], x: Tensor, *rest: object
) -> Three:
    # See NOTE [derivatives of derivatives]. In reverse mode alone, torch's third ones are wrong.
    if is_twice(x, *rest):
        norm = composed
    if x.dtype not in HALF:
        return norm(x, *rest)
    parameters = [p for p in rest if isinstance(p, Tensor)]
    out, mean, scale = norm(x.float(), *(p.float() if isinstance(p, Tensor) else p for p in rest))
    kept = torch.float32 if any(p.dtype not in HALF for p in parameters) else x.dtype
    return out.to(x.dtype), mean.to(kept), scale.to(kept)


differentiable("native_layer_norm")(
    functools.partial(_derived, _with_constant_statistics(layer_norm))
)
differentiable("native_group_norm")(functools.partial(_derived, group_norm))


# -- of batches -----------------------------------------------------------------------------------


def _batch_norm(name: str) -> Callable[..., Any]:
    """torch's composition, with the results that torch has on the CPU."""
    base, _, overload = name.partition(".")
    composed = decomposition_table[getattr(getattr(torch.ops.aten, base), overload or "default")]

    def run(x: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Any) -> Any:
        *statistics, training, _, _ = rest
        if name == "native_batch_norm" and training and statistics != [None, None]:
            fail(
                UnsupportedOpError,
                "an operation of torch.ops.aten changes running statistics, which its schema hides",
                "call torch.nn.functional.batch_norm or instance_norm.",
            )
        out, mean, scale, *running = composed(x, weight, bias, *rest)
        if not training:  # The derivative takes the running statistics.
            mean, scale = x.new_zeros(0), x.new_zeros(0)
        elif x.dtype in HALF and all(p is None or p.dtype in HALF for p in (weight, *statistics)):
            mean, scale = mean.to(x.dtype), scale.to(x.dtype)
        kept = (new.to(old.dtype) for new, old in zip(running, statistics, strict=False))
        return (out, mean, scale, *kept)

    return run


for _name in (
    "native_batch_norm",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit.no_stats",
):
    kernel(_name)(_batch_norm(_name))

for _name in (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit.no_stats",
):
    composition(_name, when=is_nested)(_with_constant_statistics(_batch_norm(_name)))


def _with_update(norm: Callable[..., Any]) -> Callable[..., Any]:
    """`norm` in training, with the memory that other devices would keep for the gradient."""

    def run(x: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Any) -> Any:
        mean, variance, *numbers = rest
        results = norm(x, weight, bias, mean, variance, True, *numbers)
        return (*results[:3], x.new_zeros(0, dtype=torch.uint8), *results[3:])

    return run


kernel("_batch_norm_with_update_functional")(
    _with_update(torch.ops.aten._native_batch_norm_legit_functional)
)
composition("_batch_norm_with_update", when=is_nested)(
    _with_update(torch.ops.aten._native_batch_norm_legit)
)
