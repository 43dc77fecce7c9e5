"""Random numbers and clocks that traced code reads: each call of the program would repeat them.

NOTE [draws]: Python sees no calls of NumPy's generators. So while code that names a generator, or a
clock, is traced, a hook looks at each call of the program's code: at the function, and at whether
the state of a generator of NumPy's has changed since the last call. Code that does not name any is
traced without the hook. Generators that the function makes itself, from a seed, are its own, and
give constants. Installed packages are not looked at.
"""

from __future__ import annotations

import contextlib
import datetime
import dis
import functools
import os
import pickle
import random
import secrets
import sys
import threading
import time
import types
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from xfunc.core.locations import Location, is_of_program, name_is_of_user
from xfunc.errors import PurityError, fail

# Functions that read the clock, where they are given fewer arguments than this.
_READS_BELOW = {"time": 1, "time_ns": 1, "clock_gettime": 2, "clock_gettime_ns": 2}
_READS_BELOW |= {"localtime": 1, "gmtime": 1, "ctime": 1, "asctime": 1, "strftime": 2}
_CLOCKS: dict[Any, int] = {getattr(time, n, None): k for n, k in _READS_BELOW.items()}
_TODAY = frozenset(["now", "utcnow", "today"])
_OF_SYSTEM = frozenset(["urandom", "getrandom"])
_SYSTEM: set[Any] = {getattr(os, n, None) for n in _OF_SYSTEM}
# Modules, and names of their functions; an empty set stands for all.
_MODULES: dict[types.ModuleType, frozenset[str]] = {
    time: frozenset(_READS_BELOW),
    datetime: _TODAY,
    os: _OF_SYSTEM,
    np: frozenset(["random"]),
    random: frozenset(),
    secrets: frozenset(),
    uuid: frozenset(["uuid1", "uuid4", "uuid6", "uuid7"]),
}
_KINDS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_OF_PYTHON: Any = vars(random)["_inst"]
_OF_NUMPY: Any = vars(np.random.mtrand)["_rand"]
_DRAWN_BY = frozenset(n for n in dir(np.random.RandomState) if not n.startswith("_"))
_ORGANISES = frozenset("seed getstate setstate __init__ __getstate__ __setstate__".split())
_BOUND = (types.BuiltinFunctionType, types.MethodType, type(np.random.rand))

_RANDOM = (
    "draw with xf.random and a key that is an argument. What shall be the same in each call, draw "
    "outside and pass as a static argument, or from a generator that the function makes from a "
    "seed."
)
_CLOCK = (
    "pass the time as an argument; what shall be the same in each call, read outside and pass as a "
    "static argument. (time.perf_counter, which measures, is allowed.)"
)


def watching(
    name: str,
    named: Mapping[tuple[int, str], dict[str, object]],
    mentioned: Collection[str],
    held: Iterable[object],
) -> Draws | None:
    """The observer of a function's calls while it is traced; None if it names no draw or clock.

    Args:
        name: of the function.
        named: the namespaces of the names that it reaches, by place.
        mentioned: the names of attributes in that code.
        held: objects that it reaches.
    """
    generators = [x for x in held if isinstance(x, _KINDS)]
    found = bool(generators)
    for (_, variable), namespace in named.items():
        x: Any = namespace.get(variable)
        if isinstance(x, types.ModuleType):
            names = _MODULES.get(x)
            found |= x is np.random or (
                names is not None and (not names or not names.isdisjoint(mentioned))
            )
        elif isinstance(x, type):
            found |= issubclass(x, datetime.date) and not _TODAY.isdisjoint(mentioned)
        elif isinstance(x, _BOUND):
            found |= (
                x in _CLOCKS or x in _SYSTEM or isinstance(getattr(x, "__self__", None), _KINDS)
            )
        elif isinstance(x, types.FunctionType):
            found |= x.__module__ in ("secrets", "uuid")
    return Draws(name, [*generators, _OF_PYTHON, _OF_NUMPY]) if found else None


@contextlib.contextmanager
def refused(draws: Draws | None) -> Iterator[None]:
    """A block in which `draws`, if it is not None, sees the calls, unless a profiler does."""
    if draws is None or sys.getprofile() is not None:
        yield
        return
    see = draws.see
    sys.setprofile(see)
    try:
        yield
    finally:
        if sys.getprofile() is see:
            sys.setprofile(None)


class Draws:
    """Observes the calls of the program's code in this thread, and refuses draws and clocks.

    Args:
        name: of the function that is traced.
        generators: the generators that existed before.
    """

    def __init__(self, name: str, generators: Iterable[object]):
        self._name = name
        self._generators: dict[int, Any] = {id(g): g for g in generators}
        of_numpy = (g for g in self._generators.values() if not isinstance(g, random.Random))
        self._states = {id(g): (g, _state(g)) for g in of_numpy}
        self._last: dict[int, int] = {}  # by frame, the last call that was seen
        self._imports = 0

    def see(self, frame: types.FrameType, event: str, arg: Any) -> None:
        """The hook: see `sys.setprofile`."""
        if frame.f_code.co_name == "_find_and_load" and event in ("call", "return"):
            self._imports += 1 if event == "call" else -1
        if self._imports:  # A module's code runs once, when it is loaded.
            return
        by = frame.f_back if event == "call" else frame
        if by is not None and _is_of_program(by):
            self._check_states(by)
            if event == "call":
                self._check_python(frame, by)
            elif event == "c_call":
                self._check_c(arg, frame)
            self._last[id(by)] = by.f_lasti
        if event == "return":
            self._last.pop(id(frame), None)

    def _check_states(self, frame: types.FrameType) -> None:
        for i, (generator, before) in self._states.items():
            state = _state(generator)
            if state != before:
                self._states[i] = generator, state
                line, names = _unseen_call(frame, self._last.get(id(frame), -1))
                if generator is _OF_NUMPY and (
                    line is None or (threading.active_count() > 1 and names.isdisjoint(_DRAWN_BY))
                ):
                    continue  # Another thread, or a package that was called.
                self._refuse(f"{_shown(generator)} is drawn from", _RANDOM, frame, line)

    def _check_python(self, frame: types.FrameType, by: types.FrameType) -> None:
        module, name = frame.f_globals.get("__name__"), frame.f_code.co_name
        if module == "random":
            owner = frame.f_locals.get("self")
            if name in _ORGANISES:
                if _is_without_seed(frame):
                    self._refuse("a random.Random is made without a seed", _RANDOM, by)
            elif id(owner) in self._generators or isinstance(owner, random.SystemRandom):
                self._refuse(f"random.{name} is called", _RANDOM, by)
        elif module == "secrets" or (module == "uuid" and name in _MODULES[uuid]):
            self._refuse(f"{module}.{name} is called", _RANDOM, by)

    def _check_c(self, function: Any, by: types.FrameType) -> None:
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if (function in _CLOCKS and _argument_count(by) < _CLOCKS[function]) or (
            name in _TODAY and isinstance(owner, type) and issubclass(owner, datetime.date)
        ):
            self._refuse(f"{_name(function)} is called", _CLOCK, by)
        if function in _SYSTEM or (id(owner) in self._generators and name not in _ORGANISES):
            self._refuse(f"{_name(function)} is called", _RANDOM, by)

    def _refuse(
        self, what: str, hint: str, frame: types.FrameType, line: int | None = None
    ) -> NoReturn:
        code = frame.f_code
        fail(
            PurityError,
            f"{what}, whose result each call of the program would repeat",
            hint,
            function=self._name,
            at=Location(code.co_filename, line or frame.f_lineno, code.co_name),
        )


def _is_without_seed(frame: types.FrameType) -> bool:
    """Whether a generator of Python's is made or seeded without a seed, so by the system."""
    name, given = frame.f_code.co_name, frame.f_locals
    if isinstance(given.get("self"), random.SystemRandom):  # Its draws are refused.
        return False
    return name in ("__init__", "seed") and given.get("x", given.get("a")) is None


def _state(generator: Any) -> bytes:
    if isinstance(generator, np.random.RandomState):
        return pickle.dumps(generator.get_state(legacy=False))
    return pickle.dumps(getattr(generator, "bit_generator", generator).state)


def _name(function: Any) -> str:
    module = "os" if function.__module__ == os.name else function.__module__
    return f"{module}.{function.__qualname__}" if module else function.__qualname__


def _argument_count(frame: types.FrameType) -> int:
    """How many arguments the call gives that a frame makes; 0 where the code does not say."""
    calls = (s.arguments for s in _steps(frame.f_code) if s.offset == frame.f_lasti)
    return next(calls, 0)


def _shown(generator: object) -> str:
    if generator is _OF_NUMPY:
        return "NumPy's global random generator"
    return f"a random generator that was made before ({type(generator).__name__})"


def _is_of_program(frame: types.FrameType) -> bool:
    if not is_of_program(frame.f_code):
        return False
    # Methods of a dataclass come from no file.
    made = frame.f_code.co_filename == "<string>"
    return not made or name_is_of_user(str(frame.f_globals.get("__name__")))


def _unseen_call(frame: types.FrameType, last: int) -> tuple[int | None, frozenset[str]]:
    """The first call since `last` that the hook did not see, such as one in Cython.

    Returns its line, and the names that were looked up for it.
    """
    steps, now = _steps(frame.f_code), frame.f_lasti
    between = [s for s in steps if last < s.offset < now]
    if now <= last:  # A loop has begun again.
        jumps = (s for s in steps if s.offset > last and s.jumps_to is not None)
        jump = next((s for s in jumps if (s.jumps_to or 0) <= now), None)
        if jump is None:
            return None, frozenset()
        between = [s for s in steps if last < s.offset < jump.offset]
        between += [s for s in steps if (jump.jumps_to or 0) <= s.offset < now]
    for k, step in enumerate(between):
        if step.calls:
            return step.line, frozenset(s.name for s in between[:k])
    return None, frozenset()


class _Step(NamedTuple):
    """An instruction of a function."""

    offset: int
    line: int
    calls: bool
    arguments: int  # of the call; 0 if unknown
    name: str  # that it looks up
    jumps_to: int | None  # earlier code


@functools.lru_cache(1024)
def _steps(code: types.CodeType) -> list[_Step]:
    result: list[_Step] = []
    for i in dis.get_instructions(code):
        line = (i.positions and i.positions.lineno) or code.co_firstlineno
        name = i.argval if i.opname.startswith("LOAD_") and isinstance(i.argval, str) else ""
        back: Any = i.argval if "JUMP_BACKWARD" in i.opname else None
        calls = i.opname.startswith("CALL")
        arguments = i.arg if i.opname in ("CALL", "CALL_KW") and i.arg else 0
        result.append(_Step(i.offset, line, calls, arguments, name, back))
    return result
