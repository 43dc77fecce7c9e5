"""Whether torch can differentiate an operation.

Torch differentiates an operation by its own formula or, if it is composed of others in C++, by
theirs. For an operator of somebody else that has neither, it takes the derivative to be zero at a
level of torch.func, with only a warning in reverse mode and none in forward mode: an error here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xfunc.core import device
from xfunc.core.locations import Location, user_location
from xfunc.errors import UnsupportedOpError, format_error
from xfunc.torchlib import functorch
from xfunc.torchlib.values import is_tracked, tensors_in

has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key


def has_derivative(name: str) -> bool:
    """Whether torch finds a rule for an operation of the dispatcher, at any level."""
    if has_kernel(name, "Autograd") or has_kernel(name, device.AUTOGRAD):
        return True
    return is_composite(name) and not any(
        has_kernel(name, key) for key in (device.KEY, "CompositeExplicitAutograd")
    )


def is_composite(name: str) -> bool:
    """Whether an operation is composed of others in C++."""
    return has_kernel(name, "CompositeImplicitAutograd")


def check_derivative(
    func: Any, args: Sequence[object], kwargs: dict[str, object], out: object, name: str
) -> None:
    """Raise if an operator without a rule in torch is being differentiated."""
    outputs = list(tensors_in([out], {}))
    if outputs and not any(o.is_floating_point() or o.is_complex() for o in outputs):
        return
    overloads = [func]
    if isinstance(func, torch._ops.OpOverloadPacket):
        overloads = [getattr(func, o) for o in func.overloads()]
    for overload in overloads:
        if not has_derivative(overload.name()) and any(
            is_tracked(t) or functorch.has_tangent(t) for t in tensors_in(args, kwargs)
        ):
            raise no_derivative(overload.name(), name, user_location())


def no_derivative(operation: str, name: str, at: Location | None) -> UnsupportedOpError:
    """The error for a derivative that torch would take to be zero."""
    return UnsupportedOpError(
        format_error(
            f"{operation} has no derivative, and its arguments are being differentiated",
            "give it one (xf.custom_vjp, xf.custom_jvp, torch.library.register_autograd), or pass "
            "it x.detach(), whose derivative is zero.",
            function=name,
            at=at,
        )
    )
