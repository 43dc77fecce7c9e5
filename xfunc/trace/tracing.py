"""Running user code on abstract placeholder tensors.

A `Trace` is one such run. While it is open, every operation on the placeholders is recorded, and
nothing is computed; and a torch function mode (`xfunc.trace.calls`) sees every call of the user's
code. Together they

- turn tensors that the function did not receive as arguments (*captures*) into inputs;
- refuse impure operations, and name the user's line;
- remember every value made, so that values that outlive the trace are found and defused.

NOTE [who owns a tensor]: traces nest strictly, and values are numbered in order of creation. So a
tensor belongs to the innermost trace exactly when its number is not smaller than the trace's first
one. torch.func wraps tensors without passing the mode; their innermost value decides. But after a
change of its base in place, a view gets a new number when its number is read, so the numbers of
values known to belong to an enclosing trace are not read.

NOTE [leaks]: when a trace ends, each Python tensor of it that is still alive, and that somebody
owns, becomes a `Leaked`, which refuses every operation with a `LeakError`.

NOTE [stale captures]: a function cached while an enclosing trace was open may hold values of that
trace in its closure. They outlive it as `StaleCapture` objects, which only have a shape and a
dtype: whenever the function runs again, `lift` substitutes the current value. There is none for a
value that the function does not read, or only for its shape. In such a run, a function called
inside may be traced for the first time, because other values are differentiated now: it captures
the stale capture, for which the enclosing trace has a value.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

import numpy as np
import torch

from xfunc.backends import forks
from xfunc.backends.lock import lock
from xfunc.core import ambient, device
from xfunc.core.avals import Aval, short
from xfunc.core.counted import Counted
from xfunc.core.locations import Location, raised_at, user_location
from xfunc.core.types import Shaped
from xfunc.errors import PurityError, UnsupportedOpError, XfuncError, fail, format_error, kind_of
from xfunc.torchlib import batching, bounds, functorch, global_flags, initialisers
from xfunc.torchlib.eager import disable_jit
from xfunc.torchlib.replacements import REPLACEMENTS
from xfunc.torchlib.torch_functions import operation_name
from xfunc.torchlib.values import FLOAT8, check_array, is_tracked
from xfunc.trace import array_operands, recorder, scopes
from xfunc.trace.aliasing import Aliasing
from xfunc.trace.calls import Mode
from xfunc.trace.error_translation import (
    STATE,
    TRANSLATED,
    explain_usage,
    module_running_with,
    refusal_of,
)
from xfunc.trace.leaks import Leaked, TracedValues, error_of, fill, was_filled
from xfunc.trace.literals import literal
from xfunc.tracer import placeholders

if TYPE_CHECKING:
    from xfunc.trace.effects import EffectScope


class Source(Protocol):
    """Random numbers in place of the global generator's (`xfunc.random.implicit`).

    Attributes:
        trace: the one that it was opened in.
    """

    trace: Trace | None

    def draw(
        self, func: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        """The result of a function that draws; NotImplemented if it is not covered."""
        ...


def _captured() -> str:
    """The label of an input that is no argument."""
    return "a captured tensor"


class _Thread(threading.local):
    trace: Trace | None = None
    implicit: Source | None = None


_thread = _Thread()


def current() -> Trace | None:
    """The innermost open trace of this thread."""
    return _thread.trace


def static_option(labels: Iterable[str]) -> str:
    """The options of `jit` that make arguments static, by labels such as ``x.a[0]``."""
    roots = dict.fromkeys(re.split(r"[.\[]", label, maxsplit=1)[0] for label in labels)
    nums = [root.removeprefix("argument ") for root in roots if " " in root]
    names = [repr(root) for root in roots if " " not in root]
    options = {"static_argnums": nums, "static_argnames": names}
    return ", ".join(f"{option}={', '.join(which)}" for option, which in options.items() if which)


def set_implicit(source: Source | None) -> Source | None:
    """Make torch functions of this thread draw from `source` (None: refuse to draw); returns the
    previous source.
    """
    before = _thread.implicit
    _thread.implicit = source
    return before


def _same_constant(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two CPU tensors have equal values and take part in no gradient."""
    with torch._C.DisableTorchFunction():
        if not all(type(t) is torch.Tensor and t.is_cpu and not is_tracked(t) for t in (x, y)):
            return False
        alike = x.dtype == y.dtype and x.shape == y.shape
        return alike and torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (x, y)))


# The module or class of a function of torch, the function's name in it, and what takes its place:
# `run` takes torch's function, then the arguments of a call.
_Change: TypeAlias = tuple[Any, str, Callable[..., Any]]


@contextlib.contextmanager
def _in_traces(changes: Sequence[_Change], with_keys: bool = False) -> Iterator[None]:
    """Let other functions take the place of torch's in threads that trace.

    Args:
        changes: what to replace.
        with_keys: also in threads that draw from keys.
    """
    before = [(holder, name, getattr(holder, name)) for holder, name, _ in changes]
    for (holder, name, plain), (*_, run) in zip(before, changes, strict=True):
        setattr(holder, name, _replaced(plain, run, with_keys))
    try:
        yield
    finally:
        for holder, name, plain in before:
            setattr(holder, name, plain)


@functools.lru_cache(256)
def _replaced(
    plain: Callable[..., Any], run: Callable[..., Any], with_keys: bool
) -> Callable[..., Any]:
    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _thread.trace is None and not (with_keys and _thread.implicit is not None):
            return plain(*args, **kwargs)
        return run(plain, *args, **kwargs)

    return call


def _noted(plain: Callable[..., torch.Tensor], array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Note the values of tensors that traced code makes with ``torch.from_numpy``.

    torch shows no mode these calls. Such a tensor is an input of the program; but where its values
    decide a shape, they count as constants, because the cache key holds the contents of arrays.
    """
    result, trace = plain(array), _thread.trace
    assert trace is not None
    with torch._C.DisableTorchFunction():
        trace.known.put(result, result.clone())
    return result


def _drawn_at_once(plain: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
    """Newer torch asks for values in ``torch.nn.init.trunc_normal_``."""
    if _thread.trace is None and kwargs.get("generator") is not None:
        return plain(*args, **kwargs)
    return initialisers.truncated_normal(*args, **kwargs)


def _drawn_dirichlet(_: Callable[..., torch.Tensor], concentration: torch.Tensor) -> torch.Tensor:
    """``torch.distributions.Dirichlet`` draws in a function with torch's gradient of its draws."""
    return torch._sample_dirichlet(concentration)


def _with_weights_back(
    plain: Callable[..., torch.Tensor], module: torch.nn.Module, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """Give recurrent layers their own weights back after ``torch.func.functional_call``.

    They keep a list of the last ones that they ran with, until they run again.
    """
    names = "_flat_weights", "_flat_weight_refs"
    layers = [m for m in module.modules() if isinstance(m, torch.nn.RNNBase)]
    before = [(m, name, vars(m)[name]) for m in layers for name in names]
    try:
        return plain(module, *args, **kwargs)
    finally:
        for m, name, weights in before:
            setattr(m, name, weights)


def _lifted_first(
    wrap: Callable[..., torch.Tensor], tensor: torch.Tensor, *args: Any
) -> torch.Tensor:
    """A transform of torch.func wraps its argument, which may be captured; see `functorch.WRAP`.

    Once wrapped, it could not become an input: autograd would not know it again.
    """
    assert _thread.trace is not None
    return wrap(_thread.trace.lift(tensor), *args)


def _seen(plain: Callable[..., Any], node: Any, *args: Any) -> Any:
    """The engine of autograd calls a rule of a ``torch.autograd.Function``.

    The mode has been left for ``torch.autograd.grad``, or for the operation that is pushed forward.
    """
    assert _thread.trace is not None
    if node._forward_cls.__module__.startswith("xfunc."):
        return plain(node, *args)
    with _thread.trace.mode:
        return plain(node, *args)


def _no_graph(*_: object, **__: object) -> NoReturn:
    assert _thread.trace is not None
    fail(
        UnsupportedOpError,
        "make_fx was called in traced code, whose values it would take for constants",
        "call it outside, with tensors; xf.jit(f).trace(x) prints the program of a function.",
        function=_thread.trace.name,
    )


_IN_TRACES: Sequence[_Change] = (
    *((*wrap, _lifted_first) for wrap in functorch.WRAP),
    (*functorch.UNWRAP, functorch.recomputed_first),
    (torch.nn.utils.stateless, "_functional_call", _with_weights_back),
    (*functorch.MAKE_FX, _no_graph),
    (*functorch.DISALLOW, functorch.without_graph),
    (torch, "from_numpy", _noted),
    (torch.autograd.function.BackwardCFunction, "apply", _seen),
    (torch.autograd.function.BackwardCFunction, "apply_jvp", _seen),
)


@contextlib.contextmanager
def _further_changes() -> Iterator[None]:
    with _in_traces(_IN_TRACES), functorch.one_forward_level():
        yield


_changes = Counted(_further_changes)
_DRAWS: Sequence[_Change] = (
    (torch.nn.init, "_no_grad_trunc_normal_", _drawn_at_once),
    (torch.distributions.dirichlet._Dirichlet, "apply", _drawn_dirichlet),
)
drawing = Counted(lambda: _in_traces(_DRAWS, with_keys=True))
"""Replaces torch's random functions by traceable ones, in threads that trace or draw from keys."""


class Trace:
    """One run of a function on placeholders; a context manager.

    Attributes:
        captures: the tensors that became inputs.
        capture_inputs: the placeholder for each capture.
        substitutes: the substitutes of tensors, by the tensors' ids, and the tensors.
        made: the values made.
        lent: the values that NumPy has stand-ins for: see `xfunc.trace.array_operands`.
        ctx: its context: the mesh in use, the manual region, and so on.
        mode: the mode that sees the calls; entered again where torch leaves it to call Python.
        stamps: records in the HLO where values were made, once the trace is open.
    """

    def __init__(
        self,
        name: str,
        frozen_captures: bool = False,
        defined_at: Location | None = None,
        ctx: ambient.TraceContext = ambient.NOTHING,
    ):
        self.name, self._defined_at = name, defined_at
        self.ctx = ctx
        self.captures: list[torch.Tensor] = []
        self.lent: list[torch.Tensor] = []
        self.capture_inputs: list[torch.Tensor] = []
        self._in_plain_autograd = False
        self._last_refusal: tuple[XfuncError | None, Location | None] = (None, None)
        self.has_float8 = False  # whether some values may have such dtypes
        self.has_rule = False  # whether a function with a custom rule was called
        self.track_captures = False  # whether captures that require grad are differentiated
        self._frozen = frozen_captures
        self._placeholders: list[
            tuple[torch.Tensor, torch.Tensor, int, Callable[[], str], int]
        ] = []
        self.substitutes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.made = TracedValues(name, defined_at)
        self.batching = batching.Batching(self)
        self.overlaps = Aliasing()
        self.known = bounds.Known()  # the constants in the code
        self._stack = contextlib.ExitStack()
        self._parent: Trace | None = None
        self.mode = Mode(self)
        self.is_open = False
        # Of the function being run, if effects are allowed: see `effects.EffectScope`.
        self.effects: EffectScope | None = None

    # -- opening and closing ------------------------------------------------------------------

    def __enter__(self) -> Trace:
        with contextlib.ExitStack() as stack:
            forks.check()
            stack.enter_context(lock.for_trace())
            self._parent = current()
            if self._parent is None:
                recorder.start()
                placeholders.forget_unstamped()
                stack.enter_context(global_flags.while_tracing(_changes))
                stack.enter_context(drawing)
            stack.enter_context(global_flags.no_saved_tensors_hooks())
            stack.enter_context(functorch.bottom_level())
            stack.callback(ambient.restore, ambient.restore(self.ctx))
            # A backward pass may trace, in the thread of a `disable_jit`, which is not about it.
            stack.enter_context(disable_jit(False))
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            # Not in a separate thread, which would have neither the mode nor the lock of this one.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            stack.enter_context(self.mode)
            self.stamps = scopes.Stamps()
            stack.callback(scopes.enter, scopes.enter(""))  # XLA prepends the caller's scope.
            self._first_id = self.next_number()
            _thread.trace = self
            ambient.change_busy(1)
            self.is_open = True
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, tb: object) -> None:
        leaks, quiet = [], error is not None
        try:
            self.is_open = False
            self.substitutes.clear()
            self.capture_inputs.clear()
            self._placeholders.clear()
            array_operands.take_back_all(self)
            leaks = self.made.end(collect=error is None)
        except BaseException:  # Ctrl-C may come at any time.
            leaks, quiet = self.made.end(collect=False), True
            raise
        finally:
            _thread.trace = self._parent
            ambient.change_busy(-1)
            self._stack.close()
            leaks = [leak for leak in leaks if not self._gets_data(leak[0])]
            if leaks:
                self.made.defuse(leaks, quiet)
        if error is not None:
            self._translate(error)

    def _gets_data(self, leaked: torch.Tensor) -> bool:
        """Whether a leaked value is a constant of the code, which has its data from now on: code
        may keep it in a cache.
        """
        with torch._C.DisableTorchFunction(), functorch.bottom_level():
            value = self.known.find(leaked)
            return value is not None and fill(leaked, value.clone())

    def _translate(self, error: BaseException) -> None:
        """Re-raise refusals that the mode does not see as errors of xfunc."""
        refusal, at = self._last_refusal
        if (
            refusal is not None
            and isinstance(error, (TypeError, ValueError))
            and not isinstance(error, XfuncError)
            and at == raised_at(error)
        ):
            # Code in C replaced it by an error of its own, like torch.Size((n,)) or "%d" % n.
            raise refusal from error
        explain_usage(error, self.name)
        if isinstance(error, TRANSLATED) and not isinstance(error, XfuncError):
            refusal = refusal_of(None, error, self.name, raised_at(error) or user_location())
            if refusal is not None:
                raise refusal from error

    # -- inputs -------------------------------------------------------------------------------

    def new_input(
        self, aval: Shaped, label: Callable[[], str], watched: bool = False
    ) -> torch.Tensor:
        """A fresh placeholder, in the form that user code may see.

        Args:
            aval: its shape and dtype.
            label: returns its name in messages.
            watched: whether plain autograd differentiates with respect to it.
        """
        self.has_float8 |= aval.dtype in FLOAT8
        # The placeholder is at the bottom level, wherever a capture occurs.
        with torch._C.DisableTorchFunction(), functorch.bottom_level():
            raw = recorder.placeholder(aval)
            if watched:
                raw.requires_grad_()
            view = torch.ops.aten._unsafe_view.default(raw, list(aval.shape))
            number, version = recorder.tensor_id(view), view._version
        self._placeholders.append((raw, view, version, label, number))
        self.made.register(view, None, sys._getframe(1))
        return view

    def raw_inputs(self) -> list[torch.Tensor]:
        """The bare placeholders, in order of creation; for lowering only."""
        return [raw for raw, *_ in self._placeholders]

    def substitute(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Make `value` stand for the captured `tensor` from now on."""
        self.substitutes[id(tensor)] = (tensor, value)

    def keep_tokens(self, tensors: Sequence[torch.Tensor], fun: object) -> None:
        """A cached function holds these: see NOTE [stale captures]."""
        trace: Trace | None = self
        while trace is not None:
            # Wrappers of torch.func are made without passing the mode.
            wrapped = [t for t in tensors if functorch.is_wrapped(t) and trace.owns(t)]
            trace.made.keep_tokens(tensors, wrapped, fun)
            trace = trace._parent

    def lift(self, tensor: torch.Tensor) -> torch.Tensor:
        """The value of `tensor` in this trace; a tensor from outside becomes an input."""
        key = id(tensor)
        substitute = self.substitutes.get(key)
        if substitute is not None:
            return substitute[1]
        if tensor in self.made or self.owns(tensor):
            return tensor
        return self._capture(tensor)

    def copies(self, values: Iterable[torch.Tensor], tracked: bool = False) -> list[torch.Tensor]:
        """A tensor of its own for each value, which no instruction makes.

        Unlike in ``x.clone()``, the mode is not asked for each value.

        Args:
            values: any tensors.
            tracked: whether plain autograd differentiates with respect to the copies.
        """
        func = torch.Tensor.detach if tracked else torch.Tensor.clone
        values = list(map(self.lift, values))
        if self.known or self.batching.is_open:
            found = list(map(func, values))
            for x in found if tracked else ():
                self.known.forget(x)  # What is read of it would have no derivative.
        else:
            frame = sys._getframe(1)
            with torch._C.DisableTorchFunction():
                found = list(map(func, values))
            for x in found:
                self.made.register(x, func, frame)
        with torch._C.DisableTorchFunction():
            return [x.requires_grad_() for x in found] if tracked else found

    def owns(self, tensor: torch.Tensor) -> bool:
        """See NOTE [who owns a tensor]."""
        if isinstance(tensor, Leaked):
            if self._has_substitute(tensor):  # See NOTE [stale captures].
                return False
            raise error_of(tensor)
        with torch._C.DisableTorchFunction():
            *_, plain = layers = list(functorch.layers(tensor))
            if plain.device.type != device.TYPE:
                return plain in self.made
            return not self._is_of_parent(layers) and recorder.tensor_id(plain) >= self._first_id

    def has_made(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of any device was made in this trace or in one around it."""
        trace: Trace | None = self
        while trace is not None and tensor not in trace.made:
            trace = trace._parent
        return trace is not None

    def next_number(self) -> int:
        """A number between those of the tensors so far and those to come."""
        with torch._C.DisableTorchFunction(), functorch.bottom_level():
            return recorder.tensor_id(recorder.placeholder(Aval((), torch.bool)))

    def number_of(self, tensor: torch.Tensor) -> int:
        """The number of a tensor of the device."""
        with torch._C.DisableTorchFunction():
            return recorder.tensor_id(functorch.innermost(tensor))

    def _has_substitute(self, token: torch.Tensor) -> bool:
        """Whether a value takes the place of a token, in this trace or in one around it."""
        trace: Trace | None = self
        while trace is not None:
            if id(token) in trace.substitutes:
                return True
            trace = trace._parent
        return False

    def _is_of_parent(self, layers: Sequence[torch.Tensor]) -> bool:
        """Whether an enclosing trace is known to have made one of these."""
        parent = self._parent
        while parent is not None:
            if any(t in parent.made for t in layers):
                return True
            parent = parent._parent
        return False

    def _capture(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._frozen:
            for known, value in self.substitutes.values():
                if _same_constant(known, tensor):  # torch.from_numpy makes a new one in each run
                    return value
            if was_filled(tensor):  # The first run made it, and kept it.
                with torch._C.DisableTorchFunction():
                    value = literal(tensor)
                    self.known.put(value, tensor.clone())
                return value
            fail(
                PurityError,
                f"a second run of the function used a tensor ({short(tensor)}) that the first "
                "run did not",
                "make the function do the same each time it is called.",
                function=self.name,
            )
        with torch._C.DisableTorchFunction():
            if not isinstance(tensor, Leaked):  # A token has an aval, and nothing else.
                check_array(tensor, self.name)
            tracked = self.track_captures and is_tracked(tensor)
            value = self.new_input(tensor, _captured, tracked)
        if (known := self.known.find(tensor)) is not None:
            self.known.put(value, known)
        self.captures.append(tensor)
        self.capture_inputs.append(value)
        self.substitutes[id(tensor)] = (tensor, value)
        return value

    def is_inside(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a value of this trace or of one around it."""
        trace: Trace | None = self
        while trace._parent is not None:
            trace = trace._parent
        return trace.owns(tensor) or (isinstance(tensor, Leaked) and self._has_substitute(tensor))

    def may_use_plain_autograd(self) -> bool:
        """Whether neither plain autograd nor a transform differentiates here yet."""
        busy = self.track_captures or self._in_plain_autograd
        return not busy and functorch.top_level() is None

    @contextlib.contextmanager
    def plain_autograd(self) -> Iterator[None]:
        """Differentiate with plain autograd; differentiation inside uses transforms."""
        self._in_plain_autograd = True
        try:
            yield
        finally:
            self._in_plain_autograd = False

    @property
    def is_innermost(self) -> bool:
        """Whether no other trace is open inside this one."""
        return _thread.trace is self

    @property
    def implicit(self) -> Source | None:
        """The source of random numbers in place of the global generator: see `set_implicit`."""
        source = _thread.implicit
        if source is not None and source.trace is not None and not source.trace.is_open:
            return None  # Left open by a trace that has ended.
        return source

    # -- values -------------------------------------------------------------------------------

    def register(self, outputs: Iterable[torch.Tensor]) -> None:
        """Remember values made in this trace without passing the mode."""
        frame = sys._getframe(1)
        with torch._C.DisableTorchFunction():
            for t in outputs:
                if t not in self.made:
                    self.stamps.stamp(t, frame)
                    self.made.register(t, None, frame)
                    self.has_float8 |= t.dtype in FLOAT8

    def is_input(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is an argument or a capture."""
        return any(view is tensor for _, view, *_ in self._placeholders)

    def static_argument(self, *tensors: torch.Tensor) -> str:
        """The argument to make static so that its values may be read, for a hint."""
        inner = [functorch.innermost(t) for t in tensors]
        given = [
            (label(), view.ndim, any(t is view for t in inner))
            for _, view, _, label, _ in self._placeholders
            if label is not _captured
        ]
        read = [label for label, _, is_read in given if is_read]
        numbers = [label for label, ndim, _ in given if not ndim]
        if read and set(read) <= set(numbers):
            return f"{' and '.join(read)} as a static argument ({static_option(read)})"
        if len(numbers) == 1 and not read:
            return f"what it is computed from as a static argument ({numbers[0]})"
        return "it as a static argument"

    def refuse(self, error: type[XfuncError], problem: str, hint: str) -> NoReturn:
        """Raise an error of this trace, at the user's line."""
        at = user_location()
        message = format_error(problem, hint, function=self.name, at=at)
        self._last_refusal = error(message), at  # Another object: a traceback would hold values.
        raise error(message)

    def check_unmutated(self, func: Callable[..., object] | None = None) -> None:
        """Raise if an input has been changed in place."""
        # In-place changes of lists of tensors are only visible as new tensor numbers.
        numbered = func is None or func.__name__.startswith("_foreach_")
        with torch._C.DisableTorchFunction():  # Each read would pass the mode.
            changed = [
                (label(), view)
                for _, view, version, label, number in self._placeholders
                if view._version != version or (numbered and number != recorder.tensor_id(view))
            ]
        for label, view in changed:
            what = "something" if func is None else operation_name(func)
            hint = (
                "compute a new tensor and return it (x = x + 1 instead of x += 1; "
                "torch.index_put instead of x[i] = y)."
            )
            captured = next((c for c, v in self._captured() if v is view), None)
            if captured is not None and (found := module_running_with(captured)) is not None:
                module, name = found
                label = f"{name!r} of {kind_of(module)} that is closed over"
                hint = STATE
            self.refuse(PurityError, f"{what} changes {label} ({short(view)}) in place", hint)

    def _captured(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return zip(self.captures, self.capture_inputs, strict=True)


def _lift_operands(args: tuple[object, ...]) -> tuple[object, ...]:
    """The operands of a ``torch.autograd.Function``, as values of the innermost trace."""
    trace = current()
    return args if trace is None else trace.mode.lift_all(args, {})[0]


functorch.intercept_operands(_lift_operands, lambda: current() is not None)


def _with_mode(rule: Callable[..., Any]) -> Callable[..., Any]:
    def seen(*args: Any, **kwargs: Any) -> Any:
        trace = current()
        with contextlib.nullcontext() if trace is None else trace.mode:
            return rule(*args, **kwargs)

    return seen


def _register_hook(tensor: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> Any:
    """``Tensor.register_hook``: in a trace, the mode sees what the hook calls, as in `_seen`."""
    return tensor.register_hook(_with_mode(hook))


REPLACEMENTS[torch.Tensor.register_hook] = _register_hook


def _custom_function_call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A ``torch.autograd.Function`` within transforms: the mode sees its rules, as in `_seen`."""
    call = functorch.CUSTOM_FUNCTION_CALL
    if function.__module__.startswith("xfunc."):
        return call(function, *args, **kwargs)
    base = torch.autograd.Function
    own: dict[str, Any] = {"__module__": function.__module__}
    for name in ("forward", "setup_context", "vmap"):
        rule = getattr(function, name)
        if rule is not getattr(base, name):
            own[name] = staticmethod(_with_mode(rule))
    return call(type(function)(function.__name__, (function,), own), *args, **kwargs)


REPLACEMENTS[functorch.CUSTOM_FUNCTION_CALL] = _custom_function_call
