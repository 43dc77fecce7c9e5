"""The calls of torch functions that traced code makes.

A torch function mode sees them all, and makes its trace lift arguments that are not yet its values.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from xfunc.core import size_questions
from xfunc.core.locations import user_location
from xfunc.torchlib import autocast, bounds, float8, functorch, torch_functions
from xfunc.torchlib.arrays import from_numpy
from xfunc.torchlib.derivatives import check_derivative
from xfunc.torchlib.foreach import FOREACH
from xfunc.torchlib.in_place import check_shape, write_into
from xfunc.torchlib.indexing import part_of
from xfunc.torchlib.options import OPTIONS, Rule
from xfunc.torchlib.replacements import replacement
from xfunc.torchlib.torch_functions import Kind
from xfunc.torchlib.values import FLOAT8, SUPPORTED, check_dtype, tensors_in
from xfunc.trace import devices, empty_reductions, recorder, rules
from xfunc.trace.error_translation import explain, refusal_of
from xfunc.trace.leaks import Leaked, StaleCapture
from xfunc.trace.literals import literal

if TYPE_CHECKING:
    from xfunc.trace.tracing import Trace

_is_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
_LEAVES = frozenset((int, float, bool, type(None), str, torch.device))
# Functions that may return their argument: the line that made the value stays.
_SAME_VALUE = frozenset(
    (
        *(torch.Tensor.detach, torch.Tensor.contiguous, torch.Tensor.to, torch.detach),
        *(torch.Tensor.clone, torch.Tensor.requires_grad_),  # these make no HLO instruction
    )
)
_SHAPED_LIKE = frozenset((torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like))


class _Plan(NamedTuple):
    """The actions around the calls of a torch function.

    Attributes:
        kind: how to treat it.
        run: the replacement, if any.
        has_bounds: whether its indices may be known to be out of range.
        is_arithmetic: whether its numbers are typed where it is differentiated.
        reduces: whether it may reduce nothing.
        is_like: whether it makes values like another one.
        makes_value: whether its result is not an argument.
        keeps_shape: whether it changes its first argument element by element.
        options: how it is computed if one of its options is a tensor.
    """

    kind: Kind
    run: Callable[..., Any]
    has_bounds: bool
    is_arithmetic: bool
    reduces: bool
    is_like: bool
    makes_value: bool
    keeps_shape: bool
    options: Rule | None


_plans: dict[object, _Plan] = {}


def _planned(func: Callable[..., Any]) -> _Plan:
    result = _plans[func] = _Plan(
        torch_functions.kind_of(func),
        replacement(func),
        bounds.checks(func),
        func in torch_functions.ARITHMETIC,
        empty_reductions.is_reduction(func),
        func in _SHAPED_LIKE,
        func not in _SAME_VALUE,
        torch_functions.is_in_place_elementwise(func),
        OPTIONS.get(func),
    )
    return result


class Mode(TorchFunctionMode):
    """Passes every torch call of traced code to its trace."""

    def __init__(self, trace: Trace):
        self._trace = trace

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if not self._trace.is_innermost:  # A nested trace; its own mode has seen the call.
            return func(*args, **(kwargs or {}))
        return self.call(func, args, kwargs or {})

    def call(
        self, func: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A torch function called by traced code."""
        trace = self._trace
        plan = _plans.get(func) or _planned(func)
        kind = plan.kind
        if kind is Kind.METADATA:
            if type(args[0]) is StaleCapture and id(args[0]) in trace.substitutes:
                args = (trace.lift(args[0]), *args[1:])
            found = func(*args, **kwargs)
            if trace.ctx.asks_sizes:
                if func in torch_functions.SIZES:
                    return size_questions.tracked(found, sys._getframe(2))
                if func is torch_functions.LENGTH:
                    size_questions.note_length(found, sys._getframe(2))
            return found
        if kind is Kind.DEVICE:
            return devices.of_tensor(trace, args[0])
        if kind is Kind.LISTS:
            with self:
                out = FOREACH[func](*args, **kwargs)
            if out is not NotImplemented:
                if not torch_functions.is_in_place(func.__name__):
                    for tensor in out:
                        trace.made.register(tensor, func, sys._getframe(2))
                return out
        if plan.options is not None and plan.options.applies(args, kwargs):
            with self:
                out = plan.options(args, kwargs)
            if out is not NotImplemented:
                trace.made.register(out, func, sys._getframe(2))
                return out
        if "device" in kwargs:
            kwargs = {**kwargs, "device": devices.of_trace(kwargs["device"])}
        if kind is Kind.FACTORY:
            if read := torch_functions.sizes_read(func, args):
                args = (*rules.check_sizes(trace, func, args[:read]), *args[read:])
            if kwargs.get("device") is None and not _like(func):
                kwargs = {**kwargs, "device": recorder.device()}
        elif kind is Kind.SIZED:
            args = (args[0], *rules.check_sizes(trace, func, args[1:]))
            kwargs = dict(zip(kwargs, rules.check_sizes(trace, func, kwargs.values()), strict=True))
        elif kind is Kind.MOVE and _only_converts(args, kwargs):
            if type(args[0]) is torch.Tensor and args[0].dtype is args[1]:
                return self.lift_all(args, kwargs)[0][0]
        elif func is torch.Tensor.cuda:
            return self.call(torch.Tensor.to, (args[0], recorder.device()), {})
        elif kind is Kind.ARRAY:
            found = rules.beside_array(trace, func, args)
            if found is not NotImplemented:
                return found
        elif kind is not Kind.PLAIN and (
            kind is not Kind.INDEX or torch_functions.has_mask(args[1])
        ):
            if any(isinstance(t, Leaked) for t in tensors_in(args, kwargs)):
                args, kwargs = self.lift_all(args, kwargs)
            if kind is Kind.MOVE:
                args, kwargs = devices.of_move(trace, args, kwargs)
            done, result = rules.special(trace, kind, func, args, kwargs)
            if done:
                return result
        args, kwargs = self.lift_all(args, kwargs, numbers=kind is not Kind.LITERAL)
        if _is_autocast():
            args, kwargs = autocast.cast(func, args, kwargs)
        if trace.has_float8:
            float8.check(func, args, kwargs, trace.name)
        if plan.has_bounds:
            trace.known.check(func, trace.name, args, kwargs)
        changed = trace.known.changed(func, args, kwargs) if kind is Kind.IN_PLACE else None
        args = trace.overlaps.separate(func, args)
        writes = kind is Kind.IN_PLACE or bool(kwargs and {"out", "inplace"} & kwargs.keys())
        if writes:
            if kind is Kind.IN_PLACE or "out" in kwargs or kwargs.get("inplace"):
                written = kwargs.get("out", args[0] if args else None)
                trace.overlaps.check(func, written, trace.name)
            if kind is Kind.IN_PLACE or kwargs.get("out") is not None:
                trace.batching.prepare(func, args, kwargs)
        if plan.is_arithmetic and functorch.JVP in functorch.levels():
            args = rules.typed_numbers(trace, args)
        try:
            out = empty_reductions.reduce(func, args, kwargs) if plan.reduces else NotImplemented
            if out is NotImplemented:
                run = plan.run
                if func is torch.autograd.grad and trace.ctx.region is not None:
                    run = _grad_here() or run
                call = _run
                if writes and kwargs.get("out") is not None:
                    call = functools.partial(write_into, func)
                if plan.keeps_shape and args:
                    check_shape(args[0], (*args[1:], *kwargs.values()))
                try:
                    out = call(run, args, kwargs)
                except RuntimeError as error:  # One that the user made on the CPU is moved to it.
                    if not any(words in str(error) for words in _TELL_OF_DEVICES):
                        raise
                    out = call(run, *_on_device(args, kwargs))
        except Exception as error:
            beside = (*args[1:], *kwargs.values())
            static = trace.static_argument(*tensors_in(beside, {}))
            refusal = refusal_of(func, error, trace.name, user_location(), beside, static)
            if refusal is None:
                refusal = explain(error, func, args, kwargs, trace.name)
                if refusal is error:
                    raise
            raise refusal from error
        if changed is not None:
            trace.known.put(args[0], changed)
        if plan.is_like and trace.ctx.region is not None:
            out = regions.like(out, args[0] if args else kwargs["input"])
        if trace.batching.is_open and kind is not Kind.IN_PLACE:
            trace.batching.note(out, plan.run, args, kwargs)
        trace.overlaps.note(func, args, kwargs, out)
        if isinstance(out, torch.Tensor):
            frame = sys._getframe(2)
            if plan.makes_value:
                trace.stamps.stamp(out, frame)
            if plan.makes_value or out not in trace.made:
                trace.made.register(out, func, frame)
            trace.known.follow(kind, func, args, kwargs, (out,))
        elif isinstance(out, (tuple, list)):
            frame = sys._getframe(2)
            stamped = func is torch.autograd.grad and trace.stamps.watching
            for o in out:
                if isinstance(o, torch.Tensor):
                    if not stamped:
                        trace.stamps.stamp(o, frame)
                    trace.made.register(o, func, frame)
            if func in bounds.PARTS:
                trace.known.follow(kind, func, args, kwargs, out)
        if kind is Kind.FOREIGN:
            check_derivative(func, args, kwargs, out, trace.name)
            trace.check_unmutated(func)
        elif writes:
            if args and isinstance(args[0], (tuple, list)):
                trace.known.clear()  # Changes of lists do not count as versions.
            written = part_of(kwargs.get("out", args[0] if args else None))
            if written is not None:
                whole, index, part = written
                self.call(torch.Tensor.__setitem__, (whole, index, part.clone()), {})
            trace.check_unmutated(func)
        return out

    def lift_all(
        self,
        args: Sequence[Any],
        kwargs: dict[str, object],
        beside: Sequence[object] = (),
        numbers: bool = True,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments as values of the trace; NumPy's numbers as Python's, if `numbers`."""
        # This runs for each traced operation: the common cases come first.
        trace = self._trace
        made, substitutes = trace.made.entries, trace.substitutes
        lifted = []
        for a in args:
            kind = type(a)
            if kind is torch.Tensor:
                key = id(a)
                entry = made.get(key)
                if entry is None or entry[0]() is not a or key in substitutes:
                    a = trace.lift(a)
            elif kind in _LEAVES:
                pass
            elif isinstance(a, torch.Tensor):
                a = trace.lift(a)
            elif kind is tuple or kind is list:
                a = kind(self.lift_all(a, {}, numbers=numbers)[0])
            elif kind is torch.dtype:
                trace.has_float8 |= a in FLOAT8
                if a not in SUPPORTED:
                    check_dtype(a, (*beside, *lifted, *args[len(lifted) + 1 :]), trace.name)
            elif numbers and isinstance(a, np.number):  # torch takes it for a number
                a = a.item()
            else:
                a = size_questions.plain(a)
            lifted.append(a)
        if kwargs:
            values, _ = self.lift_all(tuple(kwargs.values()), {}, lifted, numbers)
            kwargs = dict(zip(kwargs, values, strict=True))
        return tuple(lifted), kwargs


_TELL_OF_DEVICES = "device", "mutating a non-functional tensor"

# If traced code uses torch.compile, dynamo must not compile the tracer or the functions it calls.
functorch.never_compile(Mode.__torch_function__)


def _only_converts(args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Whether a `.to(...)` or `.type(...)` call gives a dtype and nothing else."""
    return len(args) == 2 and type(args[1]) is torch.dtype and not kwargs


def _like(func: Callable[..., object]) -> bool:
    return func.__name__.endswith("_like")


@dataclasses.dataclass
class Regions:
    """The functions that differ in manual regions, where values have varying types
    (`xfunc.program.vma`).

    Attributes:
        grad: runs when the user's code calls ``torch.autograd.grad``; None for the default.
        like: makes values like another value, as the region requires.
    """

    grad: Callable[[], Callable[..., Any] | None] = lambda: None
    like: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda out, _: out


regions = Regions()


def _grad_here() -> Callable[..., Any] | None:
    return None if functorch.takes_own_gradient() else regions.grad()


def _run(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return func(*args, **kwargs)


def _on_device(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Arguments with the tensors of the CPU, and NumPy's arrays, moved to the device."""

    def moved(a: Any) -> Any:
        if type(a) in (tuple, list):
            return type(a)(map(moved, a))
        if isinstance(a, torch.Tensor) and a.device.type == "cpu":
            return recorder.to_device(a)
        return literal(from_numpy(a)) if isinstance(a, np.ndarray) else a

    return tuple(map(moved, args)), {k: moved(a) for k, a in kwargs.items()}
