"""Reads of constant data, and operations on it whose shapes depend on it.

``x[torch.tensor([True, False, True])]`` reads a mask that the code itself contains.
`xfunc.torchlib.bounds` has the known bounds of such tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from xfunc.core import size_questions
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
    entries = known_index(trace, index)
    if entries is NotImplemented:
        return NotImplemented
    return trace.mode.call(Tensor.__getitem__, (x, entries), {})


def known_index(trace: Trace, index: object) -> Any:
    """An index with the places for masks and numbers for bounds; NotImplemented if unknown."""
    entries: list[object] = []
    for entry in index if isinstance(index, tuple) else (index,):
        if not torch_functions.has_mask(entry):
            entries.append(entry)
        elif isinstance(entry, slice):
            bounds = [_bound(trace, b) for b in (entry.start, entry.stop, entry.step)]
            if any(b is NotImplemented for b in bounds):
                return NotImplemented
            entries.append(slice(*bounds))
        else:
            value = trace.known.find(entry) if isinstance(entry, Tensor) else None
            if value is None:
                return NotImplemented
            if value.ndim == 0:  # `x[True]` is `x[None]`, and `x[False]` has no elements.
                entries.append(value.item() != 0)
            else:
                entries += _literals(trace, value.nonzero(as_tuple=True))
    return tuple(entries)


def _bound(trace: Trace, bound: object) -> object:
    if not isinstance(bound, Tensor):
        return bound
    value = trace.known.find(bound)
    return NotImplemented if value is None else value.__index__()


def read(
    trace: Trace, func: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> object:
    """What a call reads of known tensors; NotImplemented if it reads others."""
    if func not in _READS:
        return NotImplemented
    if func in _EQUALS and len(args) == 2 and args[0].dtype is args[1].dtype:
        one, other = args
        if one is other or (one.shape != other.shape and not trace.ctx.asks_sizes):
            return one is other
    found = _on_values(trace, func, args, kwargs)
    if trace.ctx.asks_sizes and found is not NotImplemented:
        given = [trace.known.find(a) for a in args]
        with torch._C.DisableTorchFunction():
            numbers = [n for v in given if v is not None for n in v.flatten().tolist()]
        size_questions.note_values(numbers, sys._getframe(4))
    return found


def values(trace: Trace, data: object) -> object:
    """Python data with the values of known tensors in it; NotImplemented if one is unknown."""
    if isinstance(data, Tensor):
        value = trace.known.find(data)
        return NotImplemented if value is None else value.tolist()
    if not isinstance(data, (tuple, list)):
        return data
    found = [values(trace, part) for part in data]
    return NotImplemented if any(part is NotImplemented for part in found) else found


def _computed(
    trace: Trace, func: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> object:
    """The result of a call with known tensors only."""
    found = _on_values(trace, func, args, kwargs)
    if isinstance(found, tuple):
        return _literals(trace, found)
    return _literals(trace, (found,))[0] if isinstance(found, Tensor) else found


def _on_values(
    trace: Trace, func: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> object:
    """The result of a call on the CPU; NotImplemented unless all its tensors are known."""
    given = [trace.known.find(a) if isinstance(a, Tensor) else a for a in args]
    if any(v is None and a is not None for v, a in zip(given, args, strict=True)):
        return NotImplemented
    if any(isinstance(v, Tensor) for v in kwargs.values()):
        return NotImplemented
    with torch._C.DisableTorchFunction(), torch._C._DisableFuncTorch():
        return func(*given, **kwargs)


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
_EQUALS = frozenset(torch_functions.functions("equal"))
_READS = frozenset(
    torch_functions.functions(
        "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "is_nonzero", "equal",
        "__contains__", "__complex__", "allclose",
    )
)  # fmt: skip
