"""`Placeholder`: a tensor without data, on which operations are recorded as nodes.

The user sees a plain ``torch.Tensor``: torch's C++ wrapper for functionalisation, around a
placeholder. So in-place writes and views are plain operations by the time a rule sees them. Below
autograd, torch.func and functionalisation, `Placeholder.__torch_dispatch__` runs the rule of each
operation.

NOTE [the device]: "lazy" is a device type of every build of torch. It has the guard that autograd
needs, and no kernels, since nothing else uses it. `xfunc.core.device` has its name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from xfunc.core import device
from xfunc.errors import UnsupportedOpError, fail
from xfunc.graph import build
from xfunc.graph.node import Node, Operation, array_type, current, next_number
from xfunc.tracer.table import RULES

KEY = device.KEY
DEVICE = torch.device(device.TYPE, 0)
_make: Callable[..., Any] = torch.Tensor._make_wrapper_subclass
_wrap: Callable[[torch.Tensor], torch.Tensor] = torch._to_functional_tensor
_unwrap: Callable[[torch.Tensor], torch.Tensor] = torch._from_functional_tensor
_is_wrapped: Callable[[torch.Tensor], bool] = torch._is_functional_tensor
_sync: Callable[[torch.Tensor], None] = torch._sync


_INPUT = Operation("parameter")


class _Thread(threading.local):
    def __init__(self) -> None:
        self.unstamped: list[Operation] = []


_thread = _Thread()

Fallback = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]
fallback: list[Fallback] = []
"""Computes operations without a rule: see `xfunc.ops.fallback`."""


class NoDataError(RuntimeError):
    """A placeholder has no data to read."""


class Placeholder(torch.Tensor):
    """A value without data.

    Attributes:
        node: computes it.
        number: of this value: constants are shared, so that their nodes are older.
    """

    node: Node
    number: int

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        entry = RULES.get(id(func))
        if entry is None:
            return fallback[0](func, args, kwargs or {})
        rule, name = entry
        begin(name)
        try:
            out = rule(*args, **kwargs) if kwargs else rule(*args)
        except AttributeError:
            refuse_other_devices(func, args, kwargs or {})
            raise
        if out is NotImplemented:
            return fallback[0](func, args, kwargs or {})
        kind = type(out)
        if kind is Node:
            return placeholder(out)
        if kind is list or kind is tuple:
            return kind([placeholder(n) if type(n) is Node else n for n in out])
        return out


def refuse_other_devices(func: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise torch's error if some tensors are no placeholders."""
    for a in (*args, *kwargs.values()):
        for x in a if isinstance(a, (list, tuple)) else (a,):
            if isinstance(x, torch.Tensor) and not isinstance(x, Placeholder):
                raise RuntimeError(
                    f"{func}: expected all tensors to be on the same device, not on {x.device}"
                )


def placeholder(node: Node) -> Placeholder:
    """The value of a node."""
    type = node.type
    result = _make(Placeholder, type.dims, dtype=type.dtype, device=DEVICE)
    result.node, result.number = node, next_number()
    return result


def new_input(dims: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A value that is an input, as the user may see it."""
    node = Node("parameter", array_type(dtype, tuple(dims)))
    node.operation = _INPUT
    return wrap(placeholder(node))


def unwrapped(tensor: torch.Tensor) -> Placeholder:
    """The placeholder of a tensor that torch has wrapped to follow changes in place."""
    if _is_wrapped(tensor):
        _sync(tensor)
        tensor = _unwrap(tensor)
    assert type(tensor) is Placeholder, type(tensor)
    return tensor


def wrap(tensor: torch.Tensor) -> torch.Tensor:
    """A placeholder in the form that follows changes in place."""
    return tensor if _is_wrapped(tensor) else _wrap(tensor)


def node_of(x: torch.Tensor) -> Node:
    """The node of a tensor; the values of one of torch's own are a constant.

    Raises:
        UnsupportedOpError: it has no values.
    """
    if type(x) is Placeholder:
        return x.node
    if not _is_wrapped(x) and x.device.type != device.TYPE:
        if x.is_meta:
            fail(
                UnsupportedOpError,
                "a tensor made in traced code is on the meta device, and has no data",
                "make it on another device, or use its shape and dtype only.",
            )
        with torch._C._DisableFuncTorch(), torch.no_grad():
            return build.literal(x.detach().to("cpu", copy=True))
    return unwrapped(x).node


def as_placeholders(out: Any) -> Any:
    """Placeholders in place of nodes."""
    if isinstance(out, Node):
        return placeholder(out)
    if isinstance(out, (list, tuple)):
        return type(out)(map(as_placeholders, out))
    return out


def stamp(origin: str) -> None:
    """Note the origin of the operations recorded since the last call, in this thread."""
    for operation in _thread.unstamped:
        operation.origin = origin
    _thread.unstamped.clear()


def begin(name: str) -> None:
    """Nodes made from now on, in this thread, are a part of a new operation."""
    operation = current.operation = Operation(name)
    _thread.unstamped.append(operation)


def forget_unstamped() -> None:
    """Leave the operations recorded so far without an origin."""
    _thread.unstamped.clear()
