"""Operands as nodes: promoted, converted and broadcast as torch does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from xfunc.graph import build
from xfunc.graph.build import Number
from xfunc.graph.node import Node
from xfunc.tracer.placeholders import Placeholder, node_of

Operand = torch.Tensor | Number
HALF = frozenset((torch.bfloat16, torch.float16))

# -- dtypes ---------------------------------------------------------------------------------------


def is_inexact(dtype: torch.dtype) -> bool:
    """Whether a dtype is floating or complex."""
    return dtype.is_floating_point or dtype.is_complex


def is_integer(dtype: torch.dtype) -> bool:
    """Whether a dtype is one of integers; booleans are none."""
    return not is_inexact(dtype) and dtype is not torch.bool


def _category(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else int(dtype is not torch.bool)


Kind = tuple[torch.dtype | type, bool]
"""The dtype of an array and whether it has dimensions; or the type of a number."""


def kind_of(x: Operand) -> Kind:
    """What promotion depends on."""
    if isinstance(x, torch.Tensor):
        return x.dtype, x.dim() > 0
    return type(x), False


def dtype_of_number(kind: type) -> torch.dtype:
    """The dtype of Python numbers of a type."""
    if issubclass(kind, bool):
        return torch.bool
    if issubclass(kind, int):
        return torch.int64
    default = torch.get_default_dtype()
    return default if issubclass(kind, float) else default.to_complex()


def promoted(*kinds: Kind) -> torch.dtype:
    """The dtype of a result, as ``torch.result_type``."""
    return _promoted(torch.get_default_dtype(), kinds)


def result_type(operands: Iterable[Operand]) -> torch.dtype:
    """The dtype to which torch's arithmetic promotes any number of operands."""
    return promoted(*map(kind_of, operands))


@functools.lru_cache(4096)
def _promoted(_: torch.dtype, kinds: tuple[Kind, ...]) -> torch.dtype:
    # Arrays, 0-d arrays, numbers: a later group counts if it is of a higher category.
    groups: list[torch.dtype | None] = [None, None, None]
    for kind, has_dims in kinds:
        if isinstance(kind, torch.dtype):
            group, dtype = 0 if has_dims else 1, kind
        else:
            group, dtype = 2, dtype_of_number(kind)
        known = groups[group]
        groups[group] = dtype if known is None else torch.promote_types(known, dtype)
    result: torch.dtype | None = None
    for dtype in groups:
        if dtype is None:
            continue
        if result is None:
            result = dtype
        elif _category(dtype) > _category(result):
            is_float = result.is_floating_point and dtype.is_complex
            lower = dtype if not is_float else torch.complex32
            result = torch.promote_types(result, lower)
    assert result is not None
    return result


def inexact(dtype: torch.dtype) -> torch.dtype:
    """A floating or complex dtype; the default one for integers and booleans."""
    return dtype if is_inexact(dtype) else torch.get_default_dtype()


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which functions of half precision are computed: "opmath"."""
    return torch.float32 if dtype in HALF else dtype


# -- conversions ----------------------------------------------------------------------------------


def convert(x: Node, dtype: torch.dtype) -> Node:
    """As torch converts.

    Floating numbers become integers by truncation, and keep the low bits that fit: -1.0 is 255 as
    uint8. Those that overflow int32 (for int64: int64) become its least number, which torch leaves
    undefined.
    """
    old = x.type.dtype
    if old is dtype:
        return x
    if old.is_complex and not dtype.is_complex:
        if dtype is torch.bool:
            re, im = build.real(x), build.imag(x)
            return build.or_(build.compare(re, 0, "NE"), build.compare(im, 0, "NE"))
        return convert(build.real(x), dtype)
    if old.is_floating_point and not is_inexact(dtype) and dtype is not torch.bool:
        return _truncated(x, dtype)
    if dtype.is_complex and not old.is_complex:
        part = build.convert(x, dtype.to_real())
        return build.complex_(part, build.full(0, part.type))
    return build.convert(x, dtype)


def _truncated(x: Node, dtype: torch.dtype) -> Node:
    x = build.convert(x, torch.float32) if x.type.dtype.itemsize < 4 else x
    held = torch.int64 if dtype is torch.int64 else torch.int32
    end = -float(torch.iinfo(held).min)
    fits = build.and_(build.compare(x, -end, "GE"), build.compare(x, end, "LT"))
    whole = build.convert(build.select(fits, x, -end), held)
    return build.convert(whole, dtype)


def number(x: Number, dtype: torch.dtype) -> Number:
    """A number in a dtype; integers wrap around, as in torch."""
    if dtype.is_floating_point:
        return float(x.real if isinstance(x, complex) else x)
    if dtype.is_complex:
        return complex(x)
    if dtype is torch.bool:
        return bool(x)
    x = int(x.real if isinstance(x, complex) else x)
    limits = torch.iinfo(dtype)
    if limits.min <= x <= limits.max:
        return x
    size = 1 << limits.bits
    x %= size
    return x - size if x > limits.max else x


def as_node(x: Operand, dtype: torch.dtype) -> Node:
    """An operand in a dtype; numbers have no dimensions."""
    if type(x) is Placeholder:
        return convert(x.node, dtype)
    if isinstance(x, torch.Tensor):
        return convert(node_of(x), dtype)
    return build.constant(number(x, dtype), dtype)


# -- shapes ---------------------------------------------------------------------------------------


@functools.lru_cache(8192)
def broadcast_dims(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes that two arrays are expanded to.

    Raises:
        RuntimeError: they do not fit.
    """
    n = max(len(a), len(b))
    x, y = (1,) * (n - len(a)) + a, (1,) * (n - len(b)) + b
    for k, (p, q) in enumerate(zip(x, y, strict=True)):
        if p != q and 1 not in (p, q):
            raise RuntimeError(
                f"The size of tensor a ({p}) must match the size of tensor b ({q}) at "
                f"non-singleton dimension {k}"
            )
    return tuple([q if p == 1 else p for p, q in zip(x, y, strict=True)])


def common_dims(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The sizes that several arrays are expanded to."""
    return functools.reduce(broadcast_dims, shapes)


def pair(a: Operand, b: Operand) -> tuple[Node, Node]:
    """Two operands of one type."""
    if type(a) is Placeholder and type(b) is Placeholder:
        x, y = a.node, b.node
        if x.type is y.type:
            return x, y
    return together(promoted(kind_of(a), kind_of(b)), a, b)  # type: ignore[return-value]


def inexact_pair(a: Operand, b: Operand) -> tuple[Node, Node]:
    """Two operands of one floating or complex type."""
    if type(a) is Placeholder and type(b) is Placeholder:
        x, y = a.node, b.node
        if x.type is y.type and is_inexact(x.type.dtype):
            return x, y
    return together(inexact(promoted(kind_of(a), kind_of(b))), a, b)  # type: ignore[return-value]


def together(dtype: torch.dtype, *operands: Operand) -> tuple[Node, ...]:
    """Operands of one dtype, expanded to common sizes."""
    nodes = [as_node(x, dtype) for x in operands]
    dims = common_dims([n.type.dims for n in nodes])
    return tuple([build.broadcast(n, dims) for n in nodes])


def wide_together(dtype: torch.dtype, *operands: Operand) -> tuple[Node, ...]:
    """Operands of one dtype, expanded, and widened for the computation.

    NOTE [numbers next to narrow numbers]: where torch expects a tensor but gets a Python number, or
    a 0-d array of a wider dtype, it rounds it to the narrow dtype first.
    """
    nodes = together(dtype, *operands)
    wider = wide(dtype)
    return nodes if wider is dtype else tuple([build.convert(n, wider) for n in nodes])


def each(values: Sequence[int], n: int) -> list[int]:
    """A number for each of n dimensions; one stands for all."""
    return [*values] * n if len(values) == 1 else [*values]


def dim_of(dim: int, rank: int) -> int:
    """A dimension counted from the front.

    Raises:
        IndexError: out of range.
    """
    limit = max(rank, 1)
    if not -limit <= dim < limit:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-limit}, {limit - 1}], but got "
            f"{dim})"
        )
    return dim % limit


def dims_of(dim: Any, rank: int) -> tuple[int, ...]:
    """Dimensions counted from the front; all of them for None and ()."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(rank))
    if isinstance(dim, int):
        dim = (dim,)
    found = tuple([dim_of(d, rank) for d in dim])
    if len(set(found)) != len(found):
        raise RuntimeError(f"dim {found[0]} appears multiple times in the list of dims")
    return found if rank else ()


_SCALAR_TYPES = {
    "bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int",
    "int64": "Long", "float16": "Half", "bfloat16": "BFloat16", "float32": "Float",
    "float64": "Double", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
}  # fmt: skip


def scalar_type_name(dtype: torch.dtype) -> str:
    """torch's name of a dtype in its errors: "Float"."""
    name = str(dtype).removeprefix("torch.")
    return _SCALAR_TYPES.get(name, name)


# -- values ----------------------------------------------------------------------------------------


def on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run with plain tensors of the CPU, whatever transforms are active."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._DisableFuncTorch(), torch._C.DisableTorchFunction(), torch.no_grad():
            before = torch._C._dispatch_tls_is_dispatch_key_excluded("Functionalize")
            torch._C._dispatch_tls_set_dispatch_key_excluded("Functionalize", True)
            try:
                return function(*args, **kwargs)
            finally:
                torch._C._dispatch_tls_set_dispatch_key_excluded("Functionalize", before)

    return run


@on_cpu
def rounded(x: Number, dtype: torch.dtype) -> Number:
    """A number as the nearest one that a dtype can represent."""
    return torch.tensor(x, dtype=dtype).item()
