"""Operations refused on dtypes that XLA cannot compile, or aborts the process for.

Complex numbers have no order ("No min value for given type", "unhandled direction for conversion to
Comparison: .LT.C64"), floating ones no bits, and booleans neither quotients nor sums of products.
Eager torch refuses most of these too; here the error names the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from xfunc.errors import UnsupportedOpError, fail
from xfunc.ops.registry import Kernel, wrap
from xfunc.rules.operands import dtype_of_number, is_inexact, scalar_type_name

_ORDERING = """
    clamp clamp_min clamp_min.Tensor clamp_max clamp_max.Tensor floor_divide floor_divide.Scalar
    div.Tensor_mode div.Scalar_mode
    _softmax _log_softmax hardswish hardsigmoid hardtanh relu leaky_relu threshold
    max_pool2d_with_indices max_pool3d_with_indices max_pool2d_with_indices_backward
    max_pool3d_with_indices_backward max_unpool2d max_unpool3d adaptive_max_pool2d
    adaptive_max_pool3d gcd lcm maximum minimum amax amin topk sort sort.stable kthvalue
    cummax cummin lt.Scalar lt.Tensor le.Scalar le.Tensor gt.Scalar gt.Tensor ge.Scalar ge.Tensor
    argmax argmin aminmax max max.dim min min.dim median median.dim nanmedian nanmedian.dim mode
    fmax fmin clamp.Tensor heaviside
    searchsorted.Tensor histc isneginf isposinf softshrink hardshrink elu softplus sign
    remainder.Scalar remainder.Tensor remainder.Scalar_Tensor fmod.Scalar fmod.Tensor
    log_sigmoid_forward huber_loss smooth_l1_loss
"""
_REAL = """
    atan2 hypot nextafter signbit floor ceil round round.decimals trunc frac xlogy.Tensor erf erfc
    erfinv lgamma digamma polygamma gelu mish logit nansum special_entr i0 special_zeta igamma
    igammac special_xlog1py celu native_layer_norm _cdist_forward
"""
_FLOATING = """
    logcumsumexp hardswish hardsigmoid log_sigmoid_forward leaky_relu softshrink hardshrink
    nextafter hypot logaddexp logaddexp2 igamma igammac dist
    lerp.Scalar lerp.Tensor
"""
_WHOLE = """
    gcd lcm bitwise_not bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor
    bitwise_or.Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor bitwise_xor.Tensor
    bitwise_xor.Scalar bitwise_xor.Scalar_Tensor
"""
_NUMBERS = """
    gcd lcm remainder.Scalar remainder.Tensor remainder.Scalar_Tensor fmod.Scalar fmod.Tensor
    floor_divide floor_divide.Scalar div.Tensor_mode div.Scalar_mode pow.Tensor_Tensor
"""
_BOUNDED = "clamp clamp_min clamp_max clamp.Tensor"
_MEANS = "scatter_reduce.two index_reduce"
_SIGNED = "copysign.Tensor copysign.Scalar"
_PRODUCTS = "mm bmm mv dot vdot addmm addmv addbmm baddbmm _trilinear"

_SAME = ("linalg_cross",)
_WRITTEN = ("huber_loss", "soft_margin_loss")  # in the dtype of their first operand


def add() -> None:
    """Wrap the existing kernels in the refusals."""
    for name in _SAME:
        wrap(name, _of_one_dtype, _alike)
    for name in _WRITTEN:
        wrap(name, _written_to_first, _alike_and_inexact)
    for names, refused, why in _REFUSALS:
        for name in names.split():
            wrap(name, _refusing(refused, why), _allowing(refused))


def _dtypes(args: Sequence[object]) -> list[torch.dtype]:
    """The dtypes of tensors and numbers."""
    return [
        a.dtype if isinstance(a, torch.Tensor) else dtype_of_number(type(a))
        for a in args
        if isinstance(a, (torch.Tensor, bool, int, float, complex))
    ]


def _first_complex(*args: object) -> torch.dtype | None:
    return next((d for d in _dtypes(args) if d.is_complex), None)


def _first_bool(*args: torch.Tensor) -> torch.dtype | None:
    dtypes = (a.dtype for a in args if isinstance(a, torch.Tensor))
    return next((d for d in dtypes if d is torch.bool), None)


def _only_bools(*args: object) -> torch.dtype | None:
    return torch.bool if set(_dtypes(args)) == {torch.bool} else None


def _bounded_bools(*args: object) -> torch.dtype | None:
    # A maximum or minimum of two tensors is one of booleans, too.
    is_maximum = [isinstance(a, torch.Tensor) for a in args if a is not None] == [True, True]
    return None if is_maximum else _only_bools(*args)


def _only_integers(*args: object) -> torch.dtype | None:
    dtypes = [a.dtype for a in args if isinstance(a, torch.Tensor)]
    return None if any(map(is_inexact, dtypes)) else dtypes[0]


def _first_inexact(*args: object) -> torch.dtype | None:
    return next(filter(is_inexact, _dtypes(args)), None)


def _complex_mean(*args: object) -> torch.dtype | None:
    return _first_complex(*args) if "mean" in args[-2:] else None


Refused = Callable[..., torch.dtype | None]
"""The dtype for which a call is refused, if there is one."""

_REFUSALS: Sequence[tuple[str, Refused, str]] = (
    (_ORDERING, _first_complex, "complex numbers have no order"),
    (_REAL, _first_complex, "it is of real numbers only"),
    (_FLOATING, _only_integers, "it is of floating-point numbers"),
    (_WHOLE, _first_inexact, "it is of integers"),
    (_NUMBERS, _only_bools, "it is of numbers"),
    (_BOUNDED, _bounded_bools, "it bounds numbers"),
    (_MEANS, _complex_mean, "means of complex numbers have no lowering to XLA"),
    (_SIGNED, _first_complex, "complex numbers have no sign"),
    (_PRODUCTS, _first_bool, "matrix products of booleans are not defined"),
)


def _allowing(refused: Refused) -> Callable[..., bool]:
    return lambda *args: refused(*args) is None


def _alike(x: torch.Tensor, y: torch.Tensor, *_: object) -> bool:
    return x.dtype is y.dtype


def _alike_and_inexact(x: torch.Tensor, y: torch.Tensor, *_: object) -> bool:
    return (x.dtype, x.shape) == (y.dtype, y.shape) and is_inexact(x.dtype)


def _conversion(dtype: torch.dtype) -> str:
    if dtype.is_complex:
        return "a floating dtype (x.real, x.imag, x.abs())"
    if dtype is torch.bool:
        return "another dtype (x.int(), x.float())"
    return (
        "an integer dtype (x.long())" if dtype.is_floating_point else "a floating dtype (x.float())"
    )


def _refusing(refused: Refused, why: str) -> Callable[[str, Kernel], Kernel]:
    def decorate(name: str, function: Kernel) -> Kernel:
        def run(*args: object, **kwargs: object) -> object:
            dtype = refused(*args)
            if dtype is None:
                return function(*args, **kwargs)
            fail(
                UnsupportedOpError,
                f"torch.{name.strip('_').partition('.')[0]} was given "
                f"{str(dtype).removeprefix('torch.')}: {why}",
                f"convert to {_conversion(dtype)}.",
            )

        return run

    return decorate


def _of_one_dtype(_: str, function: Kernel) -> Kernel:
    def run(x: torch.Tensor, y: torch.Tensor, *args: object, **kwargs: object) -> object:
        if x.dtype is not y.dtype:
            wanted, found = scalar_type_name(x.dtype), scalar_type_name(y.dtype)
            raise RuntimeError(f"expected scalar type {wanted} but found {found}")
        return function(x, y, *args, **kwargs)

    return run


def _written_to_first(name: str, function: Kernel) -> Kernel:
    is_logarithm = name == "soft_margin_loss"  # computed in an array like the first operand

    def run(x: torch.Tensor, y: torch.Tensor, *args: object, **kwargs: object) -> object:
        found = torch.result_type(x, y)
        if is_logarithm and not is_inexact(found):
            found = torch.get_default_dtype()
        if not torch.can_cast(found, x.dtype):
            raise RuntimeError(
                f"result type {scalar_type_name(found)} can't be cast to the desired output type "
                f"{scalar_type_name(x.dtype)}"
            )
        dims = [*torch.broadcast_shapes(x.shape, y.shape)]
        if is_logarithm and dims != [*x.shape]:
            raise RuntimeError(
                f"output with shape {[*x.shape]} doesn't match the broadcast shape {dims}"
            )
        made = function(x, y, *args, **kwargs)
        return made.to(x.dtype) if isinstance(made, torch.Tensor) else made

    return run
