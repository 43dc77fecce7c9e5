"""Replacements for torch functions that traced code calls.

NOTE [batch normalisation]: torch's kernels update the running statistics below functionalisation,
where a change in place is not seen, and their backward pass asks for the statistics of the batch.
Written in plain operations, it can be differentiated to any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from xfunc.torchlib import functorch
from xfunc.torchlib.data_dependent import READING
from xfunc.torchlib.expand import EXPANSIONS
from xfunc.torchlib.fill import FILLING
from xfunc.torchlib.gradients import gradients, requires_grad_, set_requires_grad
from xfunc.torchlib.grouped import CUSTOM, GROUPED
from xfunc.torchlib.in_place import IN_PLACE, changing
from xfunc.torchlib.indexing import INDEXING
from xfunc.torchlib.losses import LOSSES
from xfunc.torchlib.operands import OPERANDS
from xfunc.torchlib.overflow_checks import fitting
from xfunc.torchlib.quantiles import QUANTILES
from xfunc.torchlib.triangles import TRIANGLES
from xfunc.torchlib.unbatched import UNBATCHED
from xfunc.torchlib.unit_vectors import UNIT_VECTORS
from xfunc.torchlib.values import SUPPORTED

Tensor = torch.Tensor
_CHECK_BATCH, _CHECK_SPACE = (vars(F)[f"_verify_{what}_size"] for what in ("batch", "spatial"))


def _type(input: Tensor, dtype: Any = None, non_blocking: bool = False) -> str | Tensor:
    """``Tensor.type``, where the names of types are those of the CPU, wherever a program runs."""
    with torch._C.DisableTorchFunction(), functorch.bottom_level():
        named = {torch.empty(0, dtype=t).type(): t for t in SUPPORTED}
    if dtype is None:
        return next((name for name, t in named.items() if t is input.dtype), input.type())
    if isinstance(dtype, str):
        dtype = named.get(f"torch.{dtype.rpartition('.')[2]}", dtype)
    else:
        dtype = getattr(dtype, "dtype", dtype)  # of torch.FloatTensor
    return input.type(dtype, non_blocking)


def _statistics(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor, float]:
    """The mean and the variance over `dims`, kept as dimensions of size 1; and the factor that
    makes the variance unbiased.
    """
    variance, mean = torch.var_mean(x, tuple(dims), correction=0, keepdim=True)
    n = x.numel() // max(mean.numel(), 1)
    return mean, variance, n / (n - 1) if n > 1 else float("nan")


def _update(running: Tensor | None, new: Tensor, momentum: float) -> None:
    if running is not None:
        new = new.detach().flatten().to(running.dtype)
        running.copy_(running * (1 - momentum) + new * momentum)


def _normalise(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    dtype: torch.dtype,
) -> Tensor:
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    out = (x - mean) * torch.rsqrt(variance + eps)
    if weight is not None:
        out = out * weight.reshape(shape)
    if bias is not None:
        out = out + bias.reshape(shape)
    return out.to(dtype) if x.ndim > 1 else out.to(dtype).reshape(x.shape)  # an empty batch


def _wide(x: Tensor) -> Tensor:
    """The tensor in the precision in which torch computes statistics."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    wide = _wide(x)
    if training:
        mean, variance, unbias = _statistics(wide, [d for d in range(x.ndim) if d != 1])
        _update(running_mean, mean, momentum)
        _update(running_var, variance * unbias, momentum)
    else:
        if running_mean is None or running_var is None:
            raise ValueError("Expected running_mean and running_var to be defined in evaluation")
        shape = (1, -1, *(1 for _ in x.shape[2:]))
        mean, variance = running_mean.reshape(shape), running_var.reshape(shape)
    return _normalise(wide, mean, variance, weight, bias, eps, x.dtype)


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    """``torch.batch_norm``: see NOTE [batch normalisation]."""
    return _batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)


def functional_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """``torch.nn.functional.batch_norm``."""
    if training:
        _CHECK_BATCH(input.size())
    return _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


def native_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """``torch.native_batch_norm``, by the operation that says that it changes the statistics."""
    norm = torch.native_batch_norm
    if running_mean is not None and running_var is not None:
        norm = torch.ops.aten._native_batch_norm_legit
    return norm(input, weight, bias, running_mean, running_var, *args, **kwargs)


def functional_instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """``torch.nn.functional.instance_norm``."""
    if use_input_stats:
        _CHECK_SPACE(input.size())
    return instance_norm(
        input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps
    )


def instance_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    """``torch.instance_norm``: see NOTE [batch normalisation]."""
    if not use_input_stats:
        return _batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
    wide = _wide(input)
    mean, variance, unbias = _statistics(wide, range(2, input.ndim))
    _update(running_mean, mean.mean(0), momentum)
    _update(running_var, variance.mean(0) * unbias, momentum)
    return _normalise(wide, mean, variance, weight, bias, eps, input.dtype)


def rrelu(
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """``torch.nn.functional.rrelu``, whose kernel asks for a generator without drawing."""
    if not lower <= upper:  # NaN too
        raise RuntimeError("Lower bound should be less than or equal to the upper bound")
    if training:  # It draws.
        return F.rrelu(input, lower, upper, training, inplace)
    return F.leaky_relu(input, (lower + upper) / 2, inplace)


def torch_rrelu(
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: object = None,
) -> Tensor:
    """``torch.rrelu``."""
    return rrelu(input, lower, upper, training)


REPLACEMENTS: dict[object, Callable[..., Any]] = {
    torch.batch_norm: batch_norm,
    torch.native_batch_norm: native_batch_norm,
    torch.instance_norm: instance_norm,
    F.batch_norm: functional_batch_norm,
    F.instance_norm: functional_instance_norm,
    F.rrelu: rrelu,
    torch.rrelu: torch_rrelu,
    torch.unsafe_split_with_sizes: torch.split_with_sizes,
    torch.unsafe_chunk: torch.chunk,
    Tensor.unsafe_chunk: torch.chunk,
    torch.autograd.grad: gradients,
    Tensor.type: _type,
    Tensor.requires_grad_: requires_grad_,
    vars(torch._C.TensorBase)["requires_grad"].__set__: set_requires_grad,
    **OPERANDS,
    **INDEXING,
    **IN_PLACE,
    **EXPANSIONS,
    **FILLING,
    **GROUPED,
    **LOSSES,
    **QUANTILES,
    **READING,
    **TRIANGLES,
    **UNBATCHED,
    **UNIT_VECTORS,
}
REPLACEMENTS |= fitting(REPLACEMENTS)
REPLACEMENTS |= changing(REPLACEMENTS)


def replacement(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function that traced code calls for one of torch: its replacement, or itself."""
    if isinstance(func, torch._ops.OpOverloadPacket):
        return CUSTOM.get(func._qualified_op_name, func)
    return REPLACEMENTS.get(func, func)
