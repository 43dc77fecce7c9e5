"""The shardings of a jitted function's inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from xfunc import tree
from xfunc.backends.placement import as_argument
from xfunc.core.types import Sharding
from xfunc.sharding.prefix import is_sharding, shardings_of
from xfunc.sharding.spec import NamedSharding
from xfunc.stages.staging import Staged
from xfunc.tree import Function, PyTree


def hashable(shardings: object) -> Hashable:
    """A tree of shardings, by value."""
    leaves, structure = tree.flatten(shardings, is_sharding)
    return tuple(leaves), structure


def in_order(shardings: object, args: tuple[object, ...], name: str) -> list[NamedSharding | None]:
    """The sharding of each leaf of the arguments of a function, or None."""
    found = shardings_of(shardings, args, "in_shardings", f"the arguments of {name}")
    return [s for s, _ in found]


def as_arguments(
    args: tuple[object, ...],
    wanted: Sequence[Sharding | None],
    staged: Staged,
    kwargs: Mapping[str, object],
) -> tuple[PyTree, ...]:
    """The arguments, sharded."""
    leaves, structure = tree.flatten(args)
    labels = staged.labels(tree.structure((args, kwargs)))
    made = [
        x if s is None else as_argument(x, s, staged.name, label)
        for x, s, label in zip(leaves, wanted, labels, strict=False)
    ]
    return tree.unflatten(structure, made)


def constrained(
    fun: Callable[..., object],
    wanted: Callable[[tuple[object, ...]], Sequence[object]],
    out: object,
) -> Function:
    """The function, with its positional arguments and its result sharded."""
    from xfunc.sharding.constraint import with_sharding_constraint

    def call(*args: object, **kwargs: object) -> PyTree:
        leaves, structure = tree.flatten(args)
        leaves = [
            x if s is None else with_sharding_constraint(x, s)
            for x, s in zip(leaves, wanted(args), strict=True)
        ]
        result = fun(*structure.unflatten(leaves), **kwargs)
        if out is None:
            return result
        leaves, structure = tree.flatten(result)
        found = shardings_of(out, result, "out_shardings", "the result")
        return structure.unflatten(
            x if s is None else with_sharding_constraint(x, s)
            for x, (s, _) in zip(leaves, found, strict=True)
        )

    return call
