"""Structures of trees as JSON, and back."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, cast

from xfunc import tree
from xfunc.errors import fail
from xfunc.tree import PyTree

_LEAF = "*"
_KEYS = (str, int, bool, float, type(None))


class _Leaf:
    pass


def encode(structure: tree.Structure, what: str) -> object:
    """A structure as JSON.

    Raises:
        TypeError: it has nodes other than dicts, lists, tuples, named tuples and None.
    """
    return _encode(tree.unflatten(structure, [_Leaf()] * structure.num_leaves), what)


def _encode(x: PyTree, what: str) -> object:
    if x is None:
        return None
    kind = cast("type[Any]", type(x))
    if kind is _Leaf:
        return _LEAF
    if kind in (list, tuple):
        return [kind.__name__, [_encode(c, what) for c in x]]
    fields = getattr(kind, "_fields", None)
    if fields is not None and issubclass(kind, tuple):
        return ["namedtuple", [_encode(c, what) for c in x], kind.__name__, list(fields)]
    keys: list[object] = list(x) if kind is dict else []
    if kind is dict and all(type(k) in _KEYS for k in keys):
        return ["dict", [_encode(x[k], what) for k in keys], keys]
    fail(
        TypeError,
        f"{what} hold a {kind.__name__}, which a file cannot: its class may not exist where "
        "the file is read"
        if kind is not dict
        else f"{what} hold a dict with keys that are no strings or numbers",
        "wrap the function in one that takes and returns dicts, lists, tuples and named "
        "tuples, and export that.",
    )


def decode(written: object) -> tree.Structure:
    """The structure that `encode` wrote; named tuples get new classes of the same names."""
    return tree.structure(_decode(written))


def _decode(written: Any) -> PyTree:
    if written is None:
        return None
    if written == _LEAF:
        return 0
    kind, children, *rest = written
    found = [_decode(c) for c in children]
    if kind == "namedtuple":
        return _new_class(rest[0], rest[1])(*found)
    if kind == "dict":
        return dict(zip(rest[0], found, strict=True))
    return {"list": list, "tuple": tuple}[kind](found)


def _new_class(name: str, fields: list[str]) -> Callable[..., object]:
    # Named by the file, so there are no annotations.
    return collections.namedtuple(name, fields)  # pyright: ignore[reportUntypedNamedTuple]
