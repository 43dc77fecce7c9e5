"""Functions that torch 2.9 cannot batch for all operands, written in operations that it can.

torch composes them in C++ from operations, some of which have no `vmap` rule or read a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F

from xfunc.rules.operands import result_type
from xfunc.torchlib import functorch

Tensor = torch.Tensor
R = TypeVar("R")


def where_mapped(func: Callable[..., R], rule: Callable[..., R]) -> Callable[..., R]:
    """`rule` inside a vmap, and torch's own function elsewhere."""

    def call(*args: object, **kwargs: object) -> R:
        mapped = functorch.VMAP in functorch.levels()
        return (rule if mapped else func)(*args, **kwargs)

    return call


def covariance(
    input: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """``torch.cov``, which checks that the weights are positive."""
    if input.ndim > 2:
        dims = f"two or fewer dimensions but got {input.ndim}"
        raise RuntimeError(f"cov(): expected input to have {dims}")
    x = input.reshape(1, -1) if input.ndim < 2 else input
    if fweights is not None:
        integral = not (fweights.is_floating_point() or fweights.is_complex())
        _check_weights("fweights", fweights, integral, x.shape[1])
    if aweights is not None:
        _check_weights("aweights", aweights, aweights.is_floating_point(), x.shape[1])
    if not x.shape[1]:
        return x.new_full((x.shape[0],) * 2, torch.nan).squeeze()
    weight = fweights.to(x.dtype.to_real()) if fweights is not None else None
    if aweights is not None:
        weight = aweights if weight is None else weight * aweights
    total = x.shape[1] if weight is None else weight.sum()
    mean = (x if weight is None else x * weight).sum(1, keepdim=True) / total
    if aweights is not None and correction:
        assert weight is not None
        norm = total - correction * (weight * aweights).sum() / total
    else:
        norm = total - correction
    norm = norm.clamp(min=0) if isinstance(norm, Tensor) else max(norm, 0)
    y = x - mean
    found = (y if weight is None else y * weight) @ y.mH
    return (found / norm).squeeze()


def _check_weights(name: str, given: Tensor, is_right: bool, count: int) -> None:
    kind = "integral" if name == "fweights" else "floating point"
    if not is_right:
        raise RuntimeError(f"cov(): expected {name} to have {kind} dtype but got {given.dtype}")
    if given.ndim > 1 or given.numel() != count:
        wanted = f"cov(): expected {name} to have {count} elements in one dimension"
        raise RuntimeError(f"{wanted} but got {tuple(given.shape)}")


def _correlation(input: Tensor) -> Tensor:
    """``torch.corrcoef``."""
    found = covariance(input)
    if not found.ndim:
        return found / found
    size = found.diagonal().real.sqrt() if found.is_complex() else found.diagonal().sqrt()
    found = found / size[:, None] / size
    if found.is_complex():
        return torch.complex(found.real.clamp(-1, 1), found.imag.clamp(-1, 1))
    return found.clamp(-1, 1)


def distances(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: object = None) -> Tensor:
    """``torch.cdist``."""
    difference = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    return torch.linalg.vector_norm(difference, p, -1)


def _prelu(input: Tensor, weight: Tensor) -> Tensor:
    channels = input.shape[1] if input.ndim > 1 else 1
    if weight.ndim > 1 or weight.numel() not in (1, channels):
        raise RuntimeError(f"prelu: {weight.numel()} weights for {channels} channels")
    along = [-1 if d == 1 else 1 for d in range(input.ndim)] if weight.numel() > 1 else []
    return torch.where(input > 0, input, weight.reshape(along) * input)


def _embedding(input: Tensor, weight: Tensor, *args: object, **kwargs: object) -> Tensor:
    if weight.ndim == 2 and not weight.shape[0]:  # torch counts in steps of the rows.
        return weight.index_select(0, input.reshape(-1)).reshape(*input.shape, weight.shape[1])
    return F.embedding(input, weight, *args, **kwargs)  # type: ignore[arg-type]


def _column_stack(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1, 1) if t.ndim < 2 else t for t in tensors], 1)


def _pseudo_inverse(input: Tensor, *args: object, **kwargs: object) -> Tensor:
    """``torch.linalg.pinv``, which gives what has no elements no axis of mapped tolerances."""
    if input.numel():
        return torch.linalg.pinv(input, *args, **kwargs)  # type: ignore[arg-type]
    return torch.linalg.pinv(input)


def _of_one(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that torch applies along the axis of the vmap where there is no other axis."""

    def call(input: Tensor, *args: object, **kwargs: object) -> Tensor:
        if input.ndim:
            return func(input, *args, **kwargs)
        return func(input.unsqueeze(0), *args, **kwargs).view(())

    return call


def promoting(func: Callable[..., Tensor], condition: int | None = None) -> Callable[..., Tensor]:
    """A function whose rule takes scalar examples for arrays when it promotes dtypes.

    Args:
        func: a function of operands, and options that are keywords.
        condition: the position of an argument that is no operand.
    """

    def call(*args: object, **kwargs: object) -> Tensor:
        given = {**dict(enumerate(args)), **kwargs}
        operands = {
            k: a
            for k, a in given.items()
            if k not in (condition, "condition", "value", "out")
            and isinstance(a, (Tensor, bool, int, float, complex))
        }
        tensors = {k: a for k, a in operands.items() if isinstance(a, Tensor)}
        if len({a.dtype for a in tensors.values()}) > 1:
            dtype = result_type(operands.values())
            given.update((k, a.to(dtype)) for k, a in tensors.items())
        n = len(args)
        return func(*(given[k] for k in range(n)), **{k: given[k] for k in kwargs})

    return where_mapped(func, call)


def _scalar_index(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function with an index, whose rules take that of each example for that of all if 0-d."""

    def call(input: Tensor, dim: int, index: Tensor, *args: object, **kwargs: object) -> Tensor:
        index = index.reshape(1) if input.ndim and not index.ndim else index
        return func(input, dim, index, *args, **kwargs)

    return call


def _mapped_alike(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss whose rule takes the axis of an outer vmap over only one array for one of examples."""

    def call(input: Tensor, target: Tensor, *args: object, **kwargs: object) -> Tensor:
        if input.shape == target.shape:  # Otherwise, torch warns.
            of_both = torch.ones_like(input, dtype=torch.bool)
            of_both = of_both & torch.ones_like(target, dtype=torch.bool)
            input = torch.where(of_both, input, torch.zeros_like(input))
            target = torch.where(of_both, target, torch.zeros_like(target))
        return func(input, target, *args, **kwargs)

    return call


def _alike_but_for(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`index_copy`, whose rule checks no sizes."""

    def call(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
        sizes = [*input.shape]
        if sizes:
            sizes[dim] = index.numel()
        if source.ndim == len(sizes) and [*source.shape] != sizes:
            raise IndexError(
                f"index_copy_(): source has shape {[*source.shape]}, but {sizes} are replaced"
            )
        return func(input, dim, index, source)

    return call


_INDEXED = ("index_select", "index_add", "index_reduce")
_CLAMPS = (torch.clamp, torch.clip, torch.clamp_min, torch.clamp_max)
_METHODS = (Tensor.clamp, Tensor.clip, Tensor.clamp_min, Tensor.clamp_max)

UNBATCHED: dict[object, Callable[..., object]] = {
    **{
        func: where_mapped(func, rule)
        for func, rule in (
            (torch.cov, covariance),
            (Tensor.cov, covariance),
            (torch.corrcoef, _correlation),
            (Tensor.corrcoef, _correlation),
            (torch.cdist, distances),
            (F.embedding, _embedding),
            (F.prelu, _prelu),
            (torch.prelu, _prelu),
            (Tensor.prelu, _prelu),
            (torch.column_stack, _column_stack),
            (torch.linalg.pinv, _pseudo_inverse),
        )
    },
    **{
        f: where_mapped(f, _of_one(f))
        for n in ("flip", "roll", "squeeze")
        for f in (getattr(torch, n), getattr(Tensor, n))
    },
    **{f: where_mapped(f, _mapped_alike(f)) for f in (F.mse_loss, F.smooth_l1_loss, F.huber_loss)},
    **{f: promoting(f) for f in (*_CLAMPS, *_METHODS, torch.lerp, Tensor.lerp)},
    **{f: _scalar_index(f) for n in _INDEXED for f in (getattr(torch, n), getattr(Tensor, n))},
    **{
        f: _scalar_index(where_mapped(f, _alike_but_for(f)))
        for f in (torch.index_copy, Tensor.index_copy)
    },
    Tensor.index_add_: _scalar_index(Tensor.index_add_),
    torch.where: promoting(torch.where, 0),
    Tensor.where: promoting(Tensor.where, 1),
}
"""The replacement for each such function."""
