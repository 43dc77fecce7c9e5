"""Placeholders that others make: torch_xla's own `scan` and `assume_pure` trace with them too.

Where such a trace fails, they and what was computed from them live on in the traceback, which
Python keeps in `sys.last_traceback`. Whoever runs the pending operations then, torch_xla included,
ends the process. So before xfunc does, it takes the data away from all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from xfunc.backends.torch_xla import loading, runtime
from xfunc.core.avals import Aval
from xfunc.torchlib import functorch
from xfunc.torchlib.dataless import is_handled_in_python
from xfunc.torchlib.references import hold


@dataclasses.dataclass
class _Strangers:
    """Those that Python knows, by address; and whether there may be values computed from others."""

    alive: weakref.WeakValueDictionary[int, torch.Tensor]
    unknown: bool = False


_strangers = _Strangers(weakref.WeakValueDictionary())


def _watch() -> None:
    from torch_xla import _XLAC as X  # pyright: ignore[reportAttributeAccessIssue]
    from torch_xla.core import xla_builder as builder  # pyright: ignore[reportMissingImports]

    make: Callable[..., torch.Tensor] = builder.create_placeholder_tensor
    _strangers.unknown = not loading.is_ours()  # Before, nobody watched.
    if _strangers.unknown:
        for tensor in lazy_tensors():
            if X._is_placecholder(tensor):
                _strangers.alive[id(tensor)] = tensor

    @functools.wraps(make)
    def create_placeholder_tensor(*args: object, **kwargs: object) -> torch.Tensor:
        made = make(*args, **kwargs)
        _strangers.alive[id(made)], _strangers.unknown = made, True
        return made

    builder.create_placeholder_tensor = create_placeholder_tensor


runtime.at_start(_watch)


def defuse() -> bool:
    """Leave nothing pending that was computed from the placeholders of others.

    Returns:
        Whether there may have been some: only then does it cost anything.
    """
    if not (_strangers.unknown or _strangers.alive):
        return False
    X = runtime.xla()
    _strangers.unknown = False
    with torch._C.DisableTorchFunction():  # Leaked values refuse to say their shape.
        for tensor in lazy_tensors():
            with contextlib.suppress(RuntimeError):  # It lost its computation to a failure.
                if any(X._check_tensor_need_materialization([tensor])):
                    _, data = X._get_tensors_xla_device_data_node([tensor])
                    if any(map(X._is_placecholder, data)):
                        without = runtime.placeholder(Aval(tuple(tensor.shape), tensor.dtype))
                        X._replace_xla_tensor(tensor, without)
                        _strangers.alive[id(tensor)] = tensor  # More may be computed from it.
    return True


def lazy_tensors() -> list[torch.Tensor]:
    """All tensors of the device that Python knows."""
    with torch._C.DisableTorchFunction(), functorch.bottom_level():
        # Not isinstance: it asks objects for their __class__, and some warn.
        tensors = [t for t in gc.get_objects() if issubclass(type(t), torch.Tensor)]
        return [hold(t) for t in tensors if _is_lazy(t)]


def _is_lazy(t: Any) -> bool:  # torch does not declare is_xla in its type stubs
    # Not a user's class, which may compute its device, or hold no tensor of torch_xla's.
    return not is_handled_in_python(t) and t.is_xla and not functorch.is_wrapped(t)


def settle(tensors: Sequence[torch.Tensor]) -> None:
    """`runtime.settle`, where some may have been computed from the placeholders of others."""
    defuse()
    runtime.settle(tensors)


def run_pending() -> None:
    """Run the pending operations of the user's own lazy tensors.

    Those that cannot be run have no data: they fail when they are read, and do no harm to others.
    """
    tensors = lazy_tensors()
    try:
        runtime.settle(tensors)
    except RuntimeError:
        for tensor in tensors:
            with contextlib.suppress(RuntimeError):
                runtime.settle([tensor])
