"""Trees of shardings that are a prefix of a tree of arrays."""

from __future__ import annotations

import optree

from xfunc import tree
from xfunc.errors import TreeMismatchError, fail, kind_of, short_repr
from xfunc.sharding.spec import NamedSharding, PartitionSpec, resolve_sharding
from xfunc.tree import PyTree


def is_sharding(x: object) -> bool:
    """Whether `x` is a leaf of a tree of shardings."""
    return x is None or isinstance(x, (NamedSharding, PartitionSpec))


def shardings_of(
    prefix: object, x: object, what: str, label: str
) -> list[tuple[NamedSharding | None, str]]:
    """For each leaf of `x`, its sharding (None: unspecified) and its key path.

    Args:
        prefix: a tree of shardings and None.
        x: a tree of arrays.
        what: the name of `prefix` in errors.
        label: the name of `x` in errors.

    Raises:
        TreeMismatchError: `prefix` is not a tree prefix of `x`.
        ShardingError: something in `prefix` is not a sharding.
    """
    _, structure = tree.flatten(x)
    paths = [a.codify(label) for a in structure.accessors()]
    given = broadcast(prefix, x, what, label)
    return [
        (None if s is None else resolve_sharding(s, f"{what} of {path}"), path)
        for s, path in zip(given, paths, strict=True)
    ]


def broadcast(prefix: object, x: object, what: str, label: str) -> list[object]:
    """For each leaf of `x`, the leaf of `prefix` above it."""
    result: list[object] = []
    _walk(prefix, x, what, label, result)
    return result


def _walk(prefix: PyTree, x: PyTree, what: str, path: str, found: list[object]) -> None:
    if is_sharding(prefix):
        found += [prefix] * tree.structure(x).num_leaves
        return
    mine, structure = _one_level(prefix)
    theirs, other = _one_level(x)
    if optree.treespec_is_leaf(structure):
        resolve_sharding(prefix, f"{what} of {path}")  # Raises: it is no sharding.
    if structure != other:
        fail(
            TreeMismatchError,
            f"{what} is not a prefix of its tree: at {path} it is {short_repr(prefix)}, but "
            f"the tree has {_kind(x)}",
            "give one sharding for a whole subtree, or a tree of the same structure.",
        )
    for accessor, p, y in zip(structure.accessors(), mine, theirs, strict=True):
        _walk(p, y, what, accessor.codify(path), found)


def _one_level(x: PyTree) -> tuple[list[PyTree], tree.Structure]:
    return optree.tree_flatten(x, lambda y: y is not x, namespace=tree.NAMESPACE)


def _kind(x: object) -> str:
    if tree.structure(x).num_leaves == 1 and not isinstance(x, (tuple, list, dict)):
        return "a leaf"
    if isinstance(x, dict):
        return f"a dict of {', '.join(map(repr, x))}"
    if isinstance(x, (tuple, list)):
        return f"{kind_of(x)} of {len(x)}"
    return kind_of(x)
