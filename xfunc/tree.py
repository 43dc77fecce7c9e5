"""Pytrees: nested tuples, lists, dicts, dataclasses and registered classes of leaves.

A thin layer over optree, with JAX's names. ``None`` is a node without children; dict keys are
visited in sorted order. Classes registered with torch's own pytrees (such as the outputs of
transformers models) become nodes when first encountered.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np
import optree
import torch
from torch.utils import _pytree as torch_pytree

from xfunc.errors import TreeMismatchError, fail, format_error

__all__ = [
    "all",
    "combine",
    "flatten",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "partition",
    "reduce",
    "register",
    "register_dataclass",
    "structure",
    "transpose",
    "unflatten",
]

NAMESPACE = "xfunc"
_NOTHING = object()
_optree: Any = optree  # Its types distinguish containers from leaves; here any object is a tree.
Structure = optree.PyTreeSpec
PyTree: TypeAlias = Any
"""A caller's tree: containers nested in any way, or a single leaf. Only the caller knows its type,
and the result of a caller's function is used without checking it. For a value that is only passed
on or inspected with `isinstance`, write `object`."""
TensorTree: TypeAlias = "torch.Tensor | Sequence[TensorTree] | Mapping[str, TensorTree] | None"
"""A tree that a type checker knows to have no leaves but tensors."""
_Number: TypeAlias = complex | np.ndarray[Any, Any] | np.generic
NumberTree: TypeAlias = (
    _Number
    | Sequence[_Number]
    | Mapping[str, _Number]
    | tuple["NumberTree", *tuple[object, ...]]
    | tuple[object, "NumberTree", *tuple[object, ...]]
    | tuple[object, object, "NumberTree", *tuple[object, ...]]
)
"""A tree that a type checker knows to have a number, or an array of NumPy, among its leaves.

NOTE [types of lambdas]: overloads of the loops give the parameters of a lambda the type of the
first value. They come after an overload for numbers, because loops turn these into tensors, and
before one that accepts any function.
"""


class Unknown:
    """The type of no object: among overloads, only a value of the type Any fits a parameter of it.

    Without such an overload first, a checker would take the leaves of an unknown tree for tensors.
    """


Leaf: TypeAlias = Any
"""A leaf of a `PyTree`: nearly always an array."""
Function: TypeAlias = Callable[..., PyTree]
"""A caller's function of trees."""
IsLeaf: TypeAlias = Callable[[object], bool]
C = TypeVar("C", bound=type)
S = TypeVar("S")
T = TypeVar("T")
Tensors = TypeVar("Tensors", bound=TensorTree)


def flatten(tree: PyTree, is_leaf: IsLeaf | None = None) -> tuple[list[Leaf], Structure]:
    """The leaves of a tree, and its structure.

    Args:
        tree: any tree.
        is_leaf: as in `map`.

    Returns:
        ``(leaves, structure)``: a list of the leaves in order, and an `optree.PyTreeSpec`, which
        `unflatten` takes.
    """
    found = _optree.tree_flatten(tree, is_leaf, namespace=NAMESPACE)
    if is_leaf is None and adopt(found[0]):
        return flatten(tree, is_leaf)
    return found[0], found[1]


def adopt(leaves: Iterable[object]) -> bool:
    """Register as nodes those leaf classes that torch's own pytrees know; whether any were new."""
    new = [c for c in set(builtins.map(type, leaves)) - _adopted if adopt_class(c)]
    return bool(new)


def adopt_class(cls: type) -> bool:
    """Register a class as a node if torch's own pytrees know it; whether it is one now."""
    node = torch_pytree.SUPPORTED_NODES.get(cls)
    if node is None or cls.__module__.startswith("torch"):  # torch.Size stays a leaf.
        return False
    if cls not in _adopted:
        _adopt(cls, node)
    return True


_adopted: set[type] = set()  # A class may remain a leaf if `is_leaf` says so.


def _adopt(cls: type, node: torch_pytree.NodeDef) -> None:
    def take_apart(x: object) -> tuple[Iterable[object], Context]:
        children, context = node.flatten_fn(x)
        return children, Context(context)

    _adopted.add(cls)
    register(cls, take_apart, lambda context, xs: node.unflatten_fn(list(xs), context.value))


@dataclasses.dataclass(frozen=True)
class Context:
    """torch's context of a node: compared by value, hashable or not."""

    value: Any

    def __hash__(self) -> int:
        return hash(Context)

    def __repr__(self) -> str:
        return repr(self.value)


def unflatten(structure: Structure, leaves: Iterable[object]) -> PyTree:
    """The tree of the given structure and leaves.

    Args:
        structure: as `flatten` or `structure` returns it.
        leaves: as many as the structure has, in order.

    Returns:
        A tree of these containers, with the leaves in their places.
    """
    return structure.unflatten(leaves)


def leaves(tree: object, is_leaf: IsLeaf | None = None) -> list[Leaf]:
    """The leaves of a tree.

    Args:
        tree: any tree.
        is_leaf: as in `map`.

    Returns:
        A list of the leaves, in the order of `flatten`; empty for a tree without leaves.
    """
    return _optree.tree_leaves(tree, is_leaf, namespace=NAMESPACE)


def structure(tree: PyTree, is_leaf: IsLeaf | None = None) -> Structure:
    """The structure of a tree: hashable, and equal for trees of the same shape.

    Args:
        tree: any tree.
        is_leaf: as in `map`.

    Returns:
        An `optree.PyTreeSpec`, which `unflatten` and `transpose` take.
    """
    return _optree.tree_structure(tree, is_leaf, namespace=NAMESPACE)


def different_nodes(have: Structure, need: Structure, path: str = "") -> list[str]:
    """A line ``path: list instead of tuple`` for each place where the nodes of two trees differ."""
    if have == need:
        return []
    if have.type is not need.type:
        names = (getattr(s.type, "__name__", "a leaf") for s in (have, need))
        return [f"{path or 'the tree'}: {' instead of '.join(names)}"]
    lines, accessors = [], iter(have.accessors())
    for entry, a, b in zip(have.entries(), have.children(), need.children(), strict=False):
        of_child = [next(accessors) for _ in range(a.num_leaves)]
        step = of_child[0][:1].codify("") if of_child else f"[{entry!r}]"
        lines += different_nodes(a, b, path + step)
    return lines or [f"{path or 'the tree'}: {have} instead of {need}"]


@functools.cache
def structure_of_leaves(n: int) -> Structure:
    """The structure of n arguments that are leaves, and no keyword arguments."""
    return structure(((0,) * n, {}))


@overload
def map(
    fun: Callable[[Leaf], object], tree: Unknown, *, is_leaf: IsLeaf | None = None
) -> PyTree: ...
@overload
def map(
    fun: Callable[[Leaf, PyTree], object],
    tree: Unknown,
    other: object,
    /,
    *,
    is_leaf: IsLeaf | None = None,
) -> PyTree: ...
@overload
def map(
    fun: Callable[[torch.Tensor], torch.Tensor], tree: Tensors, *, is_leaf: None = None
) -> Tensors: ...
@overload
def map(
    fun: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    tree: Tensors,
    other: Tensors,
    /,
    *,
    is_leaf: None = None,
) -> Tensors: ...
@overload
def map(
    fun: Callable[[Leaf], object], tree: object, *, is_leaf: IsLeaf | None = None
) -> PyTree: ...
@overload
def map(
    fun: Callable[[Leaf, PyTree], object],
    tree: object,
    other: object,
    /,
    *,
    is_leaf: IsLeaf | None = None,
) -> PyTree: ...
@overload
def map(
    fun: Callable[..., object],
    tree: object,
    *rest: object,
    is_leaf: IsLeaf | None = None,
) -> PyTree: ...
def map(
    fun: Callable[..., object],
    tree: object,
    *rest: object,
    is_leaf: IsLeaf | None = None,
) -> PyTree:
    """`fun` applied to each leaf of `tree` and the corresponding subtrees of `rest`.

    Args:
        fun: a function of a leaf of `tree` and, for each tree of `rest`, the subtree there.
        tree: any tree.
        rest: trees with at least the nodes of `tree`.
        is_leaf: says of a node whether it counts as a leaf; None: none does.

    Returns:
        A tree of the structure of `tree`, with the results of `fun` as its leaves.

    Raises:
        TreeMismatchError: a tree of `rest` differs in structure.
    """
    try:
        return _optree.tree_map(fun, tree, *rest, is_leaf=is_leaf, namespace=NAMESPACE)
    except (ValueError, TypeError):  # from optree or from `fun`
        for i, other in enumerate(rest):
            _check_fits(tree, other, is_leaf, i + 1)
        raise


def _check_fits(tree: object, other: PyTree, is_leaf: IsLeaf | None, number: int) -> None:
    """Raise unless `other` has a subtree wherever `tree` has a leaf."""
    try:
        structure(tree, is_leaf).flatten_up_to(other)
    except (ValueError, TypeError):
        need, have = (dict(leaves_with_path(t, is_leaf)) for t in (tree, other))
        lines = [f"  tree{p}: missing" for p in need if not any(q.startswith(p) for q in have)]
        lines += [f"  tree{q}: unexpected" for q in have if not any(q.startswith(p) for p in need)]
        if not lines:
            lines = [f"  {structure(other)} instead of {structure(tree, is_leaf)}"]
        problem = f"tree.map: tree {number + 1} differs from the first tree:"
        raise TreeMismatchError(
            format_error("\n".join([problem, *lines]), "give trees of one structure.")
        ) from None


def map_with_path(
    fun: Callable[..., object],
    tree: object,
    *rest: object,
    is_leaf: IsLeaf | None = None,
) -> PyTree:
    """`map` with the leaf's key path, a string such as ``['layers'][0].wq``, as first argument.

    Args:
        fun: a function of a path, a leaf of `tree` and, for each tree of `rest`, the subtree there.
        tree: any tree.
        rest: as in `map`.
        is_leaf: as in `map`.

    Returns:
        A tree of the structure of `tree`, with the results of `fun` as its leaves.
    """

    def call(accessor: optree.PyTreeAccessor, *xs: object) -> object:
        return fun(accessor.codify(""), *xs)

    return _optree.tree_map_with_accessor(call, tree, *rest, is_leaf=is_leaf, namespace=NAMESPACE)


def leaves_with_path(tree: object, is_leaf: IsLeaf | None = None) -> list[tuple[str, Leaf]]:
    """Pairs of a leaf's key path and the leaf.

    Args:
        tree: any tree.
        is_leaf: as in `map`.

    Returns:
        A list of ``(path, leaf)``, in the order of `flatten`; a path is a string such as
        ``['layers'][0].wq``.
    """
    accessors, found, _ = _optree.tree_flatten_with_accessor(tree, is_leaf, namespace=NAMESPACE)
    return [(a.codify(""), leaf) for a, leaf in zip(accessors, found, strict=True)]


def all(tree: object, *, is_leaf: IsLeaf | None = None) -> bool:
    """Whether every leaf is true.

    Args:
        tree: a tree of leaves that are true or false.
        is_leaf: as in `map`.

    Returns:
        A bool; True for a tree without leaves.
    """
    return _optree.tree_all(tree, is_leaf=is_leaf, namespace=NAMESPACE)


def reduce(
    function: Callable[[Leaf, Leaf], T],
    tree: object,
    initializer: object = _NOTHING,
    is_leaf: IsLeaf | None = None,
) -> T:
    """Fold `function` over the leaves, from the left, starting at `initializer` if it is given.

    Args:
        function: from the value so far and a leaf to the next value.
        tree: any tree.
        initializer: the first value; by default, the first leaf.
        is_leaf: as in `map`.

    Returns:
        The value after the last leaf; `initializer`, if there are no leaves.
    """
    first = () if initializer is _NOTHING else (initializer,)
    return functools.reduce(function, leaves(tree, is_leaf), *first)


def partition(
    tree: PyTree, choose: Callable[[Leaf], bool], is_leaf: IsLeaf | None = None
) -> tuple[PyTree, PyTree]:
    """Split the leaves of a tree into two trees: those with a true `choose`, and the others.

    Where the other one has a leaf, a tree has None: the first may be differentiated, or trained,
    and the second closed over. `combine` puts them together.

    Args:
        tree: any tree.
        choose: from a leaf to a bool.
        is_leaf: as in `map`.

    Returns:
        Two trees like `tree`.

    Example::

        >>> xf.tree.partition({"a": 1, "b": "text"}, lambda x: isinstance(x, int))
        ({'a': 1, 'b': None}, {'a': None, 'b': 'text'})

    Semantics: ``equinox.partition`` with a function.
    """
    found, shape = flatten(tree, is_leaf)
    chosen = [bool(choose(x)) for x in found]
    pairs = list(zip(found, chosen, strict=True))
    first = unflatten(shape, [x if yes else None for x, yes in pairs])
    return first, unflatten(shape, [None if yes else x for x, yes in pairs])


def combine(*trees: PyTree) -> PyTree:
    """The tree of the leaves of several, as `partition` returns them.

    Args:
        trees: of one structure, but for None where another one has a leaf.

    Returns:
        A tree with the first leaf that is not None at each place; None where all are.

    Raises:
        TreeMismatchError: the trees differ in structure.

    Example::

        >>> xf.tree.combine({"a": 1, "b": None}, {"a": None, "b": "text"})
        {'a': 1, 'b': 'text'}

    Semantics: ``equinox.combine``.
    """

    def first(*xs: Leaf) -> Leaf:
        return next((x for x in xs if x is not None), None)

    return map(first, *trees, is_leaf=lambda x: x is None)


def transpose(outer: Structure, inner: Structure | None, tree: PyTree) -> PyTree:
    """A tree of trees turned inside out: ``transpose(outer, inner, outer of inner)``.

    Args:
        outer: structure of the outer level of `tree`.
        inner: structure of the subtrees at its leaves; by default, that of the first one.
        tree: a tree of structure `outer` with trees of structure `inner` as leaves.

    Returns:
        A tree of structure `inner` with trees of structure `outer` as leaves.

    Raises:
        TreeMismatchError: `tree` does not have these structures.
    """
    try:
        inside = outer.flatten_up_to(tree)
    except (ValueError, TypeError):
        inside = None
    if inner is None:
        inner = structure(inside[0]) if inside else outer
    if inside is None or any(structure(t) != inner for t in inside):
        fail(
            TreeMismatchError,
            f"tree.transpose was given {structure(tree)}, which is not {inner} in {outer}",
            "give the structures of its two levels, as xf.tree.structure returns them.",
        )
    columns = zip(*builtins.map(leaves, inside), strict=True)
    return inner.unflatten([outer.unflatten(c) for c in columns])


def register(
    cls: type[T],
    flatten: Callable[[T], tuple[Iterable[object], S]],
    unflatten: Callable[[S, PyTree], T],
    *,
    names: Sequence[str] | None = None,
) -> type[T]:
    """Make a class a node.

    Args:
        cls: the class.
        flatten: ``flatten(x) -> (children, static)``; `static` is compared by value.
        unflatten: ``unflatten(static, children) -> x``.
        names: the attributes that the children are, for paths such as ``.w``; None: children are
            numbered.

    Returns:
        The class.

    Raises:
        ValueError: the class is a node already.

    Example::

        >>> class Point:
        ...     def __init__(self, x, y):
        ...         self.x, self.y = x, y
        >>> _ = xf.tree.register(
        ...     Point, lambda p: ((p.x, p.y), None), lambda _, xy: Point(*xy), names=("x", "y")
        ... )
        >>> xf.tree.leaves_with_path([Point(1, 2)])
        [('[0].x', 1), ('[0].y', 2)]

    Semantics: ``jax.tree_util.register_pytree_node``; with `names`,
    ``jax.tree_util.register_pytree_with_keys``.
    """
    if names is None:
        _optree.register_pytree_node(cls, flatten, unflatten, namespace=NAMESPACE)
        return cls
    entries = tuple(names)
    _optree.register_pytree_node(
        cls,
        lambda x: (*flatten(x), entries),
        unflatten,
        path_entry_type=optree.GetAttrEntry,
        namespace=NAMESPACE,
    )
    return cls


def register_dataclass(
    cls: C, data_fields: Sequence[str] | None = None, meta_fields: Sequence[str] = ()
) -> C:
    """Make a dataclass a node; usable as a decorator.

    `data_fields` are children (all fields but `meta_fields`, if None); `meta_fields` are static:
    they are compared by value as part of the structure. If neither is given, those are static
    that the class says are: ``dataclasses.field(metadata={"static": True})``.

    Args:
        cls: the dataclass.
        data_fields: names of the fields that are children.
        meta_fields: names of the fields that are static.

    Returns:
        The class.

    Source: ``jax.tree_util.register_dataclass``.
    """
    fields = [f for f in dataclasses.fields(cls) if f.init]
    meta = tuple(meta_fields)
    if data_fields is None and not meta:
        meta = tuple(f.name for f in fields if f.metadata.get("static"))
    names = [f.name for f in fields if f.name not in meta]
    data = tuple(names if data_fields is None else data_fields)

    def take_apart(x: object) -> tuple[list[object], tuple[object, ...], tuple[str, ...]]:
        return [getattr(x, n) for n in data], tuple(getattr(x, n) for n in meta), data

    def put_together(static: tuple[object, ...], children: Iterable[object]) -> object:
        result = object.__new__(cls)  # Not __init__: leaves may be anything while trees are mapped.
        for name, value in [*zip(data, children, strict=True), *zip(meta, static, strict=True)]:
            object.__setattr__(result, name, value)
        return result

    _optree.register_pytree_node(
        cls, take_apart, put_together, path_entry_type=optree.GetAttrEntry, namespace=NAMESPACE
    )
    return cls
