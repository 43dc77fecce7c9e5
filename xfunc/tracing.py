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

from xfunc import functorch, purity, runtime, scopes
from xfunc.avals import Aval, short
from xfunc.errors import (
    ConcretizationError,
    LeakError,
    PurityError,
    UnsupportedOpError,
    XfuncError,
    report,
)
from xfunc.identity import function_value
from xfunc.literals import literal
from xfunc.locations import Location, in_user_code, line_of, raised_at, user_location
from xfunc.purity import Kind
from xfunc.refusals import explain, operation_name, refusal_of
from xfunc.replacements import REPLACEMENTS
from xfunc.values import (
    check_array,
    find_traced,
    is_tracked,
    number_of,
    on_device,
    refill,
    tensors_in,
)

_LEAVES = frozenset((int, float, bool, type(None), str, torch.dtype, torch.device))
# What may return its argument as it is: the line that made the value stays.
_SAME_VALUE = frozenset(
    (torch.Tensor.detach, torch.Tensor.contiguous, torch.Tensor.to, torch.detach)
)
_thread = threading.local()
_constants: weakref.WeakSet[Any] = weakref.WeakSet()


def as_constant(tensor: torch.Tensor) -> torch.Tensor:
    """Mark device data that belongs to a program: no capture wherever it is used."""
    _constants.add(tensor)
    return tensor


def current() -> Trace | None:
    """The innermost open trace of this thread."""
    return getattr(_thread, "trace", None)


def set_implicit(source: Any) -> Any:
    """Let torch functions of this thread draw from `source` (None: not at all); the one before."""
    before = getattr(_thread, "implicit", None)
    _thread.implicit = source
    return before


class Leaked(torch.Tensor):
    """A traced value whose trace has ended: any use raises."""

    _xfunc_leak: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if purity.kind_of(func) is Kind.REPR:
            return "<traced value that outlived its trace>"
        flat = [a for a in tensors_in(args, kwargs or {}) if isinstance(a, Leaked)]
        raise LeakError(flat[0]._xfunc_leak if flat else "a traced value outlived its trace")


class _Token(Leaked):
    """What is left of a value that a cached function holds: see NOTE [tokens]."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if purity.kind_of(func) is Kind.METADATA:
            if func in purity.DEVICE:
                return runtime.device() if func == purity.DEVICE[0] else True
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


class Trace:
    """One run of a function on placeholders; a context manager."""

    def __init__(
        self, name: str, frozen_captures: bool = False, defined_at: Location | None = None
    ):
        self.name, self._defined_at = name, defined_at
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
        self._stack = contextlib.ExitStack()
        self._parent: Trace | None = None
        self.is_open = False
        # What collects the effects of the function being run (`effects.Collected`), if they may be.
        self.effects: Any = None

    # -- opening and closing ------------------------------------------------------------------

    def __enter__(self) -> Trace:
        with contextlib.ExitStack() as stack:
            stack.enter_context(runtime.lock)
            X = runtime.xla()
            self._parent = current()
            if self._parent is None:
                _flush_user_work()
                stack.callback(X._clear_pending_irs, str(runtime.device()))
                stack.enter_context(_tracing_switches())
                stack.enter_context(_young_garbage_only())
            stack.enter_context(functorch.bottom_level())
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
                with contextlib.suppress(RuntimeError):  # Shared with C++: defused all the same.
                    empty = torch.empty(token.shape, dtype=token.dtype, device="meta")
                    functorch.swap_contents(token, empty)
                token.__class__ = _Token
                vars(token)["_xfunc_leak"] = report(
                    "a traced value, kept by a cached function, was used outside of its trace",
                    "return the value from the function instead of storing it outside.",
                    function=self.name,
                )

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
            refill(tensor)
            tensor.__class__ = Leaked
            vars(tensor)["_xfunc_leak"] = text
        if not quiet:
            raise LeakError(first)

    def _translate(self, error: BaseException) -> None:
        """Re-raise torch_xla's refusals, met where the mode does not see, as errors of ours."""
        if isinstance(error, RuntimeError) and not isinstance(error, XfuncError):
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
        self._remember(view, None, sys._getframe(1))
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
                weakref.ref(t) for t in tensors if functorch.is_wrapped(t) and trace._owns(t)
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
        if self._owns(tensor):
            return tensor
        return self._capture(tensor)

    def _owns(self, tensor: torch.Tensor) -> bool:
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
        if tensor in _constants:
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
        return trace._owns(tensor)

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

    # -- values -------------------------------------------------------------------------------

    def register(self, outputs: Any) -> None:
        """Remember values made in this trace without passing the mode."""
        frame = sys._getframe(1)
        for t in outputs:
            self._stamps.stamp(t, frame)
            self._remember(t, None, frame)

    def _remember(self, tensor: torch.Tensor, func: Any, frame: types.FrameType) -> None:
        # One of these for each operation traced: no walk over frames here, no count of lines.
        self._made[id(tensor)] = (weakref.ref(tensor), func, frame.f_code, frame.f_lasti)

    # -- what the mode does -------------------------------------------------------------------

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A torch function called by traced code."""
        kind = purity.kind_of(func)
        if kind is Kind.METADATA:
            if type(args[0]) is _Token and id(args[0]) in self._substitutes:
                args = (self.lift(args[0]), *args[1:])
            return func(*args, **kwargs)
        if kind is Kind.FACTORY:
            if purity.reads_arguments(func):
                for t in tensors_in(args, {}):
                    self._refuse_read(operation_name(func), t)
            if kwargs.get("device") is None and not _like(func):
                kwargs = {**kwargs, "device": runtime.device()}
        elif kind is not Kind.PLAIN and (kind is not Kind.INDEX or purity.has_mask(args[1])):
            if any(isinstance(t, Leaked) for t in tensors_in(args, kwargs)):
                args, kwargs = self._lift_all(args, kwargs)
            done, result = self._special(kind, func, args, kwargs)
            if done:
                return result
        args, kwargs = self._lift_all(args, kwargs)
        if func in purity.ARITHMETIC and functorch.JVP in functorch.levels():
            args = self._typed_numbers(args)
        try:
            out = REPLACEMENTS.get(func, func)(*args, **kwargs)
        except Exception as error:
            refusal = refusal_of(func, error, self.name, user_location())
            if refusal is None:
                explain(error, func, args, kwargs, self.name)
                raise
            raise refusal from error
        if isinstance(out, torch.Tensor):
            frame = sys._getframe(2)
            if func not in _SAME_VALUE:
                self._stamps.stamp(out, frame)
            self._remember(out, func, frame)
        elif isinstance(out, (tuple, list)):
            frame = sys._getframe(2)
            stamped = func is torch.autograd.grad and self._stamps.watching
            for o in out:
                if isinstance(o, torch.Tensor):
                    if not stamped:
                        self._stamps.stamp(o, frame)
                    self._remember(o, func, frame)
        if kind is Kind.IN_PLACE or "out" in kwargs or "inplace" in kwargs:
            self.check_unmutated(func)
        return out

    # NOTE [numbers in forward mode]
    # torch.func.jvp makes the tangent of `0.5 * x` float64 where x is a 0-d float32 tensor: the
    # tangent meets the number as a tensor that decides the dtype as much as x does. A 0-d tensor
    # of the dtype of x in place of the number has no say.
    def _typed_numbers(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments of arithmetic, numbers beside a 0-d floating tensor as tensors of its dtype."""
        like = next((a for a in args if isinstance(a, torch.Tensor)), None)
        if like is None or like.ndim or not like.is_floating_point():
            return args
        typed = {"dtype": like.dtype}
        return tuple(
            self.call(torch.full, ((), a), typed) if type(a) in (int, float, bool) else a
            for a in args
        )

    def _lift_all(
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
                a = kind(self._lift_all(a, {})[0])
            lifted.append(a)
        if kwargs:
            values, _ = self._lift_all(tuple(kwargs.values()), {})
            kwargs = dict(zip(kwargs, values, strict=True))
        return tuple(lifted), kwargs

    def _special(
        self, kind: Kind, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bool, Any]:
        """Calls that need more than lifting: (whether it was dealt with, the result)."""
        name = operation_name(func)
        tensors = [t for t in tensors_in(args, kwargs) if self._is_traced(t)]
        if kind is Kind.LITERAL:
            return self._make_literal(func, args, kwargs)
        if kind is Kind.RANDOM and purity.is_random_call(func, args, kwargs):
            return True, self._draw(func, args, kwargs)
        if func is torch.Tensor.__setitem__ and purity.is_masked_fill(args):
            # torch_xla would look for the places of the mask; a fill needs no places.
            x, mask, value = args
            mask = mask.reshape(*mask.shape, *(1,) * (x.ndim - mask.ndim))
            return True, self.call(torch.Tensor.masked_fill_, (x, mask, value), {})
        if kind is Kind.BACKWARD:
            self._refuse(
                PurityError,
                f"{name} writes gradients into `.grad`, a side effect",
                "use xf.grad or xf.value_and_grad, which return them; or call backward outside.",
            )
        if not tensors:
            return False, None
        if func == purity.GRAD_FN:
            # The graph belongs to the trace: a node kept beyond it would compute on nothing.
            return True, None
        if func == purity.DATA:
            return True, self.call(torch.Tensor.detach, args, {})  # Shares the version counter.
        if func == purity.SET_DATA:
            self._refuse(
                PurityError,
                f"assigning to .data changes a traced value ({short(args[0])}) in place",
                "compute a new tensor and return it.",
            )
        if kind is Kind.REPR:
            return self._show(func, args)
        if kind is Kind.COPY:
            return True, self.call(torch.clone, (args[0],), {})
        if func is torch.Tensor.copy_ and args[0].device.type == "cpu" and self._owns(args[0]):
            self._refuse_read("copying to the host with Tensor.copy_", args[1])
        reads = kind is Kind.READ or (kind is Kind.MOVE and purity.leaves_device(args, kwargs))
        if reads:
            self._refuse_read(name, tensors[0])
        if kind is Kind.MOVE and name == "type" and len(args) + len(kwargs) == 1:
            self._refuse_read("Tensor.type()", tensors[0])
        data_shaped = kind is Kind.DATA_SHAPED or (kind is Kind.INDEX and purity.has_mask(args[1]))
        if data_shaped:
            what = "indexing with a boolean mask" if kind is Kind.INDEX else name
            self._refuse(
                UnsupportedOpError,
                f"the shape of the result of {what} depends on data",
                "keep the shape fixed: torch.where(mask, x, 0) instead of x[mask], torch.sort or "
                "torch.topk instead of unique or nonzero.",
            )
        return False, None

    def _draw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A draw from the global generator: from the implicit key, if there is one."""
        name, source = operation_name(func), getattr(_thread, "implicit", None)
        if source is not None and source.trace is not None and not source.trace.is_open:
            source = None  # Left open by a trace that has ended.
        if kwargs.get("generator") is not None:
            self._refuse(
                PurityError,
                f"{name} was given a torch.Generator, whose state cannot be traced",
                purity.KEYED,
            )
        if source is not None and source.trace is not self:
            self._refuse(
                PurityError,
                f"{name} draws from a key of xf.random.implicit in a function that began to be "
                "traced after that, and would draw the same numbers each time it runs",
                "open `with xf.random.implicit(key):` inside that function, with a key that is "
                "passed in (for a scan, one for each step: xs=xf.random.split(key, n)).",
            )
        out = NotImplemented
        if source is not None:
            args, kwargs = self._lift_all(args, kwargs)
            with _Mode(self):
                out = source.draw(func, args, kwargs)
        if out is NotImplemented:
            covered = "" if source is None else ", and xf.random.implicit does not cover it"
            self._refuse(
                PurityError,
                f"{name} draws from the global random generator, which a traced function may not"
                f"{covered}",
                purity.KEYED
                if source is None
                else "draw with a key: xf.random.uniform(key, shape).",
            )
        return out

    def _show(self, func: Any, args: tuple[Any, ...]) -> tuple[bool, Any]:
        if func is torch.Tensor.__format__ and args[1]:
            self._refuse_read(f"formatting with {args[1]!r}", args[0])
        return True, f"Traced<{short(args[0])}>"

    def _is_traced(self, tensor: torch.Tensor) -> bool:
        """Whether reading `tensor` would read an input of the program."""
        if tensor.device.type == "xla":
            return True
        return not self._owns(tensor)

    def _refuse_read(self, name: str, tensor: torch.Tensor) -> NoReturn:
        self._refuse(
            ConcretizationError,
            f"{name} reads a traced value ({short(tensor)}), which has no data",
            "compute with tensors (torch.where instead of `if`), return the value and read it "
            "outside, or pass it as a static argument.",
        )

    def _refuse(self, error: type[XfuncError], problem: str, repair: str) -> NoReturn:
        raise error(report(problem, repair, function=self.name, at=user_location()))

    def _make_literal(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bool, Any]:
        """A tensor of Python data becomes a constant of the program: nothing is transferred."""
        data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
        where = kwargs.get("device")
        if isinstance(data, torch.Tensor) or not on_device(where):
            return False, None
        traced = find_traced(data)
        if traced is not None:
            self._refuse(
                ConcretizationError,
                f"{operation_name(func)} reads traced values ({short(traced)}) out of a "
                "Python sequence",
                "use torch.stack.",
            )
        kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "requires_grad")}
        with torch._C._DisableFuncTorch():  # Inside a transform, even a fresh tensor is wrapped.
            out = literal(func(*args, **kwargs))
        self._remember(out, func, sys._getframe(3))
        return True, out

    def check_unmutated(self, func: Any = None) -> None:
        """Raise if an input has been changed in place."""
        # Lists of tensors are changed without a sign to be seen but a new number.
        numbered = func is None or func.__name__.startswith("_foreach_")
        for _, view, version, label, number in self._placeholders:
            if view._version != version or (numbered and number != number_of(view)):
                what = "something" if func is None else operation_name(func)
                self._refuse(
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


@contextlib.contextmanager
def _tracing_switches() -> Iterator[None]:
    """torch_xla's process-wide switches, as tracing needs them."""
    X = runtime.xla()
    numbers = X._get_xla_all_numbers_special_scalars()
    allowed, eager = X._get_allow_execution(), X._get_use_eager_mode()
    X._set_xla_all_numbers_special_scalars(True)  # Python numbers: constants, not transfers.
    X._set_allow_execution(False)
    X._set_use_eager_mode(False)
    try:
        yield
    finally:
        X._set_xla_all_numbers_special_scalars(numbers)
        X._set_allow_execution(allowed)
        X._set_use_eager_mode(eager)


@contextlib.contextmanager
def _young_garbage_only() -> Iterator[None]:
    """Let the garbage collector look only at objects made from now on.

    Half of all traces leave reference cycles behind. Collecting them takes 4 ms then; with all the
    objects of torch and its friends to look through it takes 260.
    """
    if gc.get_freeze_count():  # Someone else has frozen objects, and may not want them back.
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _flush_user_work() -> None:
    """Let the user's own pending lazy tensors compute: see NOTE [defusing what leaks]."""
    # It fails on a tensor that lost its computation to a refused read and is still held somewhere.
    with contextlib.suppress(RuntimeError):
        runtime.xla()._xla_sync_live_tensors(str(runtime.device()), [], False)


def _like(func: Any) -> bool:
    return func.__name__.endswith("_like")
