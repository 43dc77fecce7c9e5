"""Operations that torch_xla does not lower, and that torch can decompose into others."""

from __future__ import annotations

import torch
from torch._decomp import decomposition_table

from xfunc.ops.registry import kernels

_COMPOSED = ("XLA", "CompositeImplicitAutograd", "CompositeExplicitAutograd")

# These draw random numbers, read data, or have a better kernel here.
_LEFT_OUT = frozenset(
    "bernoulli exponential geometric normal cauchy log_normal uniform rand randn randint "
    "randperm rrelu_with_noise native_dropout multinomial item equal _local_scalar_dense "
    "_assert_async nonzero masked_select unique "
    "lgamma digamma nextafter igamma igammac i0 special_i0e special_i1 special_i1e special_zeta "
    "special_bessel_j0 special_bessel_j1 special_erfcx special_ndtri special_log_ndtr "
    "special_spherical_bessel_j0".split()
)


def is_missing(op: torch._ops.OpOverload) -> bool:
    """Whether torch_xla would compute an operation on the host."""
    name, schema = op.name(), op._schema
    if not name.startswith("aten::") or schema.is_mutable:
        return False
    if any(a.alias_info is not None for a in (*schema.arguments, *schema.returns)):
        return False
    return not any(torch._C._dispatch_has_kernel_for_dispatch_key(name, k) for k in _COMPOSED)


# Lowered by torch_xla 2.9, but to different values.
_WRONG = "elu_backward upsample_nearest2d upsample_nearest2d_backward".split()


def add() -> None:
    """Add torch's decompositions to the table where it has no entry."""
    table = kernels()
    for op, function in decomposition_table.items():
        if not isinstance(op, torch._ops.OpOverload):
            continue
        name = op.name().removeprefix("aten::")
        if not is_missing(op) and name not in _WRONG:
            continue
        if name not in table and name.partition(".")[0] not in _LEFT_OUT:
            table[name] = function
