"""Operations along a dimension of 0-d arrays, and reductions with no dimension named.

torch accepts dimension 0 or -1 for a scalar, which has none; torch_xla 2.9 fails. And where torch
reduces all dimensions if none is named, torch_xla reduces none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xfunc.ops.registry import Kernel, kernel, original

Dims = list[int]


# torch_xla's kernels; for scalars their results are scalars.
_ALONG = """
    _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data topk kthvalue
    scatter.src squeeze_copy.dim squeeze_copy.dims
    prod.dim_int any.dim all.dim
""".split()

# Likewise; with no dimensions named, they reduce all.
_REDUCING = """
    sum.dim_IntList mean.dim
    std.correction var.correction std_mean.correction var_mean.correction
""".split()


def _lifted(name: str) -> Kernel:
    inner = original(name)

    def run(*args: object, **kwargs: object) -> object:
        if any(isinstance(a, torch.Tensor) and not a.ndim for a in args[:1]):
            args = tuple(_vector(a) for a in args)
            kwargs = {k: _vector(v) for k, v in kwargs.items()}
            out: Any = inner(*args, **kwargs)
            if isinstance(out, tuple):
                return tuple(o.reshape(()) for o in out)
            return out.reshape(())
        return inner(*args, **kwargs)

    return run


def _vector(x: object) -> object:
    return x.reshape(1) if isinstance(x, torch.Tensor) and not x.ndim else x


def _is_right(x: object, *rest: object) -> bool:
    return not isinstance(x, torch.Tensor) or x.ndim > 0


for _name in _ALONG:
    kernel(_name, unless=_is_right)(_lifted(_name))


def _reduced(name: str) -> Kernel:
    inner = _lifted(name)

    def run(
        x: torch.Tensor, dim: Sequence[int] | None = None, *rest: object, **options: Any
    ) -> object:
        dim = [*range(x.ndim)] if x.ndim and not dim else dim
        if (dtype := options.get("dtype")) is not None:
            x = x.to(dtype)
        if not x.is_complex():
            return inner(x, dim, *rest, **options)
        return _COMPLEX.get(name, inner)(x, dim, *rest, **options)

    return run


def _names_dimensions(x: torch.Tensor, dim: Sequence[int] | None = None, *rest: object) -> bool:
    return x.ndim > 0 and bool(dim) and x.is_floating_point()


# NOTE [means of complex numbers]: torch_xla 2.9 supports only real means and variances.


def _mean(x: torch.Tensor, dim: Dims, *rest: bool, dtype: object = None) -> torch.Tensor:
    return torch.complex(*(p.mean(dim, *rest) for p in (x.real, x.imag)))


def _variance(x: torch.Tensor, dim: Dims, **options: Any) -> torch.Tensor:
    return sum((p.var(dim, **options) for p in (x.real, x.imag)), x.real.new_zeros(()))


def _deviation(x: torch.Tensor, dim: Dims, **options: object) -> torch.Tensor:
    return _variance(x, dim, **options).sqrt()


def _with_mean(function: Kernel) -> Kernel:
    def run(x: torch.Tensor, dim: Dims, *, keepdim: bool = False, **options: object) -> object:
        return function(x, dim, keepdim=keepdim, **options), _mean(x, dim, keepdim)

    return run


_COMPLEX: dict[str, Kernel] = {
    "mean.dim": _mean,
    "var.correction": _variance,
    "std.correction": _deviation,
    "var_mean.correction": _with_mean(_variance),
    "std_mean.correction": _with_mean(_deviation),
}


@kernel("logsumexp")
def logsumexp(x: torch.Tensor, dim: Dims, keepdim: bool = False) -> torch.Tensor:
    # torch_xla 2.9 gives NaN where an element is infinite.
    if not (x.is_floating_point() or x.is_complex()):
        x = x.to(torch.get_default_dtype())
    if not x.ndim:
        return x.clone()
    dim = dim or [*range(x.ndim)]
    most = x.real.amax(dim, keepdim=True)
    most = torch.where(most.isfinite(), most, torch.zeros_like(most))
    found = torch.log(torch.exp(x - most).sum(dim, keepdim=True)) + most
    return found if keepdim else found.squeeze(dim)


@kernel("sum", unless=lambda x, *_: x.is_floating_point())
def total(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    return x.sum([*range(x.ndim)], dtype=dtype)


@kernel("mean")
def mean(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    x = x if dtype is None else x.to(dtype)
    return x.mean([*range(x.ndim)])


for _name in _REDUCING:
    kernel(_name, unless=_names_dimensions)(_reduced(_name))


def _by_index(name: str) -> Kernel:
    lifted = _lifted(name)

    def run(
        x: torch.Tensor, dim: int, index: torch.Tensor, *rest: torch.Tensor, **options: object
    ) -> object:
        # torch_xla 2.9 crashes on an index that is one of several results (of a sort).
        return lifted(x, dim, index + 0, *rest, **options)

    return run


for _name in ("index_select", "index_copy", "index_add"):
    kernel(_name)(_by_index(_name))
