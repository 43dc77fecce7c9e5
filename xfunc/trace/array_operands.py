"""Operators between traced values and NumPy arrays.

Torch's operators take no arrays, so Python asks NumPy's: in eager torch these read the tensor
(`Tensor.__array__`), compute, promote the dtypes by rules of their own, and have the tensor make a
tensor of the result (`Tensor.__array_wrap__`).

NOTE [stand-ins] A traced value has no data: an operator gets ones in its place. NumPy's result for
them shows the dtype of the result, and raises NumPy's errors. Then NumPy calls `__array_wrap__`
with its function and the operands themselves, and torch computes the result. torch's own method
takes neither, so the value gets another one until NumPy calls it.
"""

from __future__ import annotations

import dis
import operator
import sys
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from xfunc.core.avals import short
from xfunc.errors import ConcretizationError
from xfunc.torchlib.arrays import copied

if TYPE_CHECKING:
    from xfunc.trace.tracing import Trace

Tensor = torch.Tensor
Array = np.ndarray[Any, Any]
_OPERATORS: dict[object, Callable[[Any, Any], Any]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.true_divide: operator.truediv,
    np.floor_divide: operator.floordiv,
    np.remainder: operator.mod,
    np.power: operator.pow,
    np.matmul: operator.matmul,
    np.bitwise_and: operator.and_,
    np.bitwise_or: operator.or_,
    np.bitwise_xor: operator.xor,
    np.left_shift: operator.lshift,
    np.right_shift: operator.rshift,
}
"""The operator of each NumPy function."""
_ARITHMETIC, _PRODUCTS = range(26), (4, 17)  # numbers of Python's operators; of `@` and `@=`
_BINARY_OP = dis.opmap["BINARY_OP"]
HINT = (
    "compute with torch's functions instead of NumPy's, and make a tensor of an array that stands "
    "beside a traced value: torch.from_numpy(array)."
)


def stand_in(trace: Trace, x: Tensor) -> Array | None:
    """The array in place of `x` for an operator: see NOTE [stand-ins].

    None if something else reads, or if NumPy lacks the dtype.
    """
    number = _running_operator()
    if number is None:
        return None
    value = trace.lift(x)
    shape = (1,) * value.ndim
    if number in _PRODUCTS:  # of no rows, where that is possible: NumPy computes nothing
        shape = tuple(value.shape) if value.ndim < 2 else (*value.shape[:-2], 0, value.shape[-1])
    with torch._C.DisableTorchFunction(), torch._C._DisableFuncTorch():
        try:
            ones = torch.ones((), dtype=value.dtype, device="cpu").expand(shape).numpy()
        except TypeError:
            return None
    trace.lent.append(x)
    vars(x)["__array_wrap__"] = _wrapping(trace, x)
    return ones


def _running_operator() -> int | None:
    """The number of the operator that called `Tensor.__array__`; None if something else did."""
    frame: types.FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code is not Tensor.__array__.__code__:
        frame = frame.f_back
    if frame is None or (caller := frame.f_back) is None:
        return None
    code, at = caller.f_code.co_code, caller.f_lasti
    return code[at + 1] if code[at] == _BINARY_OP and code[at + 1] in _ARITHMETIC else None


def _wrapping(trace: Trace, x: Tensor) -> Callable[..., Any]:
    """The `__array_wrap__` of a value for which an operator got a stand-in."""
    ref = weakref.ref(x)
    del x

    def wrap(result: Array, context: Any = None, return_scalar: bool = False) -> Any:
        x = ref()
        assert x is not None
        if context is None or not (trace.is_innermost and take_back(trace, x)):
            return Tensor.__array_wrap__(x, result)
        function, operands, _ = context
        return _computed(function, operands, result.dtype)

    return wrap


def take_back(trace: Trace, x: Tensor) -> bool:
    """End the loan of a stand-in for `x`; whether there was one."""
    result = any(t is x for t in trace.lent)
    trace.lent[:] = [t for t in trace.lent if t is not x]
    vars(x).pop("__array_wrap__", None)
    return result


def take_back_all(trace: Trace) -> None:
    """End all loans of stand-ins."""
    while trace.lent:
        vars(trace.lent.pop()).pop("__array_wrap__", None)


def _computed(function: object, operands: tuple[Any, ...], dtype: np.dtype[Any]) -> Tensor:
    """An operator on operands of the dtype in which NumPy computes, and which it returns."""
    if function is not np.matmul:
        np.broadcast_shapes(*(tuple(np.shape(a)) for a in operands))  # or NumPy's error
    x, y = (
        copied(np.asarray(a).astype(dtype)) if isinstance(a, (np.ndarray, np.generic)) else a
        for a in operands
    )
    kind = (y if isinstance(operands[0], Tensor) else x).dtype
    x, y = x.to(kind), y.to(kind)
    if function is np.matmul and kind is torch.bool:  # whether any product is true
        return (x.to(torch.int32) @ y.to(torch.int32) != 0).to(torch.uint8)
    result = _OPERATORS[function](x, y)
    return result.to(torch.uint8) if kind is torch.bool else result  # as torch's method


def check_returned(trace: Trace) -> None:
    """Raise if a function read a stand-in and did not return through `__array_wrap__`."""
    if trace.lent:
        problem = f"an operator read a traced value ({short(trace.lent[0])}), which has no data"
        trace.refuse(ConcretizationError, problem, HINT)
