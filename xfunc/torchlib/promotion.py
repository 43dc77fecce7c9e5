"""Operands of different dtypes, promoted to one before torch_xla sees them.

NOTE [dtypes of torch_xla 2.9]: for a tensor and a 0-d tensor of another dtype of the same kind
(bfloat16[2] + float32[]), and for `where` and `xlogy` of any two dtypes, torch_xla computes in a
dtype other than the one torch declares for the result, or declares a different one. Reading the
result of a lazy operation hides that; a program would return it. And for `add` and `sub` with an
`alpha`, it rounds the product to a narrow dtype before adding it.

NOTE [factors that are tensors]: torch reads the `alpha` of a sum, and the `value` of `addcmul` and
`addcdiv`, if it is a tensor; a traced one, such as a `torch.optim` learning rate, has no value to
read, so its operand is multiplied by it instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from xfunc.torchlib import functorch

Tensor = torch.Tensor
Function = Callable[..., Tensor]
T = TypeVar("T")

_BINARY = (
    "add sub subtract rsub pow maximum minimum max min atan2 arctan2 remainder fmod xlogy "
    "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift clamp clip "
    "clamp_min clamp_max addcmul addcdiv lerp "
    "__add__ __radd__ __sub__ __rsub__ __pow__ __rpow__ __mod__ __rmod__ __and__ __rand__ __or__ "
    "__ror__ __xor__ __rxor__ __lshift__ __rshift__"
).split()
_FACTORS = ("alpha", "value")
_IN_PLACE = "add_ sub_ subtract_ pow_ remainder_ fmod_ __iadd__ __isub__ __ipow__".split()


def result_type(operands: Iterable[torch.Tensor | complex]) -> torch.dtype:
    """The dtype to which torch's arithmetic promotes any number of operands.

    Operands of a lower rank (arrays, then 0-d arrays, then numbers) count only if they are of a
    higher kind (bool, integer, floating, complex).
    """
    ranks: list[torch.dtype | None] = [None, None, None]
    for x in operands:
        if isinstance(x, torch.Tensor):
            rank, dtype = int(x.ndim == 0), x.dtype
        else:
            rank, dtype = 2, _NUMBERS[type(x)]()
        known = ranks[rank]
        ranks[rank] = dtype if known is None else torch.promote_types(known, dtype)
    found = [d for d in ranks if d is not None]
    return functools.reduce(_with_lower, found)


def _with_lower(dtype: torch.dtype, lower: torch.dtype) -> torch.dtype:
    if dtype.is_floating_point and lower.is_complex:
        return torch.promote_types(dtype, torch.complex32)
    return torch.promote_types(dtype, lower) if _kind(lower) > _kind(dtype) else dtype


_NUMBERS: dict[type, Callable[[], torch.dtype]] = {
    bool: lambda: torch.bool,
    int: lambda: torch.int64,
    float: torch.get_default_dtype,
    complex: lambda: torch.promote_types(torch.get_default_dtype(), torch.complex32),
}


def _kind(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else int(dtype is not torch.bool)


def _promoting(func: Function, condition: int | None = None) -> Function:
    """`func` with its tensors (except that at position `condition`) promoted to one dtype."""

    @functools.wraps(func)
    def call(*args: object, **kwargs: object) -> Tensor:
        placed = {i: a for i, a in enumerate(args) if isinstance(a, Tensor) and i != condition}
        if not kwargs and len({a.dtype for a in placed.values()}) <= 1:
            if condition == 0:
                args = _of_one_shape(*args)
            return func(*args)  # as in most calls
        others = ("out", "condition", *_FACTORS)
        named = {k: v for k, v in kwargs.items() if isinstance(v, Tensor) and k not in others}
        tensors = [*placed.values(), *named.values()]
        if len({t.dtype for t in tensors}) > 1:
            dtype = result_type(tensors)
            args = tuple(placed[i].to(dtype) if i in placed else a for i, a in enumerate(args))
            kwargs |= {k: v.to(dtype) for k, v in named.items()}
        if any(isinstance(kwargs.get(k), torch.Tensor) for k in _FACTORS):
            return _multiplied(func, args, kwargs)
        if "alpha" in kwargs and kwargs.get("out") is None:
            return _scaled(func, args, kwargs)
        return func(*args, **kwargs)

    return call


def _of_one_shape(condition: object, *choices: object) -> tuple[object, ...]:
    """What `torch.where` is given, with a scalar condition expanded to the shape of both choices.

    If shapes differ, torch_xla expands all three, in several instructions each.
    """
    if isinstance(condition, Tensor) and condition.ndim == 0 and len(choices) == 2:
        x, y = choices
        if isinstance(x, Tensor) and isinstance(y, Tensor) and x.shape == y.shape:
            condition = condition.expand(x.shape)
    return condition, *choices


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


def number(x: complex, dtype: torch.dtype) -> complex:
    """A number, rounded to a value that a dtype can represent."""
    with torch._C._DisableFuncTorch():  # Inside grad even a new tensor is wrapped.
        return torch.tensor(x, dtype=dtype, device="cpu").item()


def _scaled(func: Function, args: Sequence[object], kwargs: Mapping[str, Any]) -> Tensor:
    """A sum with an `alpha`: torch rounds the `alpha`, but not its product."""
    dtype = args[0].dtype if args and isinstance(args[0], torch.Tensor) else None
    if dtype not in (torch.bfloat16, torch.float16):
        return func(*args, **kwargs)
    wide = {k: _wide(v) for k, v in kwargs.items()}
    wide["alpha"] = number(kwargs["alpha"], dtype)
    return func(*map(_wide, args), **wide).to(dtype)


def _wide(x: object) -> object:
    return x.float() if isinstance(x, torch.Tensor) else x


def _in_place(func: Function) -> Function:
    def call(x: Tensor, other: object, *rest: object, **kwargs: object) -> Tensor:
        if (
            isinstance(other, Tensor)
            and not other.ndim
            and other.dtype != x.dtype
            and torch.can_cast(result_type([x, other]), x.dtype)  # Otherwise torch refuses.
        ):
            other = other.to(x.dtype)
        if "alpha" in kwargs:
            plain = torch.add if func is torch.Tensor.add_ else torch.sub
            return x.copy_(PROMOTING[plain](x, other, **kwargs))
        return func(x, other, *rest, **kwargs)

    return call


def _in_place_by(plain: Function, func: Function) -> Function:
    """`func`, which changes its first argument, by way of `plain` where a factor is a tensor."""

    def call(x: Tensor, *args: Tensor, **kwargs: object) -> Tensor:
        if isinstance(kwargs.get("value"), torch.Tensor):
            return x.copy_(PROMOTING[plain](x.clone(), *args, **kwargs))
        return func(x, *args, **kwargs)

    return call


def _find(names: Iterable[str]) -> Iterator[Function]:
    for place in (torch, torch.Tensor):
        yield from (getattr(place, n) for n in names if hasattr(place, n))


def _reducing(func: Function) -> Function:
    """A reduction with a `dtype`, to which torch converts before it reduces.

    For integers, torch_xla 2.9 reduces first; and torch differentiates the result as if it were
    floating, and fails.
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


def _putting(func: Function) -> Function:
    """A function that writes `src` into a tensor; torch_xla 2.9 would give the result the dtype of
    `src`.
    """

    @functools.wraps(func)
    def call(input: Tensor, src: Tensor, *args: object, **kwargs: object) -> Tensor:
        return func(input, src.to(input.dtype), *args, **kwargs)

    return call


def _wrapping(func: Function) -> Function:
    """`func`, whose numbers wrap around in narrow integer dtypes; torch_xla 2.9 refuses them."""

    @functools.wraps(func)
    def call(*args: object, **kwargs: object) -> Tensor:
        dtypes = {a.dtype for a in args if isinstance(a, torch.Tensor)}
        dtype = dtypes.pop() if len(dtypes) == 1 else None
        exact = func in _DIVIDING and kwargs.get("rounding_mode") is None
        if dtype is not None and not (exact and dtype in _NARROW):
            args = tuple(wrapped(a, dtype) for a in args)
            kwargs = {k: wrapped(v, dtype) for k, v in kwargs.items()}
        return func(*args, **kwargs)

    return call


def _rounding(func: Function) -> Function:
    """`func`, whose result has no tangent if it is rounded: like `torch.floor`, it has no slope."""

    @functools.wraps(func)
    def call(*args: object, **kwargs: object) -> Tensor:
        if kwargs.get("rounding_mode") is not None and functorch.JVP in functorch.levels():
            args = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in args)
        return func(*args, **kwargs)

    return call


def wrapped(x: T, dtype: torch.dtype) -> T | int | float:
    """A number as used with tensors of a dtype; anything else unchanged."""
    if type(x) is not int or not -(2**63) <= x < 2**64:  # torch accepts no others
        return x
    if dtype not in _NARROW:  # torch_xla makes an int64 of it
        return float(x) if x >= 2**63 and dtype.is_floating_point else x
    first = torch.iinfo(dtype).min
    return (x - first) % (1 << 8 * dtype.itemsize) + first


_NARROW = (torch.int8, torch.uint8, torch.int16, torch.int32)
_WRAPPING = (
    "sub subtract rsub remainder fmod floor_divide eq ne lt le gt ge bitwise_left_shift "
    "bitwise_right_shift __sub__ __rsub__ __mod__ __rmod__ __floordiv__ __rfloordiv__ __lshift__ "
    "__rshift__ __rlshift__ __rrshift__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ remainder_ fmod_ "
    "floor_divide_ eq_ ne_ lt_ le_ gt_ ge_ __isub__ __imod__ __ifloordiv__ sub_ subtract_"
).split()
_PUTTING = "slice_scatter select_scatter diagonal_scatter as_strided_scatter".split()

_DIVIDING = frozenset(_find("div divide div_ divide_".split()))
_PROMOTING: dict[object, Function] = {
    **{f: _promoting(f) for f in _find(_BINARY)},
    **{f: _in_place(f) for f in _find(_IN_PLACE)},
    torch.Tensor.addcmul_: _in_place_by(torch.addcmul, torch.Tensor.addcmul_),
    torch.Tensor.addcdiv_: _in_place_by(torch.addcdiv, torch.Tensor.addcdiv_),
    **{f: _reducing(f) for f in _find("sum prod cumsum cumprod".split())},
    **{f: _putting(f) for f in _find(_PUTTING)},
    torch.where: _promoting(torch.where, condition=0),
    torch.Tensor.where: _promoting(torch.Tensor.where, condition=1),
}

PROMOTING: dict[object, Function] = {
    **_PROMOTING,
    **{f: _wrapping(_PROMOTING.get(f) or f) for f in (*_find(_WRAPPING), *_DIVIDING)},
}
PROMOTING |= {f: _rounding(PROMOTING[f]) for f in _find("div divide".split())}
"""For each torch function that needs it, a wrapper that promotes its operands."""
