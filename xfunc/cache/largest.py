"""The largest parts of a function's values, for the error about a function that holds too much.

The visit numbered the objects in depth-first order: the objects under one have the numbers from its
own up to that of its next sibling.
"""

from __future__ import annotations

import collections
import functools
import itertools
import types
from collections.abc import Iterator, Mapping

from xfunc.cache import snapshots
from xfunc.core.locations import function_name
from xfunc.core.wrappers import Bundle, Wrapper
from xfunc.errors import kind_of

_MAX_STEPS, _MAX_PARTS = 12, 10_000


def largest(root: object, numbers: Mapping[int, int]) -> str:
    """A description of the innermost object that holds most of the objects under `root`.

    Args:
        root: where the visit began.
        numbers: the turn of each object in the visit, by the object's id.
    """
    path, x, end = function_name(root), root, len(numbers)
    enough = end // 2
    for _ in range(_MAX_STEPS):
        first = numbers[id(x)]
        under = {
            numbers[id(part)]: (label, part)
            for label, part in itertools.islice(_parts(x), _MAX_PARTS)
            if first < numbers.get(id(part), -1) < end
        }
        sizes = {n: after - n for n, after in itertools.pairwise([*sorted(under), end])}
        most = max(sizes, key=sizes.__getitem__, default=first)
        if sizes.get(most, 0) <= enough:
            break
        label, x = under[most]
        path, end = path + label if label else function_name(x), most + sizes[most]
    return f"{path} ({kind_of(x)})"


def _parts(x: object) -> Iterator[tuple[str, object]]:
    """The objects that an object holds, each with its suffix to the object's name."""
    if isinstance(x, Wrapper):
        yield from [("", f) for f in (x.funs if isinstance(x, Bundle) else (x.fun,))]
    elif isinstance(x, functools.partial):
        yield "", x.func
        yield from ((f".args[{i}]", v) for i, v in enumerate(x.args))
        yield from ((f".keywords[{k!r}]", v) for k, v in x.keywords.items())
    elif isinstance(x, types.MethodType):
        yield from (("", x.__func__), (".self", x.__self__))
    elif isinstance(x, types.FunctionType):
        names = zip(x.__code__.co_freevars, x.__closure__ or (), strict=True)
        yield from ((f".{name}", snapshots.content(cell)) for name, cell in names)
        yield from ((".__defaults__", x.__defaults__), (".__kwdefaults__", x.__kwdefaults__))
        yield from ((f".{name}", v) for name, v in vars(x).items())
    elif isinstance(x, dict):
        yield from ((f"[{k!r}]"[:40], v) for k, v in x.items())
    elif isinstance(x, (list, tuple, collections.deque)):
        yield from ((f"[{i}]", v) for i, v in enumerate(x))
    elif hasattr(type(x), "__dict__"):
        slots = ((n, getattr(x, n)) for n in snapshots.all_slots(type(x)) if hasattr(x, n))
        own = getattr(x, "__dict__", {}).items()
        yield from ((f".{name}", v) for name, v in (*slots, *own))
