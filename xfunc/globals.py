"""The globals that a function names, as part of what its programs depend on.

Python looks a global up when the function runs; a program has it built in. In a notebook, where
everything is global, rebinding a name or redefining a helper must make a new program, or `xf.grad`
would go on computing with what is gone. So each function has a guard (see `xfunc.guards`) on the
globals that it, and the user's functions that it names, refer to.

Modules, and classes and functions of libraries under their own names, are taken not to change; a
tensor counts by identity, other values as in a closure (see `xfunc.cache`).

NOTE [volatile globals]: a global that the function itself changed while it was being traced, such
as a count of its runs, no longer counts.
"""

from __future__ import annotations

import builtins
import operator
import types
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from xfunc.guards import MAX_STATES, State
from xfunc.identity import StateWalk, Wrapper, functions_in
from xfunc.locations import in_user_code

_MISSING = object()


class Globals:
    """The guard of a function on the globals that it names."""

    what = "a global"

    def __init__(self) -> None:
        # (id of the globals, name) -> the globals, kept alive.
        self._places: dict[tuple[int, str], dict[str, Any]] = {}
        self._volatile: set[tuple[int, str]] = set()
        self._states: dict[Hashable, State] = {}
        self._last: list[Any] = []
        self._state: State | None = None

    def watch(self, fun: Any) -> bool:
        """Add what `fun`, and all that it holds and names, refers to; whether there is anything."""
        for place, namespace in _named(functions_in(fun)):
            if place not in self._places and place not in self._volatile:
                self._places[place] = namespace
                self._state = None
        return bool(self._places)

    def snapshot(self) -> dict[tuple[int, str], Hashable]:
        """What each global is now."""
        return {p: _value(d.get(p[1], _MISSING)) for p, d in self._places.items()}

    def note_changes(self, before: dict[tuple[int, str], Hashable]) -> None:
        """See NOTE [volatile globals]."""
        for place, value in before.items():
            namespace = self._places[place]
            if _value(namespace.get(place[1], _MISSING)) != value:
                del self._places[place]
                self._volatile.add(place)
                self._state = None

    def __call__(self) -> State:
        now = [d.get(name, _MISSING) for (_, name), d in self._places.items()]
        state = self._state
        if state is None or not all(map(operator.is_, now, self._last)):
            state = self._look(now)
        return state

    def _look(self, now: list[Any]) -> State:
        walk = StateWalk()
        names = [name for _, name in self._places]
        value = tuple([(n, walk.value(x)) for n, x in zip(names, now, strict=True)])
        state = self._states.setdefault(value, State(value))
        if len(self._states) > MAX_STATES:
            del self._states[next(iter(self._states))]
        # Containers may change without a name being rebound: look again each time.
        self._last, self._state = now, None if walk.containers else state
        return state


def _value(x: Any) -> Hashable:
    return StateWalk().value(x)


def _named(functions: Iterable[types.FunctionType]) -> Iterator[tuple[tuple[int, str], Any]]:
    """The globals that functions of the user's refer to, and the functions among those."""
    todo, seen = list(functions), set()
    while todo:
        fun = todo.pop()
        if fun in seen or not in_user_code(fun.__code__):
            continue
        seen.add(fun)
        namespace = fun.__globals__
        for name in _names(fun.__code__):
            x = namespace.get(name, _MISSING)
            if x is _MISSING or _is_fixed(x, name):
                continue
            yield (id(namespace), name), namespace
            todo += functions_in(x) if isinstance(x, (types.FunctionType, Wrapper)) else ()


def _names(code: types.CodeType) -> Iterator[str]:
    """Names that code looks up, globals among them."""
    yield from (n for n in code.co_names if not hasattr(builtins, n))
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _names(const)


def _is_fixed(x: Any, name: str) -> bool:
    if isinstance(x, types.ModuleType):
        return True
    if isinstance(x, types.FunctionType) and in_user_code(x.__code__):
        return False
    # By another name it is a choice, which may be another one later.
    return isinstance(x, _DEFINED) and x.__name__ == name


_DEFINED = (type, types.BuiltinFunctionType, types.FunctionType)
