"""The tracer's rules for calls of torch functions that need more than lifted arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from xfunc.core import device, torch_versions
from xfunc.core.avals import short
from xfunc.core.locations import called_by
from xfunc.errors import ConcretizationError, PurityError, UnsupportedOpError
from xfunc.rules.operands import rounded
from xfunc.torchlib import functorch, torch_functions
from xfunc.torchlib.indexing import stacked
from xfunc.torchlib.initialisers import INITIALISERS
from xfunc.torchlib.new import NEW
from xfunc.torchlib.torch_functions import Kind, operation_name
from xfunc.torchlib.values import FLOAT8, check_dtype, find_traced, on_device, tensors_in
from xfunc.trace import array_operands, constants, recorder
from xfunc.trace.error_translation import OF_JAX
from xfunc.trace.leaks import Leaked
from xfunc.trace.literals import literal

if TYPE_CHECKING:
    from xfunc.trace.tracing import Trace


def special(
    trace: Trace,
    kind: Kind,
    func: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: dict[str, object],
) -> tuple[bool, object]:
    """Handle a call that needs more than lifting: (whether it was handled, the result)."""
    if (body := INITIALISERS.get(func)) is not None:
        with trace.mode:
            return True, body(*args, **kwargs)
    if (body := NEW.get(func)) is not None:
        with trace.mode:
            made = body(*args, **kwargs)
        trace.made.register(made, func, sys._getframe(3))  # of who called __torch_function__
        return True, made
    name = operation_name(func)
    tensors = [t for t in tensors_in(args, kwargs) if _is_traced(trace, t)]
    if kind is Kind.LITERAL:
        return _make_literal(trace, func, args, kwargs)
    if kind is Kind.RANDOM and torch_functions.is_random_call(func, args, kwargs):
        return True, _draw(trace, func, args, kwargs)
    if func is torch.Tensor.__setitem__ and torch_functions.is_masked_fill(args):
        # A fill does not need the indices of the mask.
        x, mask, value = args
        is_number = isinstance(value, (int, float)) and x.is_floating_point()
        if is_number and not torch_versions.masks_refuse_large_numbers():
            value = rounded(value, x.dtype)  # infinite, where torch.masked_fill refuses
        mask = mask.reshape(*mask.shape, *(1,) * (x.ndim - mask.ndim))
        return True, trace.mode.call(torch.Tensor.masked_fill_, (x, mask, value), {})
    if func is torch.Tensor.__setitem__ and torch_functions.has_mask(args[1]):
        index = constants.known_index(trace, args[1])
        if index is not NotImplemented:
            return True, trace.mode.call(func, (args[0], index, args[2]), {})
    if kind is Kind.BACKWARD:
        trace.refuse(
            PurityError,
            f"{name} writes gradients into `.grad`, a side effect",
            "use xf.grad or xf.value_and_grad, which return them; or call backward outside.",
        )
    if not tensors:
        return False, None
    if func == torch_functions.GRAD_FN:
        # The graph belongs to the trace: a node kept after its end would have no values.
        return True, None
    if func == torch_functions.DATA:
        return True, trace.mode.call(torch.Tensor.detach, args, {})  # Shares the version counter.
    if func == torch_functions.SET_DATA:
        if all(_is_traced(trace, t) for t in args) and len({*map(recorder.identity, args)}) == 1:
            return True, None  # `x.data = x.data.to(...)`
        trace.refuse(
            PurityError,
            f"assigning to .data changes a traced value ({short(args[0])}) in place",
            "compute a new tensor and return it.",
        )
    if kind is Kind.REPR:
        return _show(trace, func, args)
    if kind is Kind.COPY:
        return True, trace.mode.call(torch.clone, (args[0],), {})
    if func is torch.Tensor.copy_ and args[0].device.type == "cpu" and trace.owns(args[0]):
        refuse_read(trace, "copying to the host with Tensor.copy_", args[1])
    reads = kind is Kind.READ or (kind is Kind.MOVE and torch_functions.leaves_device(args, kwargs))
    if reads:
        found = constants.read(trace, func, args, kwargs)
        if found is not NotImplemented:
            return True, found
        refuse_read(trace, name, tensors[0])
    if kind is Kind.REPEAT:
        return constants.repeated(trace, func, args, kwargs)
    if torch_functions.is_data_shaped(kind, func, args, kwargs):
        found = constants.result(trace, func, args, kwargs)
        if found is not NotImplemented:
            return True, found
        if kind is Kind.INDEX and (bound := torch_functions.bound_of(args[1])) is not None:
            trace.refuse(
                ConcretizationError,
                f"a bound of a slice is a traced value ({short(bound)}), which has no data",
                "use x.narrow(dim, start, length), whose start may be traced; or keep the whole "
                "and mask it with torch.where.",
            )
        what = "indexing with a boolean mask" if kind is Kind.INDEX else name
        trace.refuse(
            UnsupportedOpError,
            f"the shape of the result of {what} depends on data",
            _HINTS.get(func.__name__, _FIXED),
        )
    return False, None


def beside_array(trace: Trace, func: Callable[..., object], args: tuple[Any, ...]) -> object:
    """The operator's call for a NumPy array; NotImplemented if it is a plain call."""
    x = args[0]
    if func is not torch.Tensor.__array__:  # `array / x`
        if not isinstance(args[1], np.ndarray):
            return NotImplemented
        with trace.mode:
            return x.reciprocal() * args[1]  # as in torch
    if not _is_traced(trace, trace.lift(x) if isinstance(x, Leaked) else x):
        return NotImplemented
    result = array_operands.stand_in(trace, x)
    if result is None:
        refuse_read(trace, operation_name(func), x)
    return result


_FIXED = (
    "keep the shape fixed: torch.where(mask, x, 0) instead of x[mask], torch.sort or torch.topk "
    "instead of unique or nonzero."
)
_HINTS = {
    "bincount": "count into a tensor of fixed length n (minlength is no upper bound): "
    "torch.zeros(n, dtype=torch.int64).index_add(0, x, torch.ones_like(x)), where what is not "
    "below n is not counted; give the weights in place of the ones.",
    "one_hot": "give num_classes.",
}


def _are_whole(data: object) -> bool:
    """Whether Python data consists of whole numbers and booleans, traced or not."""
    if isinstance(data, (tuple, list)):
        return bool(data) and all(map(_are_whole, data))
    if isinstance(data, torch.Tensor):
        return not (data.ndim or data.is_floating_point() or data.is_complex())
    return isinstance(data, int)


def _draw(
    trace: Trace, func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A draw from the global generator: from the implicit key, if there is one."""
    name, source = operation_name(func), trace.implicit
    if kwargs.get("generator") is not None:
        trace.refuse(
            PurityError,
            f"{name} was given a torch.Generator, whose state cannot be traced",
            torch_functions.KEYED,
        )
    if source is not None and source.trace is not trace:
        trace.refuse(
            PurityError,
            f"{name} draws from an xf.random.implicit key that was opened outside the "
            "function being traced, and would draw the same numbers on every run",
            "open `with xf.random.implicit(key):` inside that function, with a key that is "
            "passed in (for a scan, one key per step: xs=xf.random.split(key, n)).",
        )
    out = NotImplemented
    if source is not None:
        args, kwargs = trace.mode.lift_all(args, kwargs)
        with trace.mode:
            out = source.draw(func, args, kwargs)
    if out is NotImplemented:
        covered = "" if source is None else ", and xf.random.implicit does not cover it"
        trace.refuse(
            PurityError,
            f"{name} draws from the global random generator, which a traced function must not do"
            f"{covered}",
            torch_functions.KEYED
            if source is None
            else "draw with a key: xf.random.uniform(key, shape).",
        )
    return out


def check_sizes(trace: Trace, func: object, given: Iterable[object]) -> tuple[object, ...]:
    """Sizes as numbers; raise for a traced one."""
    sizes = []
    for size in given:
        if isinstance(size, (tuple, list)):
            if next(tensors_in(size, {}), None) is not None:
                size = check_sizes(trace, func, size)
        elif isinstance(size, torch.Tensor):
            value = trace.known.find(size)
            if value is None:
                refuse_read(trace, operation_name(func), size)
            size = value.tolist()
        sizes.append(size)
    return tuple(sizes)


def _show(trace: Trace, func: object, args: tuple[Any, ...]) -> tuple[bool, object]:
    if func is torch.Tensor.__format__ and args[1]:
        refuse_read(trace, f"formatting with {args[1]!r}", args[0])
    return True, f"Traced<{short(args[0])}>"


def _is_traced(trace: Trace, tensor: torch.Tensor) -> bool:
    """Whether reading `tensor` would read an input of the program."""
    if tensor.device.type == device.TYPE:
        return True
    return not trace.owns(tensor)


def refuse_read(trace: Trace, name: str, tensor: torch.Tensor) -> NoReturn:
    """Raise: a call would read a traced value."""
    hint = (
        "compute with tensors (torch.where instead of `if`), return the value and read it "
        f"outside, or pass {trace.static_argument(tensor)}."
    )
    if name.startswith("Tensor.__array_"):
        hint = array_operands.HINT
    if called_by("jax"):
        hint = OF_JAX
    elif called_by("copy"):
        name, hint = "copy.copy", "write x.clone(), or copy.deepcopy(x)."
    problem = f"{name} reads a traced value ({short(tensor)}), which has no data"
    trace.refuse(ConcretizationError, problem, hint)


def _make_literal(
    trace: Trace, func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[bool, object]:
    """A tensor of Python data becomes a constant of the program: nothing is transferred."""
    data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    is_here = on_device(kwargs.get("device"))
    if isinstance(data, torch.Tensor):
        if not is_here and _is_traced(trace, data):
            refuse_read(trace, operation_name(func), data)
        if is_here and func is torch.tensor:
            # torch's version detaches in place, which vmap refuses.
            call = trace.mode.call
            copied = call(torch.clone, (call(torch.detach, (data,), {}),), {})
            return True, call(torch.Tensor.to, (copied, kwargs.get("dtype") or data.dtype), {})
        if kwargs.get("device") is None:  # Not the user's default device.
            return True, trace.mode.call(func, args, {**kwargs, "device": recorder.device()})
        return False, None
    traced = find_traced(data)
    if traced is not None:
        rest = {k: v for k, v in kwargs.items() if k not in ("data", "obj")}
        values = constants.values(trace, data)
        if values is not NotImplemented:
            return True, trace.mode.call(func, (values, *args[1:]), rest)
        if is_here and func is torch.tensor and _are_whole(data):
            dtype: Any = rest.get("dtype")
            with trace.mode:
                return True, stacked(data).to(dtype)
        trace.refuse(
            ConcretizationError,
            f"{operation_name(func)} reads traced values ({short(traced)}) from a Python sequence",
            "use torch.stack.",
        )
    if not is_here:
        return False, None
    kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "requires_grad")}
    with torch._C._DisableFuncTorch():  # Inside a transform, even a fresh tensor is wrapped.
        value = func(*args, **kwargs)
        assert isinstance(value, torch.Tensor)
        check_dtype(value.dtype, (), trace.name)
        trace.has_float8 |= value.dtype in FLOAT8
        out = literal(value)
    if functorch.is_transformed():  # Code may change values of the innermost level in place.
        out = torch.clone(out)
    trace.known.put(out, value)
    trace.made.register(out, func, sys._getframe(4))  # of who called __torch_function__
    return True, out


# NOTE [numbers in forward mode] torch.func.jvp makes the tangent of `0.5 * x` float64 where x is a
# 0-d float32 tensor: the tangent is combined with the number as a tensor that takes part in
# promotion like x does. A 0-d tensor of the dtype of x in place of the number does not affect the
# result dtype.


def typed_numbers(trace: Trace, args: tuple[object, ...]) -> tuple[object, ...]:
    """Arguments of arithmetic; numbers next to a 0-d floating tensor get its dtype."""
    like = next((a for a in args if isinstance(a, torch.Tensor)), None)
    if like is None or like.ndim or not like.is_floating_point():
        return args
    call, typed = trace.mode.call, {"dtype": like.dtype}
    return tuple(
        call(torch.full, ((), a), typed) if type(a) in (int, float, bool) else a for a in args
    )
