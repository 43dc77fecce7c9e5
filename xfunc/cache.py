"""The cache of programs: by the value of a function (`identity`) and what it was called with."""

from __future__ import annotations

import collections
import threading
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from xfunc.guards import Guard, Guarded, State
from xfunc.identity import forget_changes, root_of, skeleton
from xfunc.locations import function_name
from xfunc.wrappers import Wrapper

MAX_ENTRIES = 256  # per function; the least recently used goes
MAX_FUNCTIONS = 1024


class CacheInfo(NamedTuple):
    """Counters of one function's cache since it was last cleared."""

    hits: int
    misses: int
    traces: int
    compiles: int
    size: int


class Key(NamedTuple):
    """What a program is cached by, beside the skeleton of its function."""

    values: Hashable
    tree: Any
    avals: tuple[Any, ...]
    static: Hashable
    modes: Hashable
    beside: tuple[tuple[Hashable, Hashable], ...] = ()


class FunctionCache:
    """The programs of one function."""

    def __init__(self, name: str, root: Any):
        self.name, self.root = name, root
        self.entries: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()
        self.hits = self.misses = self.traces = self.compiles = 0
        self.last_miss = "not called yet"
        self.globals: Any = None  # On what it names (`globals.Guards`), once it has been traced.

    def find(self, key: Hashable) -> Any:
        """The entry of a key, or None; counts."""
        entry = self.entries.get(key)
        if type(entry) is Guarded:
            entry = entry.find()
        if entry is not None:
            self.hits += 1
            if len(self.entries) > 1:
                self.entries.move_to_end(key)
        return entry

    def missed(self, key: Key) -> None:
        """Count a miss, and note what differed from the nearest key before."""
        self.misses += 1
        self.last_miss = self._why(key)

    def add(self, key: Hashable, entry: Any, guards: Iterable[Guard] = ()) -> None:
        """Keep an entry; the least recently used one makes room."""
        known = self.entries.get(key)
        if guards or type(known) is Guarded:
            known = known if type(known) is Guarded else Guarded()
            known.add(entry, guards)
            entry = known
        self.entries[key] = entry
        while len(self.entries) > MAX_ENTRIES:
            self.entries.popitem(last=False)

    def _why(self, key: Key) -> str:
        guarded = self.entries.get(key)
        changed = guarded.changed() if type(guarded) is Guarded else None
        if changed is not None:
            guard, old, new = changed
            what = getattr(guard, "what", "the state of a module")
            return f"{what} changed: {_difference(old, new)}"
        known = [k for k in self.entries if isinstance(k, Key)]
        if not known:
            return "first call"

        def distance(other: Key) -> int:
            return sum(a != b for a, b in zip(key, other, strict=True))

        nearest = min(reversed(known), key=distance)
        lines = [
            f"{_LABELS[field]} changed: {_difference(old, new)}"
            for field, old, new in zip(Key._fields, nearest, key, strict=True)
            if old != new
        ]
        return "\n".join(lines)

    def info(self) -> CacheInfo:
        sizes = [e.size if type(e) is Guarded else 1 for e in self.entries.values()]
        return CacheInfo(self.hits, self.misses, self.traces, self.compiles, sum(sizes))

    def clear(self) -> None:
        self.entries.clear()
        self.hits = self.misses = self.traces = self.compiles = 0
        self.last_miss = "not called yet"


_LABELS = {
    "values": "a value that the function holds",
    "tree": "the structure of the arguments",
    "avals": "a shape or dtype",
    "static": "a static argument",
    "modes": "a global mode",
    "beside": "an argument that is no array",
}


def _difference(old: Any, new: Any, path: str = "") -> str:
    """The first place where two keys differ, and both values there."""
    if isinstance(old, State) and isinstance(new, State):
        return _difference(old.value, new.value, path)
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        named = len(new) == 2 and isinstance(new[0], str) and old[0] == new[0]
        for a, b in zip(old, new, strict=True):
            if a != b:
                return _difference(a, b, f"{path}.{new[0]}" if named else path)
    place = f" in {path.lstrip('.')}" if path else ""
    return f"{_plain(old)} -> {_plain(new)}{place}"


def _plain(x: Any) -> str:
    if isinstance(x, tuple) and len(x) == 2 and isinstance(x[0], type):
        return repr(x[1]) if not isinstance(x[1], str) or x[0] is str else x[1]
    return str(x)


_functions: collections.OrderedDict[Hashable, FunctionCache] = collections.OrderedDict()
_guard = threading.Lock()


def cache_of(fun: Any) -> FunctionCache:
    """The cache of a function, shared by all functions of the same skeleton."""
    key = skeleton(fun)
    with _guard:
        found = _functions.get(key)
        if found is None:
            found = _functions[key] = FunctionCache(
                function_name(root_of(fun)), _code(root_of(fun))
            )
            while len(_functions) > MAX_FUNCTIONS:
                _functions.popitem(last=False)
        else:
            _functions.move_to_end(key)
        return found


def _code(fun: Any) -> Any:
    return getattr(fun, "__code__", fun)


def clear_caches() -> None:
    """Forget all programs, compiled or not, and reset all counters."""
    with _guard:
        for cache in _functions.values():
            cache.clear()
        forget_changes()


def trace_count(fun: Any) -> int:
    """How often the Python code of `fun` was run to trace it.

    `fun` may be a function or any transform of it: the count is that of the transformed function
    called; for a plain function, of all transforms of it together.
    """
    if isinstance(fun, Wrapper):
        return cache_of(fun).traces
    code = _code(root_of(fun))
    with _guard:
        return sum(c.traces for c in _functions.values() if c.root == code)
