"""torch_xla's and torch's refusals, as errors of ours."""

from __future__ import annotations

from typing import Any

import torch

from xfunc import purity
from xfunc.errors import ConcretizationError, PurityError, UnsupportedOpError, XfuncError, report
from xfunc.locations import Location


def refusal_of(func: Any, error: RuntimeError, name: str, at: Location | None) -> XfuncError | None:
    """torch_xla's refusal to execute, as an error of ours; None for any other error."""
    message = str(error)
    if "would mutate a captured Tensor" in message or "a leaf Variable that requires" in message:
        what = "the code" if func is None else operation_name(func)
        return PurityError(
            report(
                f"{what} changes in place an argument, or a tensor from outside the function",
                "compute a new tensor and return it (x = x + 1 instead of x += 1).",
                function=name,
                at=at,
            )
        )
    refused = ("Unexpected execution happens", "tensor_data", "HasValue()")
    if not any(r in message for r in refused):
        return None
    if func is None or purity.reads_sizes(func):
        what = "the code" if func is None else operation_name(func)
        return ConcretizationError(
            report(
                f"{what} reads a traced value, or synchronises (torch_xla.sync); a traced value "
                "has no data",
                "compute with tensors, or return the value and read it outside.",
                function=name,
                at=at,
            )
        )
    return UnsupportedOpError(
        report(
            f"{operation_name(func)} has no lowering to XLA, or a result whose shape depends "
            "on data",
            "write it with other torch operations, or call it outside the traced function.",
            function=name,
            at=at,
        )
    )


def operation_name(func: Any) -> str:
    """How to call a torch function in a message."""
    if func is None:
        return "an input"
    name = getattr(func, "__name__", repr(func))
    owner = getattr(func, "__self__", None)
    if name in ("__get__", "__set__") and owner is not None:
        return f"Tensor.{owner.__name__}"
    return f"Tensor.{name}" if hasattr(torch.Tensor, name) else f"torch.{name}"
