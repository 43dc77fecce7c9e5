"""Handling of traced values that outlive their trace."""

from __future__ import annotations

import contextlib
import gc
import types
import weakref
from collections.abc import Callable, Iterable

import torch

from xfunc.cache.identity import function_value
from xfunc.core import device
from xfunc.core.avals import short
from xfunc.core.locations import Location, in_user_code, line_of
from xfunc.errors import LeakError, format_error
from xfunc.torchlib import functorch, torch_functions
from xfunc.torchlib.torch_functions import Kind, operation_name
from xfunc.torchlib.values import tensors_in
from xfunc.torchlib.weak_references import held
from xfunc.trace import recorder
from xfunc.trace.leak_holders import owner_of


class Leaked(torch.Tensor):
    """A traced value after the end of its trace: any use raises."""

    _xfunc_leak: str

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if torch_functions.kind_of(func) is Kind.REPR:
            return "<traced value that outlived its trace>"
        flat = [a for a in tensors_in(args, kwargs or {}) if isinstance(a, Leaked)]
        raise error_of(flat[0]) if flat else LeakError("a traced value outlived its trace")


class StaleCapture(Leaked):
    """The remains of a value in a cached function: see NOTE [stale captures] in `tracing`."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kind = torch_functions.kind_of(func)
        if kind is Kind.DEVICE:
            return recorder.device()
        if kind is Kind.METADATA:
            if func == torch_functions.IS_XLA:
                return True
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)


def error_of(leaked: Leaked) -> LeakError:
    """The error that using a leaked value raises."""
    return LeakError(leaked._xfunc_leak)


def defuse(tensor: torch.Tensor, text: str) -> None:
    """Make any use of a leaked value raise a `LeakError` with this text."""
    tensor.__class__ = Leaked
    vars(tensor)["_xfunc_leak"] = text


def fill(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a traced value could be made the holder of this data, which has no other."""
    with contextlib.suppress(RuntimeError):
        functorch.swap_contents(tensor, value)
        vars(tensor)["_xfunc_filled"] = True
        return True
    return False  # It is shared with C++.


def was_filled(tensor: torch.Tensor) -> bool:
    """Whether a tensor was a traced value once, and has data now."""
    return "_xfunc_filled" in vars(tensor)


def empty(token: torch.Tensor, name: str) -> None:
    """Make a `StaleCapture` of a value that a cached function holds.

    Args:
        token: the value.
        name: of the traced function.
    """
    with contextlib.suppress(RuntimeError):  # It is shared with C++, but is defused too.
        nothing = torch.empty(token.shape, dtype=token.dtype, device="meta")
        functorch.swap_contents(token, nothing)
    token.__class__ = StaleCapture
    vars(token)["_xfunc_leak"] = format_error(
        "a traced value, kept by a cached function, was used outside its trace",
        "return the value from the function instead of storing it outside.",
        function=name,
        at=None,
    )


Leak = tuple[torch.Tensor, object, types.CodeType, int]
"""A value, the torch function that made it, and the code and the line that called that."""


def _uncollected(leaks: list[Leak], alive: Callable[[], list[Leak]]) -> list[Leak]:
    """The leaks that are not garbage: reference cycles are not leaks. Empties the list given.

    Python's collector does not follow references from C++. If a cycle is held by a node of torch's
    graph, and that is held by another cycle, each collection frees only the outermost one.
    """
    before = len(leaks) + 1
    while leaks and len(leaks) < before:
        before = len(leaks)
        del leaks[:]  # It would keep them alive.
        gc.collect()
        leaks = alive()
    return leaks


class TracedValues:
    """The values made in a trace.

    Attributes:
        entries: the arguments of `register`, by the id of the value.
    """

    def __init__(self, name: str, defined_at: Location | None):
        self._name, self._defined_at = name, defined_at
        self.entries: dict[int, tuple[weakref.ref[torch.Tensor], object, types.CodeType, int]] = {}
        self._tokens: set[int] = set()
        self._wrapped: list[weakref.ref[torch.Tensor]] = []
        self._cached: list[object] = []
        self._has_owner = True  # of a value that outlives the trace, as far as is known

    def register(self, tensor: torch.Tensor, func: object, frame: types.FrameType) -> None:
        """Note that a torch function (or None), called in a frame, made a value."""
        # This runs for each traced operation, so it neither walks frames nor counts lines.
        self.entries[id(tensor)] = (weakref.ref(tensor), func, frame.f_code, frame.f_lasti)

    def __contains__(self, tensor: torch.Tensor) -> bool:
        entry = self.entries.get(id(tensor))
        return entry is not None and entry[0]() is tensor

    def so_far(self) -> dict[int, weakref.ref[torch.Tensor]]:
        """The values made so far, by id."""
        return {key: entry[0] for key, entry in self.entries.items()}

    def keep_tokens(
        self, tensors: Iterable[torch.Tensor], wrapped: Iterable[torch.Tensor], fun: object
    ) -> None:
        """Note that a cached function holds these, and torch.func wrappers that are not entries."""
        self._cached.append(fun)
        self._tokens.update(map(id, tensors))
        self._wrapped += map(weakref.ref, wrapped)

    def end(self, collect: bool) -> list[Leak]:
        """End the trace: forget everything, and return the leaked values."""
        self._empty_tokens()
        result = self._survivors(collect)
        self.entries.clear()
        return result

    def _empty_tokens(self) -> None:
        """See NOTE [stale captures] in `tracing`."""
        with torch._C.DisableTorchFunction():
            found = [self.entries.pop(key)[0] for key in self._tokens & self.entries.keys()]
            for ref in (*found, *self._wrapped):
                token = held(ref)
                if token is None:
                    continue
                empty(token, self._name)

    def _survivors(self, collect: bool) -> list[Leak]:
        def alive() -> list[Leak]:
            return [
                (t, func, code, line_of(code, instruction))
                for ref, func, code, instruction in self.entries.values()
                if (t := held(ref)) is not None and t.device.type == device.TYPE
            ]

        with torch._C.DisableTorchFunction():
            result = alive()
            if result and self._cached:  # values a cached function now holds are tokens
                del result[:]
                for fun in self._cached:
                    self._tokens.update(map(id, function_value(fun)[1]))
                self._empty_tokens()
                result = alive()
            self._cached.clear()
            if result and collect:
                result = _uncollected(result, alive)
                if result:  # Their holders may be older.
                    gc.unfreeze()
                    tensors = [t for t, *_ in result]
                    self._has_owner = owner_of(tensors, (result, *result)) is not None
                    del tensors
                    if self._has_owner:  # unless that is garbage: to look at all takes long
                        result = _uncollected(result, alive)
        return result

    def defuse(self, leaks: list[Leak], quiet: bool) -> None:
        """Make any use of leaked values raise; unless `quiet`, raise for finding them."""
        owner = None
        if not quiet and self._has_owner:
            owner = owner_of([t for t, *_ in leaks], (leaks, *leaks))
        message = None
        for tensor, func, code, line in leaks:
            with torch._C.DisableTorchFunction():
                try:
                    what = f"{short(tensor)} made by {operation_name(func)}"
                except RuntimeError:  # Reading it was refused half-way.
                    what = f"made by {operation_name(func)}"
            holder = ""
            if owner is not None and tensor is owner.tensor:
                holder = f", held by {owner.description}"
            text = format_error(
                f"a traced value, {what}, outlived its trace{holder}",
                "return the value from the function instead of storing it outside: it stands for "
                "an input of the next call, not for data.",
                function=self._name,
                at=Location(code.co_filename, line, code.co_name)
                if in_user_code(code) or self._defined_at is None
                else self._defined_at,
            )
            message = text if holder else message
            defuse(tensor, text)
        if message is not None:
            raise LeakError(message)
