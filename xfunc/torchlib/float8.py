"""The dtypes of 8 floating bits: converted, moved, compared and multiplied, as torch has it.

NOTE [float8 is for products]: these dtypes have 2 or 3 bits of mantissa. torch has few operations
on them, and those it has round each result to as few bits; XLA would even add up sums in them. So
traced code may do with them what is exact, convert, and multiply matrices with `torch._scaled_mm`,
which torch accumulates in float32. Everything else is refused by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from xfunc.core.avals import short
from xfunc.errors import UnsupportedOpError, format_error
from xfunc.torchlib.torch_functions import Kind, kind_of, operation_name
from xfunc.torchlib.values import FLOAT8, tensors_in

_EXACT = frozenset(
    """
    to type type_as float double half bfloat16 int long short char byte bool _to_copy
    zeros zeros_like ones ones_like full full_like empty empty_like new_zeros new_ones new_full
    new_empty tensor as_tensor asarray scalar_tensor
    clone detach contiguous alias copy copy_ fill_ zero_ requires_grad_ __setitem__ __deepcopy__
    view view_as reshape reshape_as flatten ravel unflatten squeeze unsqueeze expand expand_as
    broadcast_to broadcast_tensors t transpose permute movedim moveaxis swapaxes swapdims
    adjoint mT H mH T data grad __getitem__ __iter__ narrow select diagonal unbind chunk split
    tensor_split hsplit vsplit dsplit index_select flip roll rot90 cat concat concatenate stack
    hstack vstack dstack repeat repeat_interleave tile unfold pad constant_pad_nd embedding
    index_put index_put_ where abs absolute any all eq ne __eq__ __ne__ isnan isinf isfinite
    view_as_real _scaled_mm
    """.split()
)


def check(
    func: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any], name: str
) -> None:
    """Raise if a torch function that would compute in 8 bits is given such a tensor or dtype."""
    if _is_exact(func):
        return
    tensor = next((t for t in tensors_in(args, kwargs) if t.dtype in FLOAT8), None)
    given = (*args, *kwargs.values())
    dtype = next((a for a in given if type(a) is torch.dtype and a in FLOAT8), None)
    if tensor is None and dtype is None:
        return
    what = f"of {short(tensor)}" if tensor is not None else f"in {dtype}"
    raise UnsupportedOpError(
        format_error(
            f"{operation_name(func)} {what} is not supported: numbers of 8 bits are only "
            "converted, moved, compared and multiplied as matrices",
            "convert to float32 first, x.float(); products are "
            "torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.float32).",
            function=name,
        )
    )


@functools.cache
def _is_exact(func: Callable[..., object]) -> bool:
    name = getattr(func, "__name__", "").partition(".")[0]
    if name in ("__get__", "__set__"):
        name = operation_name(func).rpartition(".")[2]
    return name in _EXACT or kind_of(func) in (Kind.METADATA, Kind.REPR)
