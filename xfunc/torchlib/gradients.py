"""``torch.autograd.grad`` for values whose sizes are numbers, also within transforms.

torch compares the shapes of outputs and cotangents by functions for symbolic sizes, and imports
sympy for them: most of the time of a process's first gradient.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch._functorch.eager_transforms import enable_inplace_requires_grad
from torch.autograd import graph

from xfunc.core.locations import called_by
from xfunc.torchlib import functorch


def gradients(
    outputs: Any, inputs: Any, grad_outputs: Any = None, **options: Any
) -> tuple[torch.Tensor | None, ...]:
    """As ``torch.autograd.grad``, without sympy wherever the arguments allow it.

    The arguments are those that torch passes to a handler of ``torch.autograd.grad``: sequences of
    tensors, and options by name.
    """
    if not _are_plain(outputs, grad_outputs, options):
        return torch.autograd.grad(outputs, inputs, grad_outputs, **options)
    create_graph = options.get("create_graph", False)
    retain_graph = options.get("retain_graph")
    return graph._engine_run_backward(
        outputs,
        tuple(grad_outputs),
        create_graph if retain_graph is None else retain_graph,
        create_graph,
        inputs,
        bool(options.get("allow_unused")),
        accumulate_grad=False,
    )


def requires_grad_(input: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
    """``Tensor.requires_grad_``, also of a value of the innermost level of torch.func.

    The functions of ``torch.autograd.functional`` detach their inputs in a jvp, and would lose its
    tangents; torch's refusal keeps them out.
    """
    allowed = functorch.may_require_grad(input) and not called_by("torch.autograd.functional")
    with enable_inplace_requires_grad(True) if allowed else contextlib.nullcontext():
        return input.requires_grad_(requires_grad)


def set_requires_grad(input: torch.Tensor, requires_grad: bool) -> None:
    """``x.requires_grad = ...``."""
    requires_grad_(input, requires_grad)


def _are_plain(outputs: Any, grad_outputs: Any, options: dict[str, Any]) -> bool:
    """Whether outputs are tensors with cotangents of their shapes, and no option changes this."""
    if options.get("is_grads_batched") or options.get("materialize_grads"):
        return False
    given: Sequence[Any] = grad_outputs if isinstance(grad_outputs, (list, tuple)) else ()
    return (
        options.get("only_inputs", True)
        and len(given) == len(outputs)
        and all(map(_fit, outputs, given))
    )


def _fit(output: Any, grad: Any) -> bool:
    return (
        isinstance(output, torch.Tensor)
        and isinstance(grad, torch.Tensor)
        and not (output.is_nested or grad.is_nested)
        and output.shape == grad.shape
        and output.is_complex() == grad.is_complex()
    )
