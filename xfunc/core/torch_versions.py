"""Differences between releases of torch: all checks of versions and of missing functions."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any

import torch


def properties(*names: str) -> list[Callable[..., object]]:
    """The getters of these properties of tensors, as far as this release has them.

    Named tensors went with torch 2.13.
    """
    bases = (torch._C.TensorBase, torch.Tensor)
    found = [next((vars(b)[n] for b in bases if n in vars(b)), None) for n in names]
    return [f.__get__ for f in found if f is not None]


def is_missing(name: str) -> bool:
    """Whether this release lacks an operation.

    ``aten::cholesky`` went with torch 2.14; `linalg.polar` and `matrix_sqrth` came with it.
    """
    some = ("cholesky", "linalg_polar", "linalg_matrix_sqrth")
    return name in some and not hasattr(torch.ops.aten, name)


@functools.cache
def load_tangents_of_compositions() -> None:
    """Import the modules that torch imports at the first forward derivative.

    torch compiles them by ``torch.jit.script``, and from 2.12 on warns of that: by a
    DeprecationWarning, from 2.14 on by a FutureWarning.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script")
        importlib.import_module("torch._decomp.decompositions_for_jvp")


@functools.cache
def take_along_dim_counts_from_end() -> bool:
    """Whether `take_along_dim` takes negative indices, as torch 2.13 does, and 2.9 does not."""
    try:
        return bool(torch.ones(1, device="cpu").take_along_dim(torch.tensor([-1], device="cpu"), 0))
    except RuntimeError:
        return False


@functools.cache
def clamp_ignores_nan() -> bool:
    """Whether NaN as the only bound of `clamp` is none: in torch 2.13 the result is NaN."""
    return not torch.ones((), device="cpu").clamp(min=torch.nan).isnan()


@functools.cache
def clamp_ignores_far_bounds() -> bool:
    """Whether a bound of `clamp` beyond the numbers of an integer dtype is none.

    Before torch 2.15 such a bound is refused, or -1 is 255.
    """
    return not torch.zeros((), dtype=torch.uint8, device="cpu").clamp(min=-1)


@functools.cache
def masks_refuse_large_numbers() -> bool:
    """Whether ``x[mask] = 1e5`` of float16 is refused: before torch 2.15 it writes inf."""
    x = torch.ones(1, dtype=torch.float16, device="cpu")
    try:
        x[torch.tensor([True], device="cpu")] = 1e5
    except RuntimeError:
        return True
    return False


@functools.cache
def float8_saturates() -> bool:
    """Whether a number beyond the largest float8_e4m3fn becomes it: before torch 2.13, NaN."""
    return not torch.tensor(torch.inf, device="cpu").to(torch.float8_e4m3fn).isnan()


@functools.cache
def softshrink_rounds_bound() -> bool:
    """Whether `softshrink` of narrow numbers rounds its bound first, as its gradient does.

    Before torch 2.14 it does not on the CPU.
    """
    x = torch.tensor(0.6015625, dtype=torch.bfloat16, device="cpu")  # 0.6 as bfloat16
    return not torch.nn.functional.softshrink(x, 0.6)


@functools.cache
def shares_ties() -> bool:
    """Whether two equal operands of `fmax`, `fmin` or `clamp` have a slope of a half each.

    Before torch 2.14 only those of `maximum` and `minimum` have: of the others, one has it all.
    """
    return tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)


@functools.cache
def factors_transpose(name: str, dtype: torch.dtype) -> bool:
    """Whether the triangular factors that an operation returns are of the transposed matrix.

    torch's derivatives assume the results of torch's own kernels for a contiguous matrix: in torch
    2.9 the factors of the transpose if it is real; in 2.13 not for ``_linalg_solve_ex``.
    """
    a = torch.tensor([[2.0, 1.0], [0.0, 1.0]], dtype=dtype, device="cpu")  # its own factors
    b = (a[0],) if name == "_linalg_solve_ex" else ()
    with torch._C._DisableFuncTorch(), torch.no_grad():
        (packed,) = (x for x in getattr(torch.ops.aten, name)(a, *b) if x.ndim == 2)
        return not packed.equal(a)


def functionalise_logic() -> None:
    """Functionalise the ``&=``, ``|=`` and ``^=`` of torch's own C++ code, as torch does not."""
    kind = "Functionalize"
    for name in ("and", "or", "xor"):
        for overload in ("Tensor", "Scalar"):
            full = f"aten::__i{name}__.{overload}"
            if not torch._C._dispatch_has_kernel_for_dispatch_key(full, kind):
                write = getattr(torch.Tensor, f"bitwise_{name}_")
                _aten.impl(full.removeprefix("aten::"), write, kind)


_aten: Any = torch.library.Library("aten", "IMPL")


def refusing_reads(kind: type[torch.Tensor], message: str) -> Callable[[Any], object]:
    """Prepare each new tensor of a kind without memory, so that a read cannot end the process.

    Reads that do not ask the tensor first, like `to_dlpack`, raise a RuntimeError from then on.
    """
    private: Any = torch._C
    if (
        set_message := getattr(private, "_set_storage_data_ptr_access_error_msg", None)
    ) is not None:
        storage = torch._C.TensorBase.untyped_storage
        return lambda tensor: set_message(storage(tensor)._cdata, message)
    _refuse_as_data(kind, message)
    return private._set_throw_on_mutable_data_ptr


def _refuse_as_data(kind: type[torch.Tensor], message: str) -> None:
    """Refuse ``x.data = tensor`` of a kind without memory: x, torch's own, would be read.

    For builds of torch without CUDA, in which reading the memory itself cannot be refused.
    """
    whole: Any = torch.Tensor
    whole.data = _Data(vars(torch._C.TensorBase)["data"], kind, message)


class _Data:
    """``torch.Tensor.data``; modes see its reads and writes under torch's own names."""

    def __init__(self, own: Any, kind: type[torch.Tensor], message: str):
        self._own, self._kind, self._message = own, kind, message
        self.__name__, self.__doc__ = own.__name__, own.__doc__
        vars(self).update(__get__=own.__get__, __set__=own.__set__)

    def __get__(self, tensor: torch.Tensor | None, cls: type | None = None) -> Any:
        return self if tensor is None else self._own.__get__(tensor, cls)

    def __set__(self, tensor: torch.Tensor, value: Any) -> None:
        if isinstance(value, self._kind) and not isinstance(tensor, self._kind):
            raise RuntimeError(self._message)
        self._own.__set__(tensor, value)

    def __delete__(self, tensor: torch.Tensor) -> None:
        self._own.__delete__(tensor)
