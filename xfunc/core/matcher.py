"""`matcher`: the leaves of trees that are expected to have a known structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xfunc.tree import Leaf, PyTree, Structure, flatten


def matcher(structure: Structure) -> Callable[[PyTree], list[Leaf] | None]:
    """A function that returns the leaves of a tree of this structure, and None for another tree.

    It is several times faster than `flatten`. A leaf that it returns may be a whole subtree, so
    callers check the types of the leaves.
    """
    dicts = _dicts_in(structure)

    def leaves_of(tree: PyTree) -> list[Leaf] | None:
        if dicts is None:
            result, other = flatten(tree)
            return result if other == structure else None
        try:
            result = structure.flatten_up_to(tree)
        except (ValueError, TypeError):
            return None
        # An OrderedDict passes, too, and may have another order.
        for path in dicts:
            node = tree
            for key in path:
                node = node[key]
            if type(node) is not dict:
                return None
        return result

    return leaves_of


def _dicts_in(structure: Structure) -> list[tuple[Any, ...]] | None:
    """The paths of the dicts; None if there are nodes other than dicts, tuples, lists and None."""
    kind = structure.type
    if kind in (None, type(None)):
        return []
    if kind not in (dict, tuple, list) and not _is_named(kind):
        return None
    result: list[tuple[Any, ...]] = [()] if kind is dict else []
    keys = structure.entries() if kind is dict else range(len(structure.children()))
    for key, child in zip(keys, structure.children(), strict=True):
        inside = _dicts_in(child)
        if inside is None:
            return None
        result += [(key, *path) for path in inside]
    return result


_TUPLE: Any = tuple  # Checkers would take a class that is compared with it for one of its own.


def _is_named(kind: Any) -> bool:
    """Whether a class is a named tuple, with children by position."""
    own: Any = kind
    is_tuple = isinstance(kind, type) and issubclass(kind, _TUPLE)
    return is_tuple and hasattr(own, "_fields") and own.__getitem__ is _TUPLE.__getitem__
