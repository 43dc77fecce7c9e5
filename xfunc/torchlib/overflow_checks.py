"""Refuses, as torch does, numbers and in-place results that a tensor's dtype cannot hold.

NOTE [numbers that do not fit]: where torch converts a number to the dtype of a tensor, it refuses
numbers that the dtype cannot hold: 300 for uint8, 70000 for float16. Likewise it refuses `x += 1.5`
for integers, an integer divided by the number 0, and a dimension that does not exist.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import torch

from xfunc.core import torch_versions
from xfunc.core.avals import short
from xfunc.errors import UnsupportedOpError, fail, format_error
from xfunc.rules.operands import is_inexact, is_integer, result_type
from xfunc.torchlib.torch_functions import operation_name
from xfunc.torchlib.values import FLOAT8, tensors_in

Tensor = torch.Tensor
Call = Callable[..., Tensor]
T = TypeVar("T")
_NUMBERS = (int, float, complex)
_WIDEST = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


@functools.lru_cache(4096, typed=True)
def _holds(dtype: torch.dtype, number: complex) -> bool:
    """Whether torch converts a number to a dtype."""
    with torch._C.DisableTorchFunction(), torch._C._DisableFuncTorch():
        x = torch.zeros(2, dtype=dtype, device="cpu")
        try:
            if dtype in FLOAT8:  # which masked_fill lacks
                x.fill_(number)
            else:
                x.masked_fill(torch.ones(2, dtype=torch.bool, device="cpu"), number)
        except (RuntimeError, OverflowError):
            return False
    return True


def _check_number(func: Call, number: object, dtype: torch.dtype) -> None:
    """Refuse a number that a dtype cannot hold; anything but a number passes."""
    if type(number) in _NUMBERS and not _holds(dtype, number):
        _refuse_number(func, number, dtype)


def _refuse_number(func: Call, number: object, dtype: torch.dtype) -> NoReturn:
    name = str(dtype).removeprefix("torch.")
    fail(
        UnsupportedOpError,
        f"{operation_name(func)} was given the number {number!r}, which {name} does not hold",
        "give a number within the range of the dtype (torch.iinfo, torch.finfo), or convert "
        "the tensor to a wider dtype first.",
    )


def _given(name: str, place: int, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    return kwargs.get(name, args[place] if place < len(args) else None)


# The numbers that each operation converts, by name and position: to the dtype of the tensor,
_OWN = {
    "fill": [("value", 1)],
    "fill_diagonal": [("fill_value", 1)],
    "full": [("fill_value", 1)],
    "full_like": [("fill_value", 1)],
    "linspace": [("start", 0), ("end", 1)],
    "new_full": [("fill_value", 2)],
    "masked_fill": [("value", 2)],
    "index_fill": [("value", 3)],
    "scatter": [("value", 3)],
    "pad": [("value", 3)],
    "threshold": [("threshold", 1), ("value", 2)],
    "hardtanh": [("min_val", 1), ("max_val", 2)],
    "__setitem__": [("value", 2)],
}
# to that of the result,
_BOUNDS = [("min", 1), ("max", 2)]
_SCALES = [("beta", 9), ("alpha", 9)]  # by name only
_OF_RESULT = {
    "clamp": _BOUNDS,
    "clip": _BOUNDS,
    "clamp_min": [("min", 1)],
    "clamp_max": [("max", 1)],
    "where": [("input", 1), ("other", 2)],
    "add": [("alpha", 9)],
    "sub": [("alpha", 9)],
    "subtract": [("alpha", 9)],
    "rsub": [("alpha", 9)],
    "addmv": _SCALES,
    "addr": _SCALES,
}
# or to that of the computation: float32 for float16.
_FACTORS = {
    "addmm": _SCALES,
    "addbmm": _SCALES,
    "baddbmm": _SCALES,
    "addcmul": [("value", 9)],
    "addcdiv": [("value", 9)],
}
_CLAMPS = ("clamp", "clip", "clamp_min", "clamp_max", "hardtanh")
_SUMS = ("add", "sub", "subtract", "rsub")
_ROUNDED = ("where", "__setitem__")  # Numbers too large for a floating dtype are infinite here.
_HALF = (torch.float16, torch.bfloat16)


def _with_numbers(func: Call, run: Call, name: str) -> Call:
    """`run`, but refusing numbers that do not fit."""
    plain = name if name.startswith("__") else name.removesuffix("_")
    own = plain in _OWN or plain != name
    places = (_OWN | _OF_RESULT | _FACTORS)[plain]

    def call(*args: Any, **kwargs: Any) -> Tensor:
        numbers = [_given(*place, args, kwargs) for place in places]
        if not any(isinstance(n, _NUMBERS) for n in numbers):
            return run(*args, **kwargs)
        dtype = kwargs.get("dtype")
        if dtype is None:
            if plain in ("full", "linspace"):
                return run(*args, **kwargs)
            first = args[0] if args else kwargs["input"]
            dtype = first.dtype if own else _dtype(args, kwargs)
        if plain in _CLAMPS and is_integer(dtype) and torch_versions.clamp_ignores_far_bounds():
            args, kwargs = _in_range(func, places, dtype, args, kwargs)
            numbers = [_given(*place, args, kwargs) for place in places]
        if plain == "pad":  # which treats any number as floating
            numbers = [float(n) if isinstance(n, int) else n for n in numbers]
        is_complex = any(type(n) is complex for n in numbers)
        rounded = plain in _ROUNDED and not is_complex and any(_is_floating(a) for a in args)
        if plain == "__setitem__" and rounded and _is_mask(args[1]):
            rounded = not torch_versions.masks_refuse_large_numbers()
        if not rounded:
            wide = torch.float32 if plain in _FACTORS and dtype in _HALF else dtype
            for n in numbers:
                _check_number(func, n, wide)
        if plain == "addr" and any(isinstance(n, float) for n in numbers):
            _check_real(func, dtype)
        if "alpha" in kwargs and plain in _SUMS:
            _check_alpha(kwargs["alpha"], dtype)
        real = not dtype.is_complex
        nan = places is _BOUNDS and real and None in numbers and any(n != n for n in numbers)
        if nan and torch_versions.clamp_ignores_nan():  # except in derivatives, which are zero
            x: Tensor = args[0] if args else kwargs["input"]
            if plain == name:
                return x.detach().to(dtype, copy=True)
            if x.dtype == dtype or x.dtype.is_floating_point:
                return x.copy_(x.detach().clone())
        if dtype.is_floating_point:
            args = tuple(_wrapped(a, dtype) for a in args)
            kwargs = {k: _wrapped(v, dtype) for k, v in kwargs.items()}
        return run(*args, **kwargs)

    return call


def _is_mask(index: object) -> bool:
    """Whether a mask is all that an index has besides numbers and slices."""
    parts = index if isinstance(index, tuple) else (index,)
    arrays = [p for p in parts if isinstance(p, (bool, list, Tensor))]
    if len(arrays) != 1:
        return False
    (array,) = arrays
    if isinstance(array, Tensor):
        return array.dtype is torch.bool
    return isinstance(array, bool) or all(isinstance(each, bool) for each in array)


def _in_range(
    func: Call,
    places: Iterable[tuple[str, int]],
    dtype: torch.dtype,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `clamp`, with the ends of an integer dtype for bounds beyond them."""
    args, kwargs, info = list(args), dict(kwargs), torch.iinfo(dtype)
    for name, place in places:
        number = _given(name, place, args, kwargs)
        if not isinstance(number, int):
            continue
        near = max(number, info.min) if name.startswith("min") else min(number, info.max)
        if not info.min <= near <= info.max:
            _refuse_number(func, number, dtype)
        if name in kwargs:
            kwargs[name] = near
        else:
            args[place] = near
    return (*args,), kwargs


def _dtype(args: Sequence[object], kwargs: Mapping[str, object]) -> torch.dtype:
    values = (*args, *(v for k, v in kwargs.items() if k not in ("alpha", "beta", "value")))
    operands = _operands(values)
    dtypes = [v.dtype for v in operands if isinstance(v, Tensor)]
    if any(d in FLOAT8 for d in dtypes):  # which torch promotes with no mask, as of `where`
        operands = [v for v in operands if not (isinstance(v, Tensor) and v.dtype is torch.bool)]
    return result_type(operands)


def _operands(values: Iterable[object]) -> list[Tensor | complex]:
    return [v for v in values if isinstance(v, (Tensor, *_NUMBERS))]


def _check_real(func: Call, dtype: torch.dtype) -> None:
    if not is_inexact(dtype):
        fail(
            UnsupportedOpError,
            f"{operation_name(func)} of integers ({dtype}) was given a floating-point factor",
            "give an integer, or convert to a floating dtype first.",
        )


def _check_alpha(alpha: object, dtype: torch.dtype) -> None:
    """Refuse a factor in a sum of this dtype, in torch's words."""
    if isinstance(alpha, bool) and dtype is not torch.bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if isinstance(alpha, float) and not is_inexact(dtype):
        raise RuntimeError(
            "For integral input tensors, argument alpha must not be a floating point number."
        )


def _power(func: Call, run: Call) -> Call:
    """`run`, but refusing exponents that do not fit."""

    def call(*args: object, **kwargs: object) -> Tensor:
        values = _operands((*args, *kwargs.values()))
        exponent = _given("exponent", 1, args, kwargs)
        if type(exponent) in _NUMBERS and isinstance(values[0], Tensor):
            dtype = result_type(values)
            if dtype == values[0].dtype:
                _check_number(func, exponent, dtype)
            args = tuple(_wrapped(a, dtype) for a in args) if dtype.is_floating_point else args
        return run(*args, **kwargs)

    return call


def _is_floating(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _divided(func: Call, run: Call) -> Call:
    """`run`, but refusing to divide integers by the number 0."""
    is_division = func.__name__.startswith("div")

    def call(*args: object, **kwargs: object) -> Tensor:
        x, by = args[0] if args else None, _given("other", 1, args, kwargs)
        exact = is_division and kwargs.get("rounding_mode") is None
        if not isinstance(x, Tensor) or is_inexact(x.dtype) or exact or type(by) is not int:
            return run(*args, **kwargs)
        if not _wrapped(by, x.dtype) and x.numel():
            again = f", which is 0 in {x.dtype}" if by else ""
            fail(
                UnsupportedOpError,
                f"{operation_name(func)} divides integers ({short(x)}) by {by}{again}",
                "divide by another number, or convert to a floating dtype first.",
            )
        return run(*args, **kwargs)

    return call


def _in_place(func: Call, run: Call) -> Call:
    """`run`, but refusing results that the tensor cannot hold."""
    gives_reals = "div" in func.__name__ or func.__name__ == "ldexp_"

    def call(x: Tensor, *args: object, **kwargs: object) -> Tensor:
        factors = ("alpha", "value", "rounding_mode")
        values = _operands((x, *args, *(v for k, v in kwargs.items() if k not in factors)))
        dtype = result_type(values)
        if gives_reals and not is_inexact(dtype) and kwargs.get("rounding_mode") is None:
            dtype = torch.get_default_dtype()
        if not torch.can_cast(dtype, x.dtype):
            fail(
                UnsupportedOpError,
                f"{operation_name(func)} has a result of {dtype}, which cannot be written into "
                f"{short(x)}",
                f"make a new tensor (y = x * 1.5 instead of x *= 1.5), or convert to {dtype} "
                "first.",
            )
        return run(x, *args, **kwargs)

    return call


def _integers_divided(func: Call, run: Call) -> Call:
    def call(x: Tensor, *args: Tensor, **kwargs: object) -> Tensor:
        if not any(is_inexact(t.dtype) for t in (*args, *kwargs.values()) if isinstance(t, Tensor)):
            fail(
                UnsupportedOpError,
                f"{operation_name(func)} divides integers, which torch refuses",
                "convert to a floating dtype first, or use torch.div with a rounding_mode.",
            )
        return run(x, *args, **kwargs)

    return call


def _copied(func: Call, run: Call) -> Call:
    """`run`, which also copies a number, as torch does."""

    def call(x: Tensor, src: Tensor | complex, *args: object, **kwargs: object) -> Tensor:
        if not isinstance(src, (bool, *_NUMBERS)):
            return run(x, src, *args, **kwargs)
        src = _wrapped(src, x.dtype)
        with torch._C._DisableFuncTorch():
            number = torch.scalar_tensor(src, dtype=_WIDEST[type(src)], device="cpu").to(x.dtype)
        return x.fill_(number.item())

    return call


def _wrapped(x: T, dtype: torch.dtype) -> T | int | float:
    """A number as used with tensors of a dtype; anything else unchanged."""
    if type(x) is not int or not -(2**63) <= x < 2**64:  # torch accepts no others
        return x
    if dtype not in _NARROW:
        return float(x) if x >= 2**63 and dtype.is_floating_point else x
    first = torch.iinfo(dtype).min
    return (x - first) % (1 << 8 * dtype.itemsize) + first


_NARROW = (torch.int8, torch.uint8, torch.int16, torch.int32)


def _along(func: Call, run: Call) -> Call:
    """`run`, but refusing a dimension that does not exist."""

    def call(*args: Tensor, **kwargs: object) -> Tensor:
        x = args[0] if args else kwargs.get("input")
        dim = _given("dim", 1, args, kwargs)
        if isinstance(x, Tensor) and type(dim) is int:
            n = max(x.ndim, 1)
            if not -n <= dim < n:
                raise IndexError(
                    f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], "
                    f"but got {dim})"
                )
        return run(*args, **kwargs)

    return call


def _of_one_dtype(func: Call, run: Call) -> Call:
    """`run`, but refusing operands of different dtypes if torch does."""

    def call(*args: object, **kwargs: object) -> Tensor:
        given = {k: v for k, v in kwargs.items() if k != "out"}
        several = len({t.dtype for t in tensors_in(args, given)}) > 1
        if several and not torch._C._is_any_autocast_enabled():
            check_dtypes(func, args, given)
        return run(*args, **kwargs)

    return call


def check_dtypes(
    func: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    hint: str = "convert one of them: x.to(y.dtype).",
) -> None:
    """Raise torch's own error, if it has one, about operands of these dtypes."""

    def like(x: object, most: int = 3) -> object:
        if isinstance(x, Tensor):
            return torch.zeros([min(n, most) for n in x.shape], dtype=x.dtype, device="cpu")
        if type(x) in (tuple, list):
            return type(x)(like(a, most) for a in x)  # type: ignore[attr-defined, call-arg]
        return x

    # torch gives an empty `out` any shape.
    named = {k: like(v, 0 if k == "out" else 3) for k, v in kwargs.items()}
    with torch._C.DisableTorchFunction(), torch._C._DisableFuncTorch():
        try:
            func(*map(like, args), **named)
        except (RuntimeError, IndexError) as error:  # of other sizes, indices or matrices, too
            if any(words in str(error) for words in _ABOUT_DTYPES):
                error.add_note(format_error(f"raised by {operation_name(func)}", hint))
                raise


def _of_right_shapes(func: Call, run: Call) -> Call:
    """`run`, but refusing shapes if torch does, which its decompositions need not."""

    fits = _FITS.get(func.__name__.removesuffix("_"), _is_square_system)

    def call(*args: object, **kwargs: object) -> Tensor:
        shapes = [tuple(a.shape) for a in args if isinstance(a, Tensor)]
        if kwargs.keys() & {"input", "A", "mat1", "out"} or not fits(*shapes):
            _check_shapes(func, args, kwargs)  # slow: 27 ms for grid_sample
        return run(*args, **kwargs)

    return call


_Shape = tuple[int, ...]


def _is_square_system(*shapes: _Shape) -> bool:
    """Whether torch surely takes a matrix, or one with right-hand sides."""
    rows = {s[:-1] for s in shapes if len(s) > 1}
    is_square = any(len(s) > 1 and s[-1] == s[-2] for s in shapes)
    return is_square and len(rows) == 1 and all(len(s) > 1 for s in shapes)


def _is_batched_product(input: _Shape = (), *factors: _Shape) -> bool:
    if [len(f) for f in factors] != [3, 3]:
        return False
    (b, n, k), (c, m, p) = factors
    return (b, k) == (c, m) and input in ((n, p), (b, n, p))


def _is_grid(input: _Shape = (), grid: _Shape = (), *others: _Shape) -> bool:
    """For images; what torch says of volumes depends on the mode."""
    if not len(input) == len(grid) == 4 or others:
        return False
    return input[0] == grid[0] and grid[-1] == 2 and 0 not in (*input, *grid)


_FITS: dict[str, Callable[..., bool]] = {
    "grid_sample": _is_grid,
    "baddbmm": lambda *s: _is_batched_product(*s) and len(s[0]) == 3,
    "addbmm": lambda *s: _is_batched_product(*s) and len(s[0]) == 2,
    "addr": lambda *s: [len(x) for x in s[1:]] == [1, 1] and s[0] == (*s[1], *s[2]),
}
"""By the names of functions, whether torch surely takes arrays of these shapes."""


def _biased(func: Call, run: Call) -> Call:
    """`run`, a product with a weight, but refusing a bias of other sizes."""
    shared = func.__name__ == "linear"  # broadcasts

    def call(*args: object, **kwargs: object) -> Tensor:
        weight, bias = (_given(n, k, args, kwargs) for n, k in (("weight", 1), ("bias", 2)))
        if isinstance(weight, Tensor) and isinstance(bias, Tensor) and weight.ndim > 1:
            n = weight.shape[0]
            if [*bias.shape] != [n] and not (shared and bias.shape[-1:] in ((), (1,), (n,))):
                raise RuntimeError(
                    f"Given weight of size {[*weight.shape]}, expected bias to be 1-dimensional "
                    f"with {n} elements, but got bias of size {[*bias.shape]} instead"
                )
        return run(*args, **kwargs)

    return call


def _layer_norm(func: Call, run: Call) -> Call:
    """`run`, but refusing weights of other sizes than those that are normalised."""

    def call(*args: object, **kwargs: object) -> Tensor:
        x, sizes = (_given(n, k, args, kwargs) for n, k in (("input", 0), ("normalized_shape", 1)))
        if isinstance(x, Tensor) and isinstance(sizes, Sequence):
            if [*x.shape[-len(sizes) :]] != [*sizes]:
                raise RuntimeError(
                    f"Given normalized_shape={[*sizes]}, expected input with shape "
                    f"{['*', *sizes]}, but got input of size{[*x.shape]}"
                )
            for k, name in enumerate(("weight", "bias"), 2):
                given = _given(name, k, args, kwargs)
                if isinstance(given, Tensor) and [*given.shape] != [*sizes]:
                    raise RuntimeError(
                        f"Expected {name} to be of same shape as normalized_shape, but got {name} "
                        f"of shape {[*given.shape]} and normalized_shape = {[*sizes]}"
                    )
        return run(*args, **kwargs)

    return call


def _check_shapes(func: Call, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Raise torch's own error, if it has one, about operands of these shapes."""

    def like(x: object) -> object:
        if isinstance(x, Tensor):
            kind = torch.float32 if x.is_floating_point() else x.dtype
            kind = torch.complex64 if x.is_complex() else kind
            return torch.empty(x.shape, dtype=kind, device="meta")
        return type(x)(map(like, x)) if type(x) in (tuple, list) else x  # type: ignore[call-arg]

    named = {k: like(v) for k, v in kwargs.items() if k != "out"}
    with torch._C.DisableTorchFunction(), torch._C._DisableFuncTorch():
        try:
            func(*map(like, args), **named)
        except NotImplementedError:
            return
        except (RuntimeError, IndexError) as error:
            if any(words in str(error) for words in _ABOUT_SHAPES):
                error.add_note(format_error(f"raised by {operation_name(func)}", _RESHAPE))
                raise


_RESHAPE = "give it arrays of shapes that belong together."
_ABOUT_SHAPES = (
    "shape", "size", "dimension", "-D", "3D", "square", "elements", "batches", "matrix", "pivots",
)  # fmt: skip
_SHAPED = (
    "addbmm baddbmm addr cholesky cholesky_ex cholesky_inverse cholesky_solve eigh eigvalsh eig "
    "eigvals slogdet det inv inv_ex inverse solve solve_ex solve_triangular triangular_solve "
    "lu_solve ldl_factor ldl_factor_ex ldl_solve householder_product ormqr grid_sample"
).split()
_ABOUT_DTYPES = (
    "dtype",
    "scalar type",
    "scalar_type",
    "same type",
    "output tensor",
    "non-complex",
    "non-boolean",
    "supports bool",
    "0-dimensional value",
)
_PRODUCTS = (
    "matmul mm bmm mv dot vdot inner addmm addmv addbmm baddbmm __matmul__ __rmatmul__ linear "
    "bilinear einsum tensordot chain_matmul"
).split()
_OTHERS = "cdist solve binary_cross_entropy".split()
_WRITES = "put masked_scatter index_fill index_reduce lerp".split()
_DIVISIONS = "remainder fmod floor_divide div divide __mod__ __floordiv__ __imod__ __ifloordiv__"
_CHANGES = (
    "add_ sub_ subtract_ mul_ multiply_ div_ divide_ true_divide_ addcmul_ addcdiv_ "
    "ldexp_ lerp_ __iadd__ __isub__ __imul__ __itruediv__"
).split()
_ALONG = "max min mode gather argmax argmin".split()
_PLACES = (torch, torch.Tensor, torch.nn.functional, torch.linalg)


def fitting(replacements: Mapping[object, Call]) -> dict[object, Call]:
    """For each torch function that needs it, a checked version of its replacement."""
    found: dict[object, Call] = {}

    def put(names: Iterable[str], check: Callable[[Call, Call], Call]) -> None:
        for place in _PLACES:
            for func in {getattr(place, n) for n in names if hasattr(place, n)}:
                run = found.get(func) or replacements.get(func) or func
                found[func] = functools.wraps(run)(check(func, run))

    for plain in _OWN | _OF_RESULT | _FACTORS:
        for name in (plain, f"{plain}_"):
            put([name], functools.partial(_with_numbers, name=name))
    put("pow pow_ __pow__ __ipow__".split(), _power)
    put([*_DIVISIONS.split(), "remainder_", "fmod_", "floor_divide_", "div_", "divide_"], _divided)
    put(_CHANGES, _in_place)
    put(["addcdiv", "addcdiv_"], _integers_divided)
    put(_ALONG, _along)
    put(["copy_"], _copied)
    checked = [*_PRODUCTS, *_OTHERS, *_WRITES]
    put([*checked, *(f"{name}_" for name in checked)], _of_one_dtype)
    put(_SHAPED, _of_right_shapes)
    put("linear conv1d conv2d conv3d".split(), _biased)
    put(["layer_norm"], _layer_norm)
    return found
