"""Rules of operations that make arrays, and of conversions.

NOTE [factories]: without a tensor among its arguments, an operation goes to the kernel of the
device it is asked for. So these are registered with torch's dispatcher, and give wrapped values;
inside of a kernel, below functionalisation, values are bare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from xfunc.core import torch_versions
from xfunc.graph import build
from xfunc.graph.build import Number, add, multiply
from xfunc.graph.node import ArrayType, Node, array_type, next_number
from xfunc.graph.symbolic_zeros import ABSENT
from xfunc.rules.operands import convert, dtype_of_number, number, on_cpu
from xfunc.tracer import placeholders
from xfunc.tracer.placeholders import NoDataError, Placeholder, node_of
from xfunc.tracer.table import rule

_library = torch.library.Library("aten", "IMPL")


def factory(*names: str) -> Callable[[Callable[..., Node]], Callable[..., Node]]:
    """A decorator: this makes the arrays of these operations."""

    def put(function: Callable[..., Node]) -> Callable[..., Node]:
        def run(*args: Any, **kwargs: Any) -> torch.Tensor:
            made = placeholders.placeholder(function(*args, **kwargs))
            is_bare = torch._C._dispatch_tls_is_dispatch_key_excluded("Functionalize")
            return made if is_bare else placeholders.wrap(made)

        for name in names:
            _library.impl(name, run, placeholders.KEY)
        return function

    return put


def _filled(value: Number, type: ArrayType) -> Node:
    return build.full(number(value, type.dtype), type)


@factory("empty.memory_format", "empty_strided", "zeros")
def _zeros(size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Node:
    return _filled(0, array_type(dtype or torch.get_default_dtype(), tuple(size)))


@factory("_efficientzerotensor")
def _absent(size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Node:
    """Zeros that are absent, which forward-mode formulas make in place of missing tangents."""
    dtype = dtype or torch.get_default_dtype()
    if dtype is torch.bool:  # The formulas subtract, which torch refuses for booleans.
        dtype = torch.uint8
    return Node(ABSENT, array_type(dtype, tuple(size)))


@factory("ones")
def _ones(size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any) -> Node:
    return _filled(1, array_type(dtype or torch.get_default_dtype(), tuple(size)))


@factory("full")
def _full(
    size: Sequence[int], value: Number, *, dtype: torch.dtype | None = None, **_: Any
) -> Node:
    return _filled(value, array_type(dtype or dtype_of_number(type(value)), tuple(size)))


@factory("scalar_tensor")
def _scalar(value: Number, *, dtype: torch.dtype | None = None, **_: Any) -> Node:
    return _filled(value, array_type(dtype or torch.get_default_dtype(), ()))


@factory("linspace")
def _linspace(
    start: Number, end: Number, steps: int, *, dtype: torch.dtype | None = None, **_: Any
) -> Node:
    dtype = dtype or torch.get_default_dtype()
    held = torch.float64 if not dtype.is_floating_point or dtype is torch.float64 else torch.float32
    if dtype.is_complex:
        held = dtype
    elif not dtype.is_floating_point:
        start, end = number(start, dtype), number(end, dtype)
    type = array_type(held, (steps,))
    if steps <= 1:
        return convert(_filled(start, type), dtype)
    place = convert(build.iota(array_type(torch.int64, (steps,))), held)
    step = (end - start) / (steps - 1)  # type: ignore[operator]
    up = add(multiply(place, number(step, held)), number(start, held))
    back = build.subtract(build.full(steps - 1, type), place)
    down = build.subtract(_filled(end, type), multiply(back, number(step, held)))
    early = build.compare(build.real(place), steps // 2, "LT")
    return convert(build.select(early, up, down), dtype)


def _constant(function: Callable[..., torch.Tensor], *names: str) -> None:
    """A constant: numbers computed from Python numbers, as torch rounds them."""

    @factory(*names)
    def run(*numbers: Any, dtype: torch.dtype | None = None, **_: Any) -> Node:
        return build.literal(on_cpu(function)(*numbers, dtype=dtype, device="cpu"))


_constant(torch.logspace, "logspace")
_constant(torch.kaiser_window, "kaiser_window", "kaiser_window.periodic", "kaiser_window.beta")


@factory("arange", "arange.start", "arange.start_step")
def _arange(*bounds: Number, dtype: torch.dtype | None = None, **_: Any) -> Node:
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    is_whole = all(isinstance(b, int) for b in (start, end, step))
    dtype = dtype or (torch.int64 if is_whole else torch.get_default_dtype())
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if start != end and (end > start) != (step > 0):  # type: ignore[operator]
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    length = max(0, math.ceil((end - start) / step))  # type: ignore[operator]
    if is_whole:
        length = max(0, -((start - end) // step))  # type: ignore[operator]
    if dtype.is_floating_point:
        held = dtype if dtype is torch.float64 else torch.float32
        if length > 1 << 24:
            held = torch.float64
    else:
        held = torch.int64
        start, step = int(start), int(step)  # type: ignore[arg-type]
    n = build.iota(array_type(held, (length,)))
    if step != 1:
        n = multiply(n, number(step, held))
    return convert(add(n, number(start, held)) if start else n, dtype)


@factory("fft_fftfreq")
def _fft_frequencies(n: int, d: float = 1.0, *, dtype: torch.dtype | None = None, **_: Any) -> Node:
    """torch's composite resizes a slice, which leaves the array around it as it was."""
    dtype = dtype or torch.get_default_dtype()
    type = array_type(torch.int64, (n,))
    place = build.iota(type)
    early = build.compare(place, (n + 1) // 2, "LT")
    signed = build.select(early, place, build.subtract(place, build.full(n, type)))
    return multiply(convert(signed, dtype), number(1 / (n * d), dtype))


@factory("eye", "eye.m")
def _eye(n: int, m: int | None = None, *, dtype: torch.dtype | None = None, **_: Any) -> Node:
    dims = (n, n if m is None else m)
    type = array_type(torch.int64, dims)
    same = build.compare(build.iota(type, 0), build.iota(type, 1), "EQ")
    return convert(same, dtype or torch.get_default_dtype())


# -- like another ---------------------------------------------------------------------------------


def _like(value: Number, *names: str) -> None:
    @rule(*names)
    def run(x: Placeholder, *, dtype: torch.dtype | None = None, **_: Any) -> Node:
        return _filled(value, array_type(dtype or x.dtype, x.node.type.dims))


_like(0, "zeros_like", "empty_like")
_like(1, "ones_like")


@rule("full_like")
def _full_like(
    x: Placeholder, value: Number, *, dtype: torch.dtype | None = None, **_: Any
) -> Node:
    return _filled(value, array_type(dtype or x.dtype, x.node.type.dims))


@rule("fill.Scalar")
def _fill(x: Placeholder, value: Number) -> Node:
    return _filled(value, x.node.type)


@rule("fill.Tensor")
def _fill_by(x: Placeholder, value: torch.Tensor) -> Node:
    if value.dim():
        raise RuntimeError(
            "fill only supports a 0-dimensional value tensor but got tensor with "
            f"{value.dim()} dimensions."
        )
    return build.broadcast(convert(node_of(value), x.dtype), x.node.type.dims)


@rule("new_zeros", "new_empty")
def _new_zeros(
    x: Placeholder, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any
) -> Node:
    return _filled(0, array_type(dtype or x.dtype, tuple(size)))


@rule("new_empty_strided")
def _new_empty_strided(
    x: Placeholder,
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    **_: Any,
) -> Node:
    return _filled(0, array_type(dtype or x.dtype, tuple(size)))


@rule("new_ones")
def _new_ones(
    x: Placeholder, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any
) -> Node:
    return _filled(1, array_type(dtype or x.dtype, tuple(size)))


@rule("new_full")
def _new_full(
    x: Placeholder,
    size: Sequence[int],
    value: Number,
    *,
    dtype: torch.dtype | None = None,
    **_: Any,
) -> Node:
    return _filled(value, array_type(dtype or x.dtype, tuple(size)))


@rule("zero")
def _zero(x: Placeholder) -> Node:
    return _filled(0, x.node.type)


# -- conversions and reads ------------------------------------------------------------------------

FLOAT8 = frozenset((torch.float8_e4m3fn, torch.float8_e5m2))


def to_float8(n: Node, dtype: torch.dtype) -> Node:
    """Rounded once: XLA may convert by way of float16, and round twice.

    It gets numbers of 5 bits of mantissa, whose last bit is set if anything was cut off.
    """
    n = build.convert(n, torch.float32)
    if dtype is torch.float8_e4m3fn and torch_versions.float8_saturates():
        n = build.binary("minimum", build.binary("maximum", n, -448.0), 448.0)
    bits = build.bitcast_convert(n, torch.int32)
    cut = 0x3FFFF
    rest = build.binary("and", bits, cut)
    sticky = build.binary("and", add(rest, cut), cut + 1)
    bits = build.or_(build.binary("and", bits, ~cut), sticky)
    return build.convert(build.bitcast_convert(bits, torch.float32), dtype)


def refuse_read(*_: Any, **__: Any) -> Any:
    """Raise: a placeholder has no data."""
    raise NoDataError("a traced value has no data")


@rule("_to_copy")
def _to_copy(
    x: Placeholder,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    **_: Any,
) -> Any:
    if device is not None and torch.device(device).type != placeholders.DEVICE.type:
        if torch.device(device).type == "meta":
            return torch.empty(x.shape, dtype=dtype or x.dtype, device="meta")
        refuse_read()
    n = node_of(x)
    dtype = dtype or n.type.dtype
    return (
        to_float8(n, dtype) if dtype in FLOAT8 and n.type.dtype is not dtype else convert(n, dtype)
    )


@rule("copy_")
def _copy_into(x: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Write to an array that torch has just made: the list of an index, below all else."""
    if type(x) is not Placeholder:
        return refuse_read()
    x.node = build.broadcast(convert(node_of(src), x.dtype), x.node.type.dims)
    x.number = next_number()
    return x


_library.impl("copy_", _copy_into, placeholders.KEY)


rule("_local_scalar_dense", "is_nonzero", "equal", "_to_cpu", "masked_select",
     "_unique2", "_unique", "unique_dim", "unique_consecutive")(refuse_read)  # fmt: skip


@rule("is_same_size")
def _is_same_size(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape


@rule("_has_same_storage_numel")
def _has_same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.numel() == b.numel()
