"""Functions that divide by a norm, or by a bound where the norm is smaller.

Within nested differentiation the second derivatives of a norm at zero are not finite: see NOTE
[second derivatives at zero] in `xfunc.ops.norms`. Where these functions use the bound, they do not
depend on the norm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from xfunc.torchlib import functorch

Tensor = torch.Tensor


def _bounded_norm(x: Tensor, p: float, dim: int, eps: float) -> Tensor:
    """The greater of the norm and a bound."""
    small = torch.linalg.vector_norm(x.detach(), p, dim, keepdim=True) < eps
    safe = torch.linalg.vector_norm(torch.where(small, 1, x), p, dim, keepdim=True)
    return torch.where(small, eps, safe)


def normalize(
    input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """``torch.nn.functional.normalize``."""
    if out is not None or not functorch.differentiates_twice((input,)):
        return F.normalize(input, p, dim, eps, out)
    return input / _bounded_norm(input, p, dim, eps)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """``torch.nn.functional.cosine_similarity``."""
    if not functorch.differentiates_twice((x1, x2)):
        return F.cosine_similarity(x1, x2, dim, eps)
    first, second = torch.broadcast_tensors(x1, x2)
    units = [x / _bounded_norm(x, 2.0, dim, eps) for x in (first, second)]
    return (units[0] * units[1]).sum(dim)


def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """``torch.renorm``."""
    if not functorch.differentiates_twice((input,)):
        return torch.renorm(input, p, dim, maxnorm)
    others = [d for d in range(input.ndim) if d != dim % input.ndim]
    sizes = torch.linalg.vector_norm(input.detach(), p, others, keepdim=True)
    small = sizes <= maxnorm
    safe = torch.linalg.vector_norm(torch.where(small, 1, input), p, others, keepdim=True)
    return torch.where(small, input, input * (maxnorm / (safe + 1e-7)))


UNIT_VECTORS: dict[object, Callable[..., Tensor]] = {
    F.normalize: normalize,
    F.cosine_similarity: cosine_similarity,
    torch.cosine_similarity: cosine_similarity,
    torch.renorm: renorm,
    Tensor.renorm: renorm,
}
"""The replacement for each such function."""
