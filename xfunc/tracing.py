"""Running user code on abstract placeholder tensors.

A `Trace` is one such run. While it is open, torch_xla records every operation on the placeholders
lazily and computes nothing, and a torch function mode sees every call of the user's code. The mode

- turns tensors that the function did not receive as arguments (*captures*) into inputs;
- refuses what a pure function may not do, naming the user's line;
- remembers every value made, so that one that outlives the trace is found and defused.

NOTE [placeholders are never touched bare]: reading a torch_xla placeholder, or synchronising while
anything derived from one is alive, kills the process. User code therefore only ever sees
``_unsafe_view(placeholder)``, which is the placeholder itself in the HLO, and which, under
``_set_allow_execution(False)``, refuses to be read with an exception.

NOTE [who owns a tensor]: traces nest strictly, and torch_xla numbers its tensors in order of
creation. So a tensor belongs to the innermost trace exactly when its number is not smaller than
the trace's first one. torch.func wraps tensors without passing the mode; their innermost value is
what counts.

NOTE [defusing what leaks]: when the outermost trace ends, ``_clear_pending_irs`` turns whatever is
still alive into placeholder data, which is safe to synchronise over; and each leaked Python tensor
becomes a `Leaked`, which refuses every operation with a `LeakError`.

NOTE [tokens]: a function cached while an enclosing trace was open may hold values of that trace in
its closure. They outlive it as mere tokens, emptied of all but shape and dtype: whenever the
function is run again, `lift` puts the value that then takes their place. There is none for a value
of which the function only asks the shape, or that it only holds.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import types
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode

from xfunc import (
    ambient,
    batching,
    bounds,
    empty,
    functorch,
    purity,
    rules,
    runtime,
    scopes,
    switches,
)
from xfunc.avals import Aval, short
from xfunc.derivatives import check_derivative
from xfunc.errors import (
    LeakError,
    PurityError,
    XfuncError,
    report,
)
from xfunc.identity import function_value
from xfunc.in_place import write_into
from xfunc.indexing import part_of
from xfunc.leaks import Leaked, Token, defuse
from xfunc.leaks import empty as empty_token
from xfunc.locations import Location, in_user_code, line_of, raised_at, user_location
from xfunc.lock import lock
from xfunc.purity import Kind
from xfunc.refusals import explain, operation_name, refusal_of
from xfunc.replacements import REPLACEMENTS
from xfunc.values import (
    check_array,
    is_tracked,
    number_of,
    tensors_in,
)

_LEAVES = frozenset((int, float, bool, type(None), str, torch.dtype, torch.device))
# What may return its argument as it is: the line that made the value stays.
_SAME_VALUE = frozenset(
    (
        *(torch.Tensor.detach, torch.Tensor.contiguous, torch.Tensor.to, torch.detach),
        torch.Tensor.clone,  # no instruction in HLO
    )
)
_SHAPED_LIKE = frozenset((torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like))


class _Thread(threading.local):
    trace: Trace | None = None
    implicit: Any = None


_thread = _Thread()
# By identity: a WeakSet asks whether tensors are equal, which reads them.
_constants: dict[int, weakref.ref[torch.Tensor]] = {}


def as_constant(tensor: torch.Tensor) -> torch.Tensor:
    """Mark device data that belongs to a program: no capture wherever it is used."""
    key = id(tensor)
    _constants[key] = weakref.ref(tensor, lambda _: _constants.pop(key, None))
    return tensor


def _is_constant(tensor: torch.Tensor) -> bool:
    known = _constants.get(id(tensor))
    return known is not None and known() is tensor


def current() -> Trace | None:
    """The innermost open trace of this thread."""
    return _thread.trace


def set_implicit(source: Any) -> Any:
    """Let torch functions of this thread draw from `source` (None: not at all); the one before."""
    before = _thread.implicit
    _thread.implicit = source
    return before


class Trace:
    """One run of a function on placeholders; a context manager."""

    def __init__(
        self,
        name: str,
        frozen_captures: bool = False,
        defined_at: Location | None = None,
        around: tuple[Any, ...] = ambient.NOTHING,
    ):
        self.name, self._defined_at = name, defined_at
        self._around = around  # the mesh in use and the manual region: see `ambient`
        self.captures: list[torch.Tensor] = []
        self.capture_inputs: list[torch.Tensor] = []
        self._in_plain_autograd = False
        self.has_rule = False  # whether a custom_vjp function was differentiated or could be
        self.track_captures = False  # whether captures that require grad are differentiated
        self._frozen = frozen_captures
        self._placeholders: list[tuple[torch.Tensor, torch.Tensor, int, str, int]] = []
        self._substitutes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._tokens: set[int] = set()
        self._wrapped: list[weakref.ref[torch.Tensor]] = []
        self._cached: list[Any] = []
        self._made: dict[int, tuple[weakref.ref[torch.Tensor], Any, types.CodeType, int]] = {}
        self.batching = batching.Batching(self)
        self.known = bounds.Known()  # the integers that stand in the code
        self._stack = contextlib.ExitStack()
        self._parent: Trace | None = None
        self.is_open = False
        # What collects the effects of the function being run (`effects.Collected`), if they may be.
        self.effects: Any = None

    # -- opening and closing ------------------------------------------------------------------

    def __enter__(self) -> Trace:
        with contextlib.ExitStack() as stack:
            stack.enter_context(lock)
            X = runtime.xla()
            self._parent = current()
            if self._parent is None:
                switches.flush_user_work()
                stack.callback(X._clear_pending_irs, str(runtime.device()))
                stack.enter_context(switches.tracing_switches())
                stack.enter_context(switches.young_garbage_only())
                stack.enter_context(switches.derivatives_or_errors())
                stack.enter_context(switches.no_validation_of_distributions())
            stack.enter_context(switches.no_saved_tensors_hooks())
            stack.enter_context(functorch.bottom_level())
            stack.callback(ambient.restore, ambient.restore(self._around))
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            # torch runs backward passes of XLA tensors in a thread of their own, where neither
            # the mode nor the lock of this one would hold.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            stack.enter_context(_Mode(self))
            self._stamps = scopes.Stamps()
            stack.callback(scopes.enter, scopes.enter(""))  # XLA puts the caller's in front.
            self._first_id = X._xla_get_tensor_id(runtime.placeholder(Aval((), torch.bool)))
            _thread.trace = self
            self.is_open = True
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, tb: Any) -> None:
        _thread.trace = self._parent
        self.is_open = False
        self._substitutes.clear()
        self.capture_inputs.clear()
        self._placeholders.clear()
        self._empty_tokens()
        leaks = self._survivors(collect=error is None)
        self._made.clear()
        self._stack.close()
        if leaks:
            self._defuse(leaks, quiet=error is not None)
        if error is not None:
            self._translate(error)

    def _empty_tokens(self) -> None:
        """See NOTE [tokens]."""
        with torch._C.DisableTorchFunction():
            found = [self._made.pop(key)[0] for key in self._tokens & self._made.keys()]
            for ref in (*found, *self._wrapped):
                token = ref()
                if token is None:
                    continue
                empty_token(token, self.name)

    def _survivors(self, collect: bool) -> list[tuple[torch.Tensor, Any, types.CodeType, int]]:
        def alive() -> list[tuple[torch.Tensor, Any, types.CodeType, int]]:
            return [
                (t, func, code, line_of(code, instruction))
                for ref, func, code, instruction in self._made.values()
                if (t := ref()) is not None and t.device.type == "xla"
            ]

        with torch._C.DisableTorchFunction():
            found = alive()
            if found and self._cached:  # What a cached function has come to hold since is a token.
                del found[:]
                for fun in self._cached:
                    self._tokens.update(map(id, function_value(fun)[1]))
                self._empty_tokens()
                found = alive()
            self._cached.clear()
            if found and collect:
                del found[:]
                gc.collect()  # Reference cycles are no leak.
                found = alive()
                if found and gc.get_freeze_count():  # A cycle through something older?
                    del found[:]
                    gc.unfreeze()
                    gc.collect()
                    found = alive()
        return found

    def _defuse(
        self, leaks: list[tuple[torch.Tensor, Any, types.CodeType, int]], quiet: bool
    ) -> None:
        first = None
        # The message tells of one: rather of a value that the user's own line made.
        for tensor, func, code, line in sorted(leaks, key=lambda leak: not in_user_code(leak[2])):
            with torch._C.DisableTorchFunction():
                try:
                    what = f"{short(tensor)} made by {operation_name(func)}"
                except RuntimeError:  # Its reading was refused half-way.
                    what = f"made by {operation_name(func)}"
            text = report(
                f"a traced value, {what}, outlived its trace",
                "return the value from the function instead of storing it outside: it stands for "
                "an input of the next call, not for data.",
                function=self.name,
                at=Location(code.co_filename, line, code.co_name)
                if in_user_code(code) or self._defined_at is None
                else self._defined_at,
            )
            first = first or text
            defuse(tensor, text)
        if not quiet:
            raise LeakError(first)

    def _translate(self, error: BaseException) -> None:
        """Re-raise torch_xla's refusals, met where the mode does not see, as errors of ours."""
        if isinstance(error, (RuntimeError, UserWarning)) and not isinstance(error, XfuncError):
            refusal = refusal_of(None, error, self.name, raised_at(error) or user_location())
            if refusal is not None:
                raise refusal from error

    # -- inputs -------------------------------------------------------------------------------

    def new_input(self, aval: Any, label: str, watched: bool = False) -> torch.Tensor:
        """A fresh placeholder, in the form in which user code may see it.

        If `watched`, plain autograd differentiates with respect to it.
        """
        # The placeholder is of the bottom level, wherever a capture turns up.
        with torch._C.DisableTorchFunction(), functorch.bottom_level():
            raw = runtime.placeholder(aval)
            if watched:
                raw.requires_grad_()
            view = torch.ops.aten._unsafe_view.default(raw, list(aval.shape))
            number = runtime.xla()._xla_get_tensor_id(view)
        self._placeholders.append((raw, view, view._version, label, number))
        self.remember(view, None, sys._getframe(1))
        return view

    def raw_inputs(self) -> list[torch.Tensor]:
        """The bare placeholders, in order of creation; for lowering only."""
        return [raw for raw, *_ in self._placeholders]

    def substitute(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """From now on, `value` stands for the captured `tensor`."""
        self._substitutes[id(tensor)] = (tensor, value)

    def keep_tokens(self, tensors: Sequence[torch.Tensor], fun: Any) -> None:
        """A cached function holds these: see NOTE [tokens]."""
        trace: Trace | None = self
        while trace is not None:
            trace._cached.append(fun)
            trace._tokens.update(map(id, tensors))
            # Wrappers of torch.func are made without passing the mode.
            trace._wrapped += [
                weakref.ref(t) for t in tensors if functorch.is_wrapped(t) and trace.owns(t)
            ]
            trace = trace._parent

    def lift(self, tensor: torch.Tensor) -> torch.Tensor:
        """What stands for `tensor` in this trace; a tensor from outside becomes an input."""
        key = id(tensor)
        substitute = self._substitutes.get(key)
        if substitute is not None:
            return substitute[1]
        made = self._made.get(key)
        if made is not None and made[0]() is tensor:
            return tensor
        if self.owns(tensor):
            return tensor
        return self._capture(tensor)

    def owns(self, tensor: torch.Tensor) -> bool:
        """See NOTE [who owns a tensor]."""
        if isinstance(tensor, Leaked):
            raise LeakError(tensor._xfunc_leak)
        with torch._C.DisableTorchFunction():
            while functorch.is_wrapped(tensor):
                tensor = functorch.unwrapped(tensor)
            if tensor.device.type != "xla":
                made = self._made.get(id(tensor))
                return made is not None and made[0]() is tensor
            return number_of(tensor) >= self._first_id

    def _capture(self, tensor: torch.Tensor) -> torch.Tensor:
        if _is_constant(tensor):
            return tensor
        if self._frozen:
            raise PurityError(
                report(
                    f"a second run of the function used a tensor ({short(tensor)}) that the first "
                    "run did not",
                    "make the function do the same each time it is called.",
                    function=self.name,
                    at=user_location(),
                )
            )
        with torch._C.DisableTorchFunction():
            check_array(tensor, self.name)
            tracked = self.track_captures and is_tracked(tensor)
            value = self.new_input(tensor, "a captured tensor", tracked)
        self.captures.append(tensor)
        self.capture_inputs.append(value)
        self._substitutes[id(tensor)] = (tensor, value)
        return value

    def is_inside(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a value of this trace or of one around it."""
        trace: Trace | None = self
        while trace._parent is not None:
            trace = trace._parent
        return trace.owns(tensor)

    def may_use_plain_autograd(self) -> bool:
        """Whether nothing differentiates here yet, by plain autograd or a transform."""
        busy = self.track_captures or self._in_plain_autograd
        return not busy and functorch.top_level() is None

    @contextlib.contextmanager
    def plain_autograd(self) -> Iterator[None]:
        """Differentiate by plain autograd; what is differentiated inside uses transforms."""
        self._in_plain_autograd = True
        try:
            yield
        finally:
            self._in_plain_autograd = False

    def mode(self) -> TorchFunctionMode:
        """The mode, to be entered once more where torch has left it to call Python code."""
        return _Mode(self)

    @property
    def implicit(self) -> Any:
        """What draws in place of the global generator: see `set_implicit`."""
        source = _thread.implicit
        if source is not None and source.trace is not None and not source.trace.is_open:
            return None  # Left open by a trace that has ended.
        return source

    # -- values -------------------------------------------------------------------------------

    def register(self, outputs: Any) -> None:
        """Remember values made in this trace without passing the mode."""
        frame = sys._getframe(1)
        for t in outputs:
            self._stamps.stamp(t, frame)
            self.remember(t, None, frame)

    def remember(self, tensor: torch.Tensor, func: Any, frame: types.FrameType) -> None:
        # One of these for each operation traced: no walk over frames here, no count of lines.
        self._made[id(tensor)] = (weakref.ref(tensor), func, frame.f_code, frame.f_lasti)

    def made(self) -> dict[int, weakref.ref[torch.Tensor]]:
        """What has been made so far."""
        return {key: entry[0] for key, entry in self._made.items()}

    def is_input(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is an argument or a capture."""
        return any(view is tensor for _, view, *_ in self._placeholders)

    # -- what the mode does -------------------------------------------------------------------

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A torch function called by traced code."""
        kind = purity.kind_of(func)
        if kind is Kind.METADATA:
            if type(args[0]) is Token and id(args[0]) in self._substitutes:
                args = (self.lift(args[0]), *args[1:])
            return func(*args, **kwargs)
        if kind is Kind.FACTORY:
            if read := purity.sizes_read(func, args):
                args = (*rules.check_sizes(self, func, args[:read]), *args[read:])
            if kwargs.get("device") is None and not _like(func):
                kwargs = {**kwargs, "device": runtime.device()}
        elif kind is Kind.SIZED:
            args = (args[0], *rules.check_sizes(self, func, args[1:]))
            kwargs = dict(zip(kwargs, rules.check_sizes(self, func, kwargs.values()), strict=True))
        elif kind is not Kind.PLAIN and (kind is not Kind.INDEX or purity.has_mask(args[1])):
            if any(isinstance(t, Leaked) for t in tensors_in(args, kwargs)):
                args, kwargs = self.lift_all(args, kwargs)
            done, result = rules.special(self, kind, func, args, kwargs)
            if done:
                return result
        args, kwargs = self.lift_all(args, kwargs)
        if bounds.checks(func):
            self.known.check(func, self.name, args, kwargs)
        if kind is Kind.IN_PLACE or kwargs.get("out") is not None:
            self.batching.prepare(func, args, kwargs)
        if func in purity.ARITHMETIC and functorch.JVP in functorch.levels():
            args = rules.typed_numbers(self, args)
        try:
            out = empty.reduce(func, args, kwargs) if empty.is_reduction(func) else NotImplemented
            if out is NotImplemented:
                run = REPLACEMENTS.get(func, func)
                if func is torch.autograd.grad and self._around[1] is not None:
                    run = _typed_grad()
                into = kwargs.get("out") is not None
                out = write_into(run, args, kwargs) if into else run(*args, **kwargs)
        except Exception as error:
            beside = (*args[1:], *kwargs.values())
            refusal = refusal_of(func, error, self.name, user_location(), beside)
            if refusal is None:
                explain(error, func, args, kwargs, self.name)
                raise
            raise refusal from error
        if self._around[1] is not None and func in _SHAPED_LIKE:
            out = _typed_like(out, args[0] if args else kwargs["input"])
        if self.batching.is_open and kind is not Kind.IN_PLACE:
            self.batching.note(out, REPLACEMENTS.get(func, func), args, kwargs)
        if isinstance(out, torch.Tensor):
            frame = sys._getframe(2)
            if func not in _SAME_VALUE:
                self._stamps.stamp(out, frame)
            self.remember(out, func, frame)
            self.known.follow(kind, func, args, kwargs, out)
        elif isinstance(out, (tuple, list)):
            frame = sys._getframe(2)
            stamped = func is torch.autograd.grad and self._stamps.watching
            for o in out:
                if isinstance(o, torch.Tensor):
                    if not stamped:
                        self._stamps.stamp(o, frame)
                    self.remember(o, func, frame)
        if kind is Kind.FOREIGN:
            check_derivative(func, args, kwargs, out, self.name)
            self.check_unmutated(func)
        elif kind is Kind.IN_PLACE or "out" in kwargs or "inplace" in kwargs:
            written = part_of(kwargs.get("out", args[0] if args else None))
            if written is not None:
                whole, index, part = written
                self.call(torch.Tensor.__setitem__, (whole, index, part.clone()), {})
            self.check_unmutated(func)
        return out

    def lift_all(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # One of these for each operation traced: the common cases come first.
        made, substitutes = self._made, self._substitutes
        lifted = []
        for a in args:
            kind = type(a)
            if kind is torch.Tensor:
                key = id(a)
                entry = made.get(key)
                if entry is None or entry[0]() is not a or key in substitutes:
                    a = self.lift(a)
            elif kind in _LEAVES:
                pass
            elif isinstance(a, torch.Tensor):
                a = self.lift(a)
            elif kind is tuple or kind is list:
                a = kind(self.lift_all(a, {})[0])
            lifted.append(a)
        if kwargs:
            values, _ = self.lift_all(tuple(kwargs.values()), {})
            kwargs = dict(zip(kwargs, values, strict=True))
        return tuple(lifted), kwargs

    def refuse(self, error: type[XfuncError], problem: str, repair: str) -> NoReturn:
        """Raise an error of this trace, at the user's line."""
        raise error(report(problem, repair, function=self.name, at=user_location()))

    def check_unmutated(self, func: Any = None) -> None:
        """Raise if an input has been changed in place."""
        # Lists of tensors are changed without a sign to be seen but a new number.
        numbered = func is None or func.__name__.startswith("_foreach_")
        for _, view, version, label, number in self._placeholders:
            if view._version != version or (numbered and number != number_of(view)):
                what = "something" if func is None else operation_name(func)
                self.refuse(
                    PurityError,
                    f"{what} changes {label} ({short(view)}) in place",
                    "compute a new tensor and return it (x = x + 1 instead of x += 1; "
                    "torch.index_put instead of x[i] = y).",
                )


class _Mode(TorchFunctionMode):
    """Hands every torch call of traced code to its trace."""

    def __init__(self, trace: Trace):
        self._trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _thread.trace is not self._trace:  # A nested trace, whose own mode has seen the call.
            return func(*args, **(kwargs or {}))
        return self._trace.call(func, args, kwargs or {})


# Where traced code uses torch.compile: dynamo is to compile neither the tracer nor what it calls.
functorch.never_compile(_Mode.__torch_function__)


def _like(func: Any) -> bool:
    return func.__name__.endswith("_like")


def _typed_grad() -> Any:
    """What ``torch.autograd.grad`` does in a region: as `xf.grad`, if the user's code calls it."""
    from xfunc import vma

    own = functorch.takes_own_gradient() or not vma.checked()
    return torch.autograd.grad if own else vma.autograd_grad


def _typed_like(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """What is made after the shape of another value of a region varies as that does, as in JAX."""
    from xfunc import vma  # which rests on this module

    return vma.vary_like(out, x) if vma.checked() else out
