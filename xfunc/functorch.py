"""The private parts of torch.func that xfunc rests on, all in one place."""

# torch does not declare these in its type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _functorch
from torch._functorch.autograd_function import custom_function_call as custom_function_call
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

Tensor = torch.Tensor

GRAD: Any = _functorch.TransformType.Grad
JVP: Any = _functorch.TransformType.Jvp

is_wrapped: Callable[[Any], bool] = _functorch.is_functorch_wrapped_tensor
unwrapped: Callable[[Any], Any] = _functorch.get_unwrapped
unwrap_if_dead: Callable[[Any], Any] = _functorch.unwrap_if_dead
top_level: Callable[[], Any] = _functorch.peek_interpreter_stack
swap_contents: Callable[[Tensor, Tensor], None] = torch._C._swap_tensor_impl


def bottom_level() -> contextlib.AbstractContextManager[Any]:
    """Below all transforms in force."""
    return _NOTHING if top_level() is None else temporarily_clear_interpreter_stack()


_NOTHING = contextlib.nullcontext()


def run_backward_in_this_thread() -> None:
    """From now on, backward passes started by this thread run in it."""
    torch._C._set_multithreading_enabled(False)


def levels() -> list[Any]:
    """The kinds of the transforms in force, outermost first."""
    return [level.key() for level in _functorch.get_interpreter_stack() or ()]


def is_batched_here(t: Tensor) -> bool:
    """Whether a tensor is batched by the innermost transform, a vmap."""
    level = top_level().level()
    return _functorch.is_batchedtensor(t) and _functorch.maybe_get_level(t) == level


def vjp(fun: Callable[..., Any], *primals: Tensor) -> tuple[Any, Any, Any]:
    """torch.func.vjp of ``fun(*primals) -> (out, aux)``: (out, pullback, aux)."""
    return torch.func.vjp(fun, *primals, has_aux=True)  # pyright: ignore[reportReturnType]


def jvp(fun: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any, Any]:
    """torch.func.jvp of ``fun(*primals) -> (out, aux)``: (out, tangents, aux)."""
    return torch.func.jvp(fun, primals, tangents, has_aux=True)  # pyright: ignore[reportReturnType]
