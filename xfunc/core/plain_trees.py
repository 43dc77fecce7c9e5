"""What xfunc uses of optree, in plain Python: for machines that serve, and have no optree.

Not by the trees of JAX or torch. JAX refuses dicts with keys of several types, which a program may
return, and has one registry of classes for everybody; to torch None is a leaf, and dicts are not
sorted.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

IsLeaf = Callable[[Any], bool]
# Types are left out: checkers would take a class that is compared with one of these for it.
_TUPLE: Any = tuple
_DEQUE: Any = collections.deque
_ORDERED: Any = collections.OrderedDict
_DEFAULT: Any = collections.defaultdict
_SEQUENCES: tuple[Any, ...] = (list, tuple)
_DICTS: tuple[Any, ...] = (dict, _ORDERED, _DEFAULT)


@dataclasses.dataclass(frozen=True)
class PyTreeEntry:
    """A step of a path: a position, or what the subclasses say."""

    entry: Any

    def __str__(self) -> str:
        return f"[{self.entry!r}]"


class MappingEntry(PyTreeEntry):
    """The key of a dict."""


class GetAttrEntry(PyTreeEntry):
    """The name of an attribute."""

    def __str__(self) -> str:
        return f".{self.entry}"


class PyTreeAccessor(tuple[PyTreeEntry, ...]):
    """A path to a leaf."""

    def __getitem__(self, i: Any) -> Any:
        found = cast("Any", super().__getitem__(i))
        return PyTreeAccessor(found) if isinstance(i, slice) else found

    def codify(self, root: str) -> str:
        """The path as Python writes it."""
        return root + "".join(map(str, self))


@dataclasses.dataclass(frozen=True)
class PyTreeSpec:
    """The structure of a tree: that of a leaf, if it has no class."""

    type: Any = None
    static: Any = None
    steps: tuple[PyTreeEntry, ...] = ()
    parts: tuple[PyTreeSpec, ...] = ()
    make: Callable[[list[Any]], Any] | None = dataclasses.field(default=None, compare=False)

    def __repr__(self) -> str:
        marked = self.unflatten(map(_Star, range(self.num_leaves)))
        return f"PyTreeSpec({marked!r})"

    @functools.cached_property
    def num_leaves(self) -> int:
        return 1 if self.make is None else sum(p.num_leaves for p in self.parts)

    def children(self) -> list[PyTreeSpec]:
        return list(self.parts)

    def entries(self) -> list[Any]:
        """The positions, keys or names of the children."""
        return [step.entry for step in self.steps]

    def accessors(self) -> list[PyTreeAccessor]:
        """The paths of the leaves."""
        if self.make is None:
            return [PyTreeAccessor()]
        pairs = zip(self.steps, self.parts, strict=True)
        return [PyTreeAccessor((s, *rest)) for s, p in pairs for rest in p.accessors()]

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        given = list(leaves)
        if len(given) != self.num_leaves:
            raise ValueError(f"{len(given)} leaves for a tree of {self.num_leaves}")
        return self._filled(iter(given))

    def _filled(self, leaves: Iterator[Any]) -> Any:
        if self.make is None:
            return next(leaves)
        return self.make([p._filled(leaves) for p in self.parts])

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """The subtrees of another tree at the leaves of this one."""
        found: list[Any] = []
        self._find(tree, found)
        return found

    def _find(self, tree: Any, found: list[Any]) -> None:
        if self.make is None:
            found.append(tree)
            return
        children: Sequence[Any]
        if self.type in _SEQUENCES and type(tree) is self.type:
            children = tree
        elif self.type in _DICTS and type(tree) in _DICTS and set(tree) == set(self.entries()):
            children = [tree[k] for k in self.entries()]  # As in optree.
        else:
            node, mine = _taken_apart(tree), (self.type, self.static, self.steps)
            if node is None or (type(tree), node.static, node.steps) != mine:
                raise self._unlike(tree)
            children = node.children
        if len(children) != len(self.parts):
            raise self._unlike(tree)
        for part, child in zip(self.parts, children, strict=True):
            if part.make is None:
                found.append(child)
            else:
                part._find(child, found)

    def _unlike(self, tree: Any) -> ValueError:
        return ValueError(f"{tree!r} is no {self.type.__name__} of {self.entries()}")


class _Star(int):
    """A leaf in the repr of a structure."""

    def __repr__(self) -> str:
        return "*"


@dataclasses.dataclass(frozen=True)
class _Node:
    children: Sequence[Any]
    steps: tuple[PyTreeEntry, ...]
    make: Callable[[list[Any]], Any]
    static: Any = None


def _taken_apart(x: Any) -> _Node | None:
    """The parts of a node; None for a leaf."""
    kind = cast("Any", type(x))
    if kind in _registered:
        return _registered[kind](x)
    if x is None:
        return _Node((), (), lambda _: None)
    if kind in (list, tuple):
        return _Node(x, _positions(x), kind)
    if kind is _DEQUE:
        return _Node(x, _positions(x), lambda xs: kind(xs, x.maxlen), x.maxlen)
    if kind in _DICTS:
        return _of_dict(x)
    if isinstance(x, _TUPLE) and hasattr(kind, "n_sequence_fields"):  # as torch.linalg.svd returns
        return _Node(x, tuple(map(GetAttrEntry, kind.__match_args__)), kind)
    if isinstance(x, _TUPLE) and hasattr(kind, "_fields"):
        return _Node(x, tuple(map(GetAttrEntry, kind._fields)), lambda xs: kind(*xs))
    return None


def _positions(x: Sequence[Any]) -> tuple[PyTreeEntry, ...]:
    return tuple(map(PyTreeEntry, range(len(x))))


def _of_dict(x: Any) -> _Node:
    kind = cast("Any", type(x))
    order = list(x)  # which a new dict keeps
    keys = order if kind is _ORDERED else _in_order(order)
    factory = (x.default_factory,) if kind is _DEFAULT else ()

    def make(children: list[Any]) -> Any:
        found = dict(zip(keys, children, strict=True))
        return kind(*factory, [(k, found[k]) for k in order])

    return _Node([x[k] for k in keys], tuple(map(MappingEntry, keys)), make, factory)


def _in_order(keys: list[Any]) -> list[Any]:
    try:
        return sorted(keys)
    except TypeError:  # As optree does.
        of = [(f"{type(k).__module__}.{type(k).__qualname__}", k) for k in keys]
        return [k for _, k in sorted(of)]


_registered: dict[type, Callable[[Any], _Node]] = {}


def register_pytree_node(
    cls: type,
    flatten: Callable[[Any], tuple[Any, ...]],
    unflatten: Callable[[Any, Any], Any],
    *,
    path_entry_type: type[PyTreeEntry] = PyTreeEntry,
    namespace: str = "",
) -> None:
    def taken_apart(x: Any) -> _Node:
        children, static, *names = flatten(x)
        children = list(children)
        steps = tuple(map(path_entry_type, names[0] if names else range(len(children))))
        return _Node(children, steps, lambda xs: unflatten(static, xs), static)

    _registered[cls] = taken_apart


def tree_flatten(
    tree: Any, is_leaf: IsLeaf | None = None, *, none_is_leaf: bool = False, namespace: str = ""
) -> tuple[list[Any], PyTreeSpec]:
    leaves: list[Any] = []

    def walk(x: Any) -> PyTreeSpec:
        stop = (none_is_leaf and x is None) or (is_leaf is not None and is_leaf(x))
        node = None if stop else _taken_apart(x)
        if node is None:
            leaves.append(x)
            return PyTreeSpec()
        parts = tuple(map(walk, node.children))
        return PyTreeSpec(type(x), node.static, node.steps, parts, node.make)

    return leaves, walk(tree)


def tree_leaves(tree: Any, is_leaf: IsLeaf | None = None, *, namespace: str = "") -> list[Any]:
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: IsLeaf | None = None, *, namespace: str = "") -> PyTreeSpec:
    return tree_flatten(tree, is_leaf)[1]


def treespec_is_leaf(structure: PyTreeSpec) -> bool:
    return structure.make is None


def tree_map(
    fun: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: IsLeaf | None = None,
    namespace: str = "",
) -> Any:
    leaves, structure = tree_flatten(tree, is_leaf)
    return structure.unflatten(map(fun, leaves, *map(structure.flatten_up_to, rest)))


def tree_map_with_accessor(
    fun: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: IsLeaf | None = None,
    namespace: str = "",
) -> Any:
    paths, leaves, structure = tree_flatten_with_accessor(tree, is_leaf)
    return structure.unflatten(map(fun, paths, leaves, *map(structure.flatten_up_to, rest)))


def tree_flatten_with_accessor(
    tree: Any, is_leaf: IsLeaf | None = None, *, namespace: str = ""
) -> tuple[list[PyTreeAccessor], list[Any], PyTreeSpec]:
    leaves, structure = tree_flatten(tree, is_leaf)
    return structure.accessors(), leaves, structure


def tree_all(tree: Any, *, is_leaf: IsLeaf | None = None, namespace: str = "") -> bool:
    return all(tree_leaves(tree, is_leaf))


def broadcast_prefix(
    prefix: Any, tree: Any, *, none_is_leaf: bool = False, namespace: str = ""
) -> list[Any]:
    found, structure = tree_flatten(prefix, none_is_leaf=none_is_leaf)
    pairs = zip(found, structure.flatten_up_to(tree), strict=True)
    return [x for x, t in pairs for _ in tree_flatten(t, none_is_leaf=none_is_leaf)[0]]
