"""Running transforms without tracing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from xfunc.core import ambient
from xfunc.torchlib.torch_functions import is_in_place
from xfunc.torchlib.values import tensors_in


class _Switches(threading.local):
    eager = False


_switches = _Switches()


@contextlib.contextmanager
def disable_jit(disable: bool = True) -> Generator[None]:
    """Run transforms eagerly, one operation at a time, on the tensors' own device.

    CPU tensors beside those of a device are brought there, as in a program.

    Args:
        disable: whether to; False compiles again, in a block inside of another `disable_jit`.

    Returns:
        A context manager, for a ``with`` block.
    """
    before = _switches.eager
    _switches.eager = disable
    ambient.change_busy(1)
    try:
        with _OneDevice() if disable and not before else contextlib.nullcontext():
            yield
    finally:
        ambient.change_busy(-1)
        _switches.eager = before


def is_eager() -> bool:
    """Whether `disable_jit` is active."""
    return _switches.eager


class _OneDevice(TorchFunctionMode):
    """Moves the tensors of each call to one device, where torch would raise an error.

    To the CPU, if the call writes to a tensor there; otherwise to the accelerator. Gradients move
    back.
    """

    def __torch_function__(
        self,
        func: Any,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        kwargs = dict(kwargs or {})
        if not _switches.eager or func in _AS_GIVEN:
            return func(*args, **kwargs)
        given = list(tensors_in(args, kwargs))
        if len(given) < 2 or {x.device.type for x in given} != {"cpu", "xla"}:
            return func(*args, **kwargs)
        first = args[:1] if _changes_first(func) else ()
        changed = list(tensors_in((*first, kwargs.get("out")), {}))
        to = "cpu" if any(x.is_cpu for x in changed) else "xla"

        def moved(x: object) -> object:
            if not isinstance(x, torch.Tensor) or any(x is y for y in changed):
                return x
            return x.to(to)

        new: Any = _pytree.tree_map(moved, (args, kwargs))
        return func(*new[0], **new[1])


_Tensor: Any = torch.Tensor
_AS_GIVEN = (
    _Tensor.to, _Tensor.type_as, _Tensor.copy_, _Tensor.set_, _Tensor.backward,
    torch.autograd.backward, torch.autograd.grad,
)  # fmt: skip


def _changes_first(func: Any) -> bool:
    name = getattr(func, "__name__", "").partition(".")[0]  # of torch.ops: "add_.Tensor"
    return is_in_place(name) or name in ("__setitem__", "__set__")
