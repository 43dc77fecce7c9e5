"""Operations with data-dependent shapes on constant data.

``x[torch.tensor([True, False, True])]`` reads a mask that the code itself contains.
`xfunc.torchlib.bounds` has the known bounds of such tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from xfunc.torchlib import torch_functions

if TYPE_CHECKING:
    from xfunc.trace.tracing import Trace

Tensor = torch.Tensor


def result(
    trace: Trace, func: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> object:
    """The result of a call; NotImplemented if its shape depends on unknown values."""
    if func is Tensor.__getitem__:
        return _part(trace, *args)
    if func.__name__ == "masked_select" and len(args) + len(kwargs) == 2:
        x, mask = [*args, *kwargs.values()]
        value = trace.known.find(mask)
        if value is None or not torch_functions.has_mask(mask):
            return NotImplemented
        shape = torch.broadcast_shapes(x.shape, value.shape)
        index = _literals(trace, value.expand(shape).nonzero(as_tuple=True))
        return trace.mode.call(
            Tensor.__getitem__, (trace.mode.call(Tensor.expand, (x, shape), {}), index), {}
        )
    return _computed(trace, func, args, kwargs)


def _part(trace: Trace, x: Tensor, index: object) -> object:
    entries: list[object] = []
    for entry in index if isinstance(index, tuple) else (index,):
        if not torch_functions.has_mask(entry):
            entries.append(entry)
            continue
        value = trace.known.find(entry) if isinstance(entry, Tensor) else None
        if value is None:
            return NotImplemented
        entries += _literals(trace, value.nonzero(as_tuple=True))
    return trace.mode.call(Tensor.__getitem__, (x, tuple(entries)), {})


def _computed(
    trace: Trace, func: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> object:
    """The result of a call with known tensors only."""
    given = [trace.known.find(a) if isinstance(a, Tensor) else a for a in args]
    if any(v is None and a is not None for v, a in zip(given, args, strict=True)):
        return NotImplemented
    if any(isinstance(v, Tensor) for v in kwargs.values()):
        return NotImplemented
    with torch._C.DisableTorchFunction(), torch._C._DisableFuncTorch():
        found = func(*given, **kwargs)
    if isinstance(found, Tensor):
        return _literals(trace, (found,))[0]
    assert isinstance(found, tuple)
    return _literals(trace, found)


def _literals(trace: Trace, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    made = []
    for value in values:
        with torch._C.DisableTorchFunction():
            data, kind = value.tolist(), {"dtype": value.dtype}
        out = trace.mode.call(torch.tensor, (data,), kind)
        if value.numel() == 0 and out.shape != value.shape:
            out = trace.mode.call(torch.zeros, (tuple(value.shape),), kind)
        made.append(out)
    return tuple(made)


def repeated(
    trace: Trace, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bool, object]:
    """``x.repeat_interleave(repeats)`` of known numbers: (whether it is one, the result)."""
    place = 0 if len(args) == 1 and "repeats" not in kwargs and func is not _METHOD else 1
    repeats = kwargs.get("repeats", args[place] if len(args) > place else None)
    if not isinstance(repeats, Tensor) or kwargs.get("output_size") is not None:
        return False, None
    value = trace.known.find(repeats)
    if value is None:
        return False, None
    size = int(value.sum())
    if not value.ndim:
        kwargs = {**kwargs, "repeats": size} if "repeats" in kwargs else kwargs
        args = (*args[:place], size, *args[place + 1 :]) if "repeats" not in kwargs else args
        return True, trace.mode.call(func, args, kwargs)
    if value.numel() == 1 and place:  # of each element
        return True, trace.mode.call(func, (args[0], size, *args[2:]), kwargs)
    return True, trace.mode.call(func, args, {**kwargs, "output_size": size})


_METHOD = Tensor.repeat_interleave
