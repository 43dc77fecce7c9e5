"""Checks on the arguments of random functions, and draws from checked arguments."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch

from xfunc.core.avals import short
from xfunc.errors import fail, kind_of

Tensor = torch.Tensor
Shape = Sequence[int]
Number = float | Tensor
Dtype = torch.dtype | None

# Bits of the mantissa, without the leading 1.
MANTISSA = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23, torch.float64: 52}
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def as_key(key: object, name: str) -> Tensor:
    """Check a key."""
    if isinstance(key, Tensor) and key.dtype is torch.int32 and tuple(key.shape) == (2,):
        return key
    if isinstance(key, Tensor) and key.dtype is torch.int32 and key.shape[-1:] == (2,):
        hint = f"take one of them, or use xf.vmap(xf.random.{name}) for one draw each."
        fail(TypeError, f"{name} was given an array of keys, {short(key)}", hint)
    what = short(key) if isinstance(key, Tensor) else f"{key!r} ({kind_of(key)})"
    hint = "make a key with xf.random.key(seed): it is an int32[2]."
    fail(TypeError, f"{name} was given {what}, which is no key", hint)


def as_shape(shape: object, name: str) -> tuple[int, ...]:
    """Check a shape."""
    if isinstance(shape, Sequence) and all(hasattr(d, "__index__") for d in shape):
        dims = tuple(map(operator.index, shape))
        if all(d >= 0 for d in dims):
            return dims
    hint = "pass a tuple of sizes, as in (3,) or ()."
    fail(TypeError, f"{name} was given the shape {shape!r}", hint)


def numbers(dtype: torch.dtype, *values: object) -> list[Tensor]:
    """Tensors unchanged; Python numbers rounded once, to a dtype."""
    return [v if isinstance(v, Tensor) else torch.tensor(v, dtype=dtype) for v in values]


def floating(dtype: torch.dtype | None, name: str) -> torch.dtype:
    """Check a floating dtype; None means torch's default."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype not in MANTISSA:
        known = ", ".join(map(str, MANTISSA))
        fail(TypeError, f"{name} was given the dtype {dtype}", f"choose from {known}.")
    return dtype


def check_mode(mode: str, name: str) -> None:
    """Raise unless `mode` is one of the two modes."""
    if mode not in ("low", "high"):
        fail(ValueError, f"{name} has mode={mode!r}", "choose 'low' or 'high'.")


def shape_or(shape: Shape | None, name: str, *given: Tensor) -> tuple[int, ...]:
    """The given shape; if None, the one that the tensors broadcast to."""
    if shape is None:
        try:
            return tuple(torch.broadcast_shapes(*(t.shape for t in given)))
        except RuntimeError:
            shapes = " and ".join(str(tuple(t.shape)) for t in given)
            problem = f"{name} was given parameters of the shapes {shapes}, which do not broadcast"
            fail(ValueError, problem, "give shapes that are equal or 1 along each axis.")
    dims = as_shape(shape, name)
    check_broadcast(name, dims, *given)
    return dims


def check_broadcast(name: str, dims: tuple[int, ...], *given: Tensor) -> None:
    """Raise unless all tensors broadcast to a shape."""
    for t in given:
        fits = t.ndim <= len(dims) and all(
            n in (1, d) for n, d in zip(t.shape[::-1], dims[::-1], strict=False)
        )
        if not fits:
            fail(
                ValueError,
                f"{name} has shape={dims}, to which {tuple(t.shape)} does not broadcast",
                "draw the larger shape.",
            )


def drawn(
    program: Callable[..., Tensor],
    name: str,
    key: Tensor,
    shape: Shape,
    dtype: Dtype,
    **options: object,
) -> Tensor:
    """Check the arguments and run a program that draws a floating dtype."""
    key, dims, dtype = as_key(key, name), as_shape(shape, name), floating(dtype, name)
    return program(key, shape=dims, dtype=dtype, **options)


def drawn_with(
    program: Callable[..., Tensor],
    name: str,
    key: Tensor,
    parameters: tuple[Number, ...],
    shape: Shape | None,
    dtype: Dtype,
) -> Tensor:
    """Like `drawn`, with parameters, passed as tensors that broadcast to the shape."""
    key, dtype = as_key(key, name), floating(dtype, name)
    given = numbers(dtype, *parameters)
    return program(key, *given, shape=shape_or(shape, name, *given), dtype=dtype)
