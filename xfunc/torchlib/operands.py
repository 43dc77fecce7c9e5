"""Calls that torch's derivatives, or its checks, do not take as they are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from xfunc.torchlib import functorch
from xfunc.torchlib.unbatched import promoting, where_mapped

Tensor = torch.Tensor
Function = Callable[..., Tensor]


def _find(names: Iterable[str]) -> Iterator[Function]:
    for place in (torch, torch.Tensor):
        yield from (getattr(place, n) for n in names if hasattr(place, n))


def _rounding(func: Function) -> Function:
    """`func`, whose result has no tangent if it is rounded: like `torch.floor`, it has no slope."""

    @functools.wraps(func)
    def call(*args: object, **kwargs: object) -> Tensor:
        if kwargs.get("rounding_mode") is not None and functorch.JVP in functorch.levels():
            args = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in args)
        return func(*args, **kwargs)

    return call


def _reducing(func: Function) -> Function:
    """A reduction with a `dtype`, to which torch converts before it reduces.

    Torch differentiates the result as if it were floating, and fails.
    """

    @functools.wraps(func)
    def call(*args: object, **kwargs: Any) -> Tensor:
        dtype = kwargs.get("dtype")
        if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
            if args and isinstance(args[0], torch.Tensor):
                args = (args[0].to(dtype), *args[1:])
            elif isinstance(kwargs.get("input"), torch.Tensor):
                kwargs = {**kwargs, "input": kwargs["input"].to(dtype)}
        return func(*args, **kwargs)

    return call


def _putting(func: Function, view: Function) -> Function:
    """A function that writes `src` into a view of a tensor, whose dtype it takes.

    torch has no check of the shape in its decompositions, or in vmap.
    """

    @functools.wraps(func)
    def call(input: Tensor, src: Tensor, *args: object, **kwargs: object) -> Tensor:
        place = view(input, *args, **kwargs)
        if src.shape != place.shape:
            raise RuntimeError(
                "expected src to have a size equal to the slice of self. "
                f"src size = {[*src.shape]}, slice size = {[*place.shape]}"
            )
        return func(input, src.to(input.dtype), *args, **kwargs)

    return call


def _within(func: Function) -> Function:
    """`slice_scatter` with bounds in the tensor, as torch's rule for vmap takes them to be."""

    def call(
        input: Tensor,
        src: Tensor,
        dim: int = 0,
        start: int | None = None,
        end: int | None = None,
        step: int = 1,
    ) -> Tensor:
        n = input.shape[dim]

        def place(k: int) -> int:
            return min(max(k + n if k < 0 else k, 0), n)

        first = place(start or 0)
        last = n if end is None else max(place(end), first)
        return func(input, src, dim, first, last, step)

    return where_mapped(func, call)


OPERANDS: dict[object, Function] = {
    **{f: promoting(f) for f in _find("addcmul addcdiv".split())},
    **{f: _rounding(f) for f in _find("div divide".split())},
    **{f: _reducing(f) for f in _find("sum prod cumsum cumprod".split())},
    **{
        f: _putting(f, getattr(torch, name))
        for name in ("select", "diagonal", "as_strided")
        for f in _find([f"{name}_scatter"])
    },
    **{f: _putting(_within(f), torch.ops.aten.slice.Tensor) for f in _find(["slice_scatter"])},
}
"""The replacement for each such function."""
