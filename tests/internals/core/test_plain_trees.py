"""`plain_trees`, which stands in where optree is not installed, compared with optree."""

import collections
import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, cast

import optree
import pytest
import torch

from xfunc.core import plain_trees

pytestmark = pytest.mark.quick

Pair = collections.namedtuple("Pair", "left right")
BOTH: tuple[Any, ...] = plain_trees, optree


@dataclasses.dataclass
class Box:
    inside: Any
    label: str


class Bag(list[Any]):
    pass


for library in BOTH:
    library.register_pytree_node(
        Box,
        lambda b: ([b.inside], b.label, ("inside",)),
        lambda label, xs: Box(next(iter(xs)), label),
        path_entry_type=library.GetAttrEntry,
        namespace="plain",
    )
    library.register_pytree_node(
        Bag, lambda b: (iter(b), None), lambda _, xs: Bag(xs), namespace="plain"
    )

TREES: list[Any] = [
    5,
    None,
    {},
    (),
    [1, (2, None), [[3]]],
    {"b": 1, "a": {"y": [2], "x": None}},
    {3: 1, "b": 2, "a": 3, 1: 4, 2.5: 5},
    collections.OrderedDict(z=1, a=(2,)),
    collections.defaultdict(list, z=1, a=2),
    collections.deque([1, [2]], 3),
    Pair(1, {"k": Pair(None, 2)}),
    {"box": Box([1, 2], "x"), "bag": Bag([3, {"a": 4}])},
    torch.Size([2, 3]),
    torch.return_types.max(cast("Any", (1, {"a": 2}))),
    {True: 1, False: 2},
    {"a": 1, "z": 2},
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_plain_trees_equal_optree(tree: Any) -> None:
    found = []
    for library in BOTH:
        paths, leaves, structure = library.tree_flatten_with_accessor(tree, namespace="plain")
        again = structure.unflatten(leaves)
        with_path = library.tree_map_with_accessor(
            lambda path, x: path.codify("x"), tree, namespace="plain"
        )
        found.append(
            {
                "leaves": leaves,
                "paths": [a.codify("tree") for a in paths],
                "same": structure.accessors() == paths,
                "kind": structure.type,
                "children": [c.type for c in structure.children()],
                "keys": isinstance(tree, tuple) or structure.entries(),
                "leaf": library.treespec_is_leaf(structure),
                "n": structure.num_leaves,
                "again": again,
                "order": list(again) if isinstance(tree, dict) else None,
                "map": library.tree_map(lambda x: [x], tree, namespace="plain"),
                "mapped": with_path,
                "nones": library.tree_flatten(tree, none_is_leaf=True, namespace="plain")[0],
                "up to": structure.flatten_up_to(again),
                "equal": structure == library.tree_structure(again, namespace="plain"),
                "lists": library.tree_leaves(
                    tree, lambda x: isinstance(x, list), namespace="plain"
                ),
                "all": library.tree_all(tree, namespace="plain"),
            }
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("other", TREES, ids=repr)
@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_plain_trees_errors_equal_optree(tree: Any, other: Any) -> None:
    found: list[Any] = []
    for library in BOTH:
        structure = library.tree_structure(tree, namespace="plain")
        equal = structure == library.tree_structure(other, namespace="plain")
        calls: list[Callable[[], Any]] = [
            lambda s=structure: s.flatten_up_to(other),
            lambda lib=library: lib.broadcast_prefix(
                tree, other, none_is_leaf=True, namespace="plain"
            ),
            lambda s=structure: s.unflatten(range(s.num_leaves + 1)),
        ]
        results: list[Any] = [equal]
        for call in calls:
            results.append("refused")
            with contextlib.suppress(ValueError):
                results[-1] = call()
        found.append(results)
    assert found[0] == found[1]
    assert found[0][-1] == "refused"
