"""The cache of programs, keyed by the value of a function (`identity`) and its arguments."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from xfunc.backends.lock import lock
from xfunc.cache.explain import difference, differences
from xfunc.cache.identity import code_key, forget_changes, root_of
from xfunc.cache.key import Key
from xfunc.core import locations
from xfunc.core.guards import Guard, Guarded
from xfunc.core.locations import function_name
from xfunc.core.wrappers import Wrapper

if TYPE_CHECKING:
    from xfunc.cache.globals import Guards


MAX_ENTRIES = 256  # per function; the least recently used is dropped
MAX_FUNCTIONS = 1024
LOG = logging.getLogger("xfunc")  # reports traces and compilations, at the level INFO


class CacheInfo(NamedTuple):
    """Counters of one function's cache since it was last cleared."""

    hits: int
    misses: int
    traces: int
    compiles: int
    size: int


class LastHit:
    """The last hit of a cache.

    Attributes:
        key: its key.
        entry: the program, or several (`Guarded`).
        fast_path: the parts of its call to compare with: see `xfunc.stages.fast_path`.
    """

    __slots__ = ("entry", "fast_path", "key")

    def __init__(self, key: Hashable, entry: Any):
        self.key, self.entry = key, entry
        self.fast_path: Any = None


class FunctionCache:
    """The programs of one function.

    Attributes:
        latest: the last hit.
        globals: the guards of its globals, once it has been traced.
    """

    def __init__(self, name: str, root: object):
        self.name, self.root = name, root
        self.entries: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()
        self.hits = self.misses = self.traces = self.compiles = 0
        self.last_miss = "not called yet"
        self.latest = LastHit(None, None)
        self.globals: Guards | None = None
        self._uncalled: set[Hashable] = set()  # keys of programs that no call of the user's made

    def find(self, key: Hashable) -> Any:
        """The entry of a key, or None; counts."""
        if key == self.latest.key:  # Comparing with the last key avoids hashing it.
            entry = self.latest.entry
        else:
            entry = self.entries.get(key)
            self.latest = LastHit(None if entry is None else key, entry)
        if type(entry) is Guarded:
            entry = entry.find()
        if entry is not None:
            self.hits += 1
            if len(self.entries) > 1:
                self.entries.move_to_end(key)
        return entry

    def missed(self, key: Key, names: Sequence[str]) -> None:
        """Count a miss, and record the difference from the nearest earlier key.

        `names` are those of the function's parameters.
        """
        self.misses += 1
        self.last_miss = self._why(key, names)
        LOG.info("tracing %s: %s", self.name, self.last_miss)

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Look up programs without counting hits and misses, because the user made no call."""
        before, known = (self.hits, self.misses, self.last_miss), {*self.entries}
        try:
            yield
        finally:
            self.hits, self.misses, self.last_miss = before
            new = self.entries.keys() - known
            self._uncalled = {k for k in self._uncalled if k in self.entries} | new

    def explained(self) -> str:
        """The last miss, in a line."""
        return f"last miss: {self.last_miss}"

    def add(self, key: Hashable, entry: object, guards: Iterable[Guard] = ()) -> None:
        """Keep an entry; the least recently used one makes room."""
        known = self.entries.get(key)
        if guards or type(known) is Guarded:
            known = known if type(known) is Guarded else Guarded()
            known.add(entry, guards)
            entry = known
        self.entries[key] = entry
        self.latest = LastHit(None, None)
        while len(self.entries) > MAX_ENTRIES:
            self.entries.popitem(last=False)

    def _why(self, key: Key, names: Sequence[str]) -> str:
        guarded = self.entries.get(key)
        changed = guarded.changed() if type(guarded) is Guarded else None
        if changed is not None:
            guard, old, new = changed
            what = getattr(guard, "what", "the state of a module")
            return f"{what} changed: {difference(old, new)}"
        known = [k for k in self.entries if isinstance(k, Key) and k not in self._uncalled]
        return differences(known, key, names) if known else "first call"

    def info(self) -> CacheInfo:
        sizes = [e.size if type(e) is Guarded else 1 for e in self.entries.values()]
        return CacheInfo(self.hits, self.misses, self.traces, self.compiles, sum(sizes))

    def clear(self) -> None:
        self.entries.clear()
        self.latest = LastHit(None, None)
        self.hits = self.misses = self.traces = self.compiles = 0
        self.last_miss = "not called yet"
        self._uncalled = set()
        if self.globals is not None:
            self.globals.clear()


_functions: collections.OrderedDict[Hashable, FunctionCache] = collections.OrderedDict()
# Those beyond `MAX_FUNCTIONS`, as long as somebody uses them.
_dropped: weakref.WeakValueDictionary[Hashable, FunctionCache] = weakref.WeakValueDictionary()
_guard: Any = threading.Lock()
# In a fork, a thread that held it is missing.
os.register_at_fork(after_in_child=_guard._at_fork_reinit)


def cache_of(fun: object) -> FunctionCache:
    """The cache of a function, shared by all functions with the same `code_key`."""
    key = code_key(fun)
    with _guard:
        result = _functions.get(key)
        if result is None:
            result = _dropped.pop(key, None)
            if result is None:
                result = FunctionCache(function_name(root_of(fun)), _code(root_of(fun)))
            _functions[key] = result
            while len(_functions) > MAX_FUNCTIONS:
                oldest, cache = _functions.popitem(last=False)
                _dropped[oldest] = cache
        else:
            _functions.move_to_end(key)
        return result


def _all() -> list[FunctionCache]:
    return [*_functions.values(), *_dropped.values()]


def _code(fun: object) -> object:
    return getattr(fun, "__code__", fun)


_also_cleared: list[Callable[[], None]] = [locations.forget]


def clear_caches() -> None:
    """Forget all programs, compiled or not, and reset all counters."""
    with lock.unless_refused(), _guard:
        for cache in _all():
            cache.clear()
        forget_changes()
    for clear in _also_cleared:
        clear()


def clear_with_caches(clear: Callable[[], None]) -> None:
    """Let `clear_caches` call this too, for tables that grow with the traced code."""
    _also_cleared.append(clear)


def trace_count(fun: object) -> int:
    """How often the Python code of `fun` was run to trace it.

    `fun` may be a function or any transform of it: the count is that of the transformed function
    called; for a plain function, of all transforms of it together.

    Args:
        fun: a function, or a transform of it; see above.

    Returns:
        The number of times; `clear_caches` sets it to 0.
    """
    if isinstance(fun, Wrapper):
        return cache_of(fun).traces
    code = _code(root_of(fun))
    with _guard:
        return sum(c.traces for c in _all() if c.root == code)
