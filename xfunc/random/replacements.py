"""Replacements for torch functions that draw from the global generator: see `implicit`.

Each takes a function that returns the draw's key, then the torch function's arguments. Those for
methods ending in ``_`` change their first argument in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from xfunc.random import continuous, counts, discrete
from xfunc.random.binomial import binomial
from xfunc.random.checks import Tensor
from xfunc.random.gamma import dirichlet, gamma
from xfunc.trace import tracing

NextKey = Callable[[], Tensor]


def _like(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def _uniform(
    key: Tensor, x: Tensor, low: Tensor | float = 0.0, high: Tensor | float = 1.0
) -> Tensor:
    """Uniform numbers with a tensor's shape and dtype, on its device."""
    return continuous.uniform(key, _like(x), x.dtype, low, high).to(x.device)


def _positive(key: Tensor, x: Tensor) -> Tensor:
    """Uniform numbers excluding 0, so that their logarithms are finite."""
    return _uniform(key, x, torch.finfo(x.dtype).tiny)


def _normal(key: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    return continuous.normal(key, tuple(shape), dtype).to(device)


def _bernoulli(
    key: Tensor, p: Tensor | float, x: Tensor, shape: tuple[int, ...] | None = None
) -> Tensor:
    """1 with probability p, otherwise 0, in a tensor's dtype."""
    p = p.float() if isinstance(p, Tensor) else p
    drawn = discrete.bernoulli(key, p, _like(x) if shape is None else shape)
    return drawn.to(x.device, x.dtype)


def _integers(key: Tensor, shape: Sequence[int], low: int, high: int, dtype: torch.dtype) -> Tensor:
    shape = tuple(shape)
    if high - low <= 2**31 - 1 and low >= -(2**31) and high < 2**31:
        return discrete.randint(key, shape, low, high).to(dtype)
    return discrete.randint(key, shape, low, high, torch.int64).to(dtype)


# -- dropout ------------------------------------------------------------------------------------


def _noise(
    key: Tensor, x: Tensor, p: float, of_features: bool, alpha: bool
) -> tuple[Tensor, Tensor | None]:
    """The factor to multiply `x` by, and the term to add then."""
    shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if of_features else _like(x)
    if p == 1.0:
        return torch.zeros((), dtype=x.dtype, device=x.device), None
    kept = _bernoulli(key, 1.0 - p, x, shape)
    if not alpha:
        return kept / (1.0 - p), None
    # Minus SELU's limit at -inf: dropping to it preserves mean and variance.
    # Source: Klambauer et al., "Self-Normalizing Neural Networks", 2017.
    saturated = 1.7580993408473766
    a = 1.0 / math.sqrt((saturated**2 * p + 1.0) * (1.0 - p))
    return kept * a, (kept - 1.0) * (saturated * a) + saturated * a * p


def _dropout(of_features: bool = False, alpha: bool = False) -> Callable[..., Tensor]:
    def dropout(new: NextKey, input: Tensor, p: float, train: bool) -> Tensor:
        del train  # A call with train=False draws nothing, and never gets here.
        factor, term = _noise(new(), input, p, of_features, alpha)
        return input * factor if term is None else input * factor + term

    return dropout


def _dropout_(of_features: bool = False, alpha: bool = False) -> Callable[..., Tensor]:
    def dropout_(new: NextKey, input: Tensor, p: float, train: bool) -> Tensor:
        del train
        factor, term = _noise(new(), input, p, of_features, alpha)
        input.mul_(factor)
        return input if term is None else input.add_(term)

    return dropout_


def _native_dropout(
    new: NextKey, input: Tensor, p: float, train: bool | None
) -> tuple[Tensor, Tensor]:
    del train
    factor, _ = _noise(new(), input, p, of_features=False, alpha=False)
    factor = factor.expand(input.shape)
    return input * factor, factor != 0


def _attention(
    new: NextKey,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = query @ key.transpose(-2, -1)
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.softmax(scores, -1)
    factor, _ = _noise(new(), weights, dropout_p, of_features=False, alpha=False)
    return (weights * factor) @ value


def _rrelu(
    new: NextKey, input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = True
) -> Tensor:
    del training
    if not lower <= upper:  # NaN too
        raise RuntimeError("Lower bound should be less than or equal to the upper bound")
    return input * torch.where(input >= 0, 1.0, _uniform(new(), input, lower, upper))


def _rrelu_(new: NextKey, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return input.copy_(_rrelu(new, input, *args, **kwargs))


def _first(pool: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    """A pooling function from the one that also returns indices, which draws."""

    def first(new: NextKey, *args: Any, **kwargs: Any) -> Tensor:
        del new
        return pool(*args, **kwargs)[0]

    return first


# -- new tensors --------------------------------------------------------------------------------


def _sizes(size: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    given = kwargs.get("size", size)
    return tuple(given[0]) if given and isinstance(given[0], (tuple, list)) else tuple(given)


def _finish(x: Tensor, like: Tensor | None, kwargs: Mapping[str, Any]) -> Tensor:
    """Apply the device and requires_grad that the call asks for."""
    device = kwargs.get("device") or (like.device if like is not None else None)
    if device is None and tracing.current() is None:
        device = torch.get_default_device()
    x = x if device is None else x.to(device)
    return x.requires_grad_() if kwargs.get("requires_grad") else x


def _rand(new: NextKey, *size: object, **kwargs: Any) -> Tensor:
    return _finish(
        continuous.uniform(new(), _sizes(size, kwargs), kwargs.get("dtype")), None, kwargs
    )


def _randn(new: NextKey, *size: object, **kwargs: Any) -> Tensor:
    return _finish(
        continuous.normal(new(), _sizes(size, kwargs), kwargs.get("dtype")), None, kwargs
    )


def _rand_like(new: NextKey, input: Tensor, **kwargs: Any) -> Tensor:
    dtype = kwargs.get("dtype") or input.dtype
    return _finish(continuous.uniform(new(), _like(input), dtype), input, kwargs)


def _randn_like(new: NextKey, input: Tensor, **kwargs: Any) -> Tensor:
    dtype = kwargs.get("dtype") or input.dtype
    return _finish(continuous.normal(new(), _like(input), dtype), input, kwargs)


def _randint(new: NextKey, *args: Any, **kwargs: Any) -> Tensor:
    given = list(args)
    size = kwargs["size"] if "size" in kwargs else given.pop()
    low, high = _range(given, kwargs)
    dtype = kwargs.get("dtype") or torch.int64
    return _finish(_integers(new(), size, low, high, dtype), None, kwargs)


def _randint_like(new: NextKey, input: Tensor, *args: object, **kwargs: Any) -> Tensor:
    low, high = _range(list(args), kwargs)
    dtype = kwargs.get("dtype") or input.dtype
    return _finish(_integers(new(), input.shape, low, high, dtype), input, kwargs)


def _range(given: list[Any], kwargs: Mapping[str, Any]) -> tuple[int, int]:
    high = kwargs["high"] if "high" in kwargs else given.pop()
    return kwargs.get("low", given[0] if given else 0), high


def _randperm(new: NextKey, n: int, **kwargs: Any) -> Tensor:
    found = discrete.permutation(new(), n).to(kwargs.get("dtype") or torch.int64)
    return _finish(found, None, kwargs)


def _normal_of(
    new: NextKey,
    mean: Tensor | float = 0.0,
    std: Tensor | float = 1.0,
    size: Any = None,
    **kwargs: Any,
) -> Tensor:
    tensors = [t for t in (mean, std) if isinstance(t, Tensor)]
    if not tensors:
        return _randn(new, *size, **kwargs) * std + mean
    like = tensors[0]
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    return _normal(new(), shape, like.dtype, like.device) * std + mean


def _multinomial(
    new: NextKey, input: Tensor, num_samples: int, replacement: bool = False, **kwargs: object
) -> Tensor:
    del kwargs
    batch = tuple(input.shape[:-1])
    logits = torch.log(input)
    shape = (num_samples, *batch)
    drawn = discrete.categorical(new(), logits, -1, shape, replacement)
    return drawn.movedim(0, -1).to(input.device)


def _poisson(new: NextKey, input: Tensor, **kwargs: object) -> Tensor:
    del kwargs
    drawn = counts.poisson(new(), input.detach().float(), dtype=torch.int64)
    return drawn.to(input.device, input.dtype)


def _binomial(new: NextKey, count: Tensor, prob: Tensor, **kwargs: object) -> Tensor:
    del kwargs
    dtype = torch.promote_types(count.dtype, torch.float32)
    n, p = count.detach().to(dtype), prob.detach().to(dtype)
    return binomial(new(), n, p, dtype=dtype).to(count.device, count.dtype)


def _standard_gamma(new: NextKey, input: Tensor, **kwargs: object) -> Tensor:
    del kwargs
    return gamma(new(), input, dtype=input.dtype).to(input.device)


def _sample_dirichlet(new: NextKey, input: Tensor, **kwargs: object) -> Tensor:
    del kwargs
    return dirichlet(new(), input, dtype=input.dtype).to(input.device)


def _bernoulli_of(
    new: NextKey, input: Tensor, p: Tensor | float | None = None, **kwargs: object
) -> Tensor:
    del kwargs
    return _bernoulli(new(), input if p is None else p, input)


# -- in place -----------------------------------------------------------------------------------


def _in_place(sample: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A method that fills a tensor with the samples that `sample` draws."""

    def method(new: NextKey, x: Tensor, *args: object, **kwargs: object) -> Tensor:
        kwargs.pop("generator", None)
        named = {{"from": "low", "to": "high"}.get(k, k): v for k, v in kwargs.items()}
        return x.copy_(sample(new(), x, *args, **named))

    return method


def _fill_bernoulli(key: Tensor, x: Tensor, p: Tensor | float = 0.5) -> Tensor:
    return _bernoulli(key, p, x)


def _fill_normal(key: Tensor, x: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return _normal(key, x.shape, x.dtype, x.device) * std + mean


def _fill_log_normal(key: Tensor, x: Tensor, mean: float = 1.0, std: float = 2.0) -> Tensor:
    return _fill_normal(key, x, mean, std).exp()


def _fill_exponential(key: Tensor, x: Tensor, lambd: float = 1.0) -> Tensor:
    return -_positive(key, x).log() / lambd


def _fill_geometric(key: Tensor, x: Tensor, p: float) -> Tensor:
    drawn = _positive(key, x if x.is_floating_point() else x.float())
    return (drawn.log() / math.log1p(-p)).ceil().clamp(min=1).to(x.dtype)


def _fill_cauchy(key: Tensor, x: Tensor, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    return median + sigma * torch.tan(math.pi * (_uniform(key, x) - 0.5))


def _fill_random(key: Tensor, x: Tensor, low: int | None = None, high: int | None = None) -> Tensor:
    if high is None:
        low, high = 0, _beyond(x.dtype) if low is None else low
    return _integers(key, x.shape, low or 0, high, x.dtype).to(x.device)


def _beyond(dtype: torch.dtype) -> int:
    """The first integer that a dtype can't represent exactly."""
    if dtype is torch.bool:
        return 2
    if dtype.is_floating_point:
        return round(2 / torch.finfo(dtype).eps) + 1
    return min(torch.iinfo(dtype).max, 2**63 - 2) + 1


REPLACEMENTS: dict[str, Callable[..., object]] = {
    "dropout": _dropout(),
    "dropout_": _dropout_(),
    "feature_dropout": _dropout(of_features=True),
    "feature_dropout_": _dropout_(of_features=True),
    "alpha_dropout": _dropout(alpha=True),
    "alpha_dropout_": _dropout_(alpha=True),
    "feature_alpha_dropout": _dropout(of_features=True, alpha=True),
    "feature_alpha_dropout_": _dropout_(of_features=True, alpha=True),
    "native_dropout": _native_dropout,
    "scaled_dot_product_attention": _attention,
    "fractional_max_pool2d": _first(F.fractional_max_pool2d_with_indices),
    "fractional_max_pool3d": _first(F.fractional_max_pool3d_with_indices),
    "rrelu": _rrelu,
    "rrelu_": _rrelu_,
    "rand": _rand,
    "randn": _randn,
    "randint": _randint,
    "randperm": _randperm,
    "rand_like": _rand_like,
    "randn_like": _randn_like,
    "randint_like": _randint_like,
    "normal": _normal_of,
    "bernoulli": _bernoulli_of,
    "multinomial": _multinomial,
    "poisson": _poisson,
    "binomial": _binomial,
    "_standard_gamma": _standard_gamma,
    "_sample_dirichlet": _sample_dirichlet,
    "bernoulli_": _in_place(_fill_bernoulli),
    "normal_": _in_place(_fill_normal),
    "log_normal_": _in_place(_fill_log_normal),
    "uniform_": _in_place(_uniform),
    "exponential_": _in_place(_fill_exponential),
    "geometric_": _in_place(_fill_geometric),
    "cauchy_": _in_place(_fill_cauchy),
    "random_": _in_place(_fill_random),
}
"""Replacements by the name of the torch function."""
