"""Calls that torch's derivatives, or its checks, do not take as they are.

NOTE [factors that are tensors]: torch reads the `alpha` of a sum, and the `value` of `addcmul` and
`addcdiv`, if it is a tensor; a traced one, such as a `torch.optim` learning rate, has no value to
read, so its operand is multiplied by it instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from xfunc.torchlib import functorch
from xfunc.torchlib.unbatched import promoting, where_mapped

Tensor = torch.Tensor
Function = Callable[..., Tensor]
_FACTORS = ("alpha", "value")


def _factored(func: Function) -> Function:
    """`func`, by way of a product where a factor is a tensor."""

    @functools.wraps(func)
    def call(*args: object, **kwargs: object) -> Tensor:
        if kwargs and any(isinstance(kwargs.get(k), Tensor) for k in _FACTORS):
            return _multiplied(func, args, kwargs)
        return func(*args, **kwargs)

    return call


def _multiplied(func: Function, args: Sequence[object], kwargs: Mapping[str, object]) -> Tensor:
    """See NOTE [factors that are tensors]."""
    name, factor = next((k, v) for k in _FACTORS if isinstance(v := kwargs.get(k), Tensor))
    rest = {k: v for k, v in kwargs.items() if k != name}
    place = 0 if func is torch.rsub else 1
    dtype = args[0].dtype if isinstance(args[0], Tensor) else None
    if len(args) <= place or dtype is None or factor.ndim:
        return func(*args, **kwargs)
    if not torch.can_cast(factor.dtype, dtype):
        raise RuntimeError(f"{name} is of {factor.dtype}, which can't be cast to {dtype}")
    given: list[Any]  # the terms that torch adds
    given, factor = [*args], factor.to(dtype)
    if dtype in (torch.bfloat16, torch.float16):
        given, factor = [_wide(a) for a in args], factor.float()
    given[place] = given[place] * factor
    return func(*given, **rest).to(dtype)


def _wide(x: object) -> object:
    return x.float() if isinstance(x, torch.Tensor) else x


def _in_place_by(plain: Function, func: Function) -> Function:
    """`func`, which changes its first argument, by way of `plain` where a factor is a tensor."""

    def call(x: Tensor, *args: object, **kwargs: object) -> Tensor:
        if kwargs and any(isinstance(kwargs.get(k), Tensor) for k in _FACTORS):
            return x.copy_(_multiplied(plain, (x.clone(), *args), kwargs))
        return func(x, *args, **kwargs)

    return call


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
    **{f: _factored(f) for f in _find("add sub subtract rsub".split())},
    **{f: _factored(promoting(f)) for f in _find("addcmul addcdiv".split())},
    torch.Tensor.add_: _in_place_by(torch.add, torch.Tensor.add_),
    torch.Tensor.sub_: _in_place_by(torch.sub, torch.Tensor.sub_),
    torch.Tensor.subtract_: _in_place_by(torch.sub, torch.Tensor.subtract_),
    torch.Tensor.addcmul_: _in_place_by(torch.addcmul, torch.Tensor.addcmul_),
    torch.Tensor.addcdiv_: _in_place_by(torch.addcdiv, torch.Tensor.addcdiv_),
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
