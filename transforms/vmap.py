"""`vmap`: batching.

NOTE [batches of nothing]: without examples, many of torch's rules for batches fail, or return other
shapes. So the function runs on one example of zeros, whose results give the shapes; nothing else
depends on it. The batch stays empty with a named axis, whose collectives can have its size in their
shapes, and under `disable_jit`, where loops would run on the zeros, perhaps without end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import ParamSpec, TypeVar, cast

import optree
import torch

from xfunc import tree
from xfunc.core.avals import short
from xfunc.core.locations import described
from xfunc.errors import TreeMismatchError, fail, format_error, short_repr
from xfunc.program.named_axes import named
from xfunc.stages.arguments import as_outputs
from xfunc.stages.checks import Tensor, arrays, as_arrays, as_tensor, is_sequence
from xfunc.stages.transformed import CallableOrLambda, Transform
from xfunc.torchlib import batching, functorch
from xfunc.trace import effects, tracing
from xfunc.tree import PyTree

P = ParamSpec("P")
R = TypeVar("R")


def vmap(
    fun: CallableOrLambda[P, R],
    in_axes: object = 0,
    out_axes: object = 0,
    axis_name: str | None = None,
    axis_size: int | None = None,
    spmd_axis_name: str | tuple[str, ...] | None = None,
) -> Vmap[P, R]:
    """A function that maps `fun` over an axis of its arguments, as one batched computation.

    Args:
        fun: a function of trees of tensors.
        in_axes: the axis to map over: one for all positional arguments, or a tuple with, for each,
            an axis, None (the same for all), or a tree prefix of those. Keyword arguments are
            mapped over their axis 0.
        out_axes: where the mapped axis goes in the outputs: an axis or None (the output must be
            the same for all), or a tree prefix of those.
        axis_size: size of the mapped axis; needed only if nothing is mapped over.
        axis_name: a name for the mapped axis. The examples then communicate along it with the
            collectives (`psum`, `all_gather`, ...), as devices do along an axis of a mesh.
        spmd_axis_name: an axis of a mesh, or a tuple of axes, to shard the examples over. A
            `with_sharding_constraint` in `fun` shards the mapped axis over it; and a `shard_map`
            there gives each device its part of the examples. They must name other axes.

    Returns:
        A function of the same arguments. With n examples, an output leaf of `fun` of shape
        ``[...]`` becomes ``[n, ...]``, with the n where `out_axes` says; ``[...]`` for None.

    Raises:
        TreeMismatchError: the mapped axes differ in size, or `in_axes` does not fit the arguments.
        ValueError: nothing is mapped over, or an output for None depends on the mapped axis.

    Source: ``jax.vmap``.
    """
    in_axes = in_axes if not isinstance(in_axes, list) else tuple(cast("list[object]", in_axes))
    axes: object = (spmd_axis_name,) if isinstance(spmd_axis_name, str) else spmd_axis_name or ()
    if not is_sequence(axes) or not all(isinstance(a, str) for a in axes):
        fail(
            TypeError,
            f"vmap of {described(fun)} was given spmd_axis_name={short_repr(spmd_axis_name)}",
            "give the name of a mesh axis, or a tuple of names.",
        )
    return Vmap(fun, in_axes, out_axes, axis_size, axis_name, tuple(axes))


class Vmap(Transform[P, R]):
    """The result of `vmap`."""

    def __init__(
        self,
        fun: Callable[P, R],
        in_axes: object,
        out_axes: object,
        axis_size: int | None,
        axis_name: str | None,
        mesh_axes: tuple[str, ...],
    ):
        self._in_axes: PyTree = in_axes
        self._out_axes, self._axis_size = out_axes, axis_size
        self._axis_name: object = axis_name
        self._mesh_axes = mesh_axes
        options = (_freeze(in_axes), _freeze(out_axes), axis_size, axis_name, mesh_axes)
        super().__init__(fun, options, "vmap")

    def apply(self, *args: P.args, **kwargs: P.kwargs) -> R:
        name = self.__name__
        given, structure = tree.flatten((args, kwargs))
        dims = self._dims(structure)
        # Unmapped arguments may be anything, and Python numbers among them stay numbers.
        given = [
            as_arrays(x) if d is None else as_tensor(x) for d, x in zip(dims, given, strict=True)
        ]
        places = [i for i, d in enumerate(dims) if d is not None or isinstance(given[i], Tensor)]
        labels = self._staged.labels(structure)
        paths = [labels[i] for i in places]
        leaves = arrays([given[i] for i in places], name, paths)
        dims = [
            _checked(dims[i], x, p, name) for i, x, p in zip(places, leaves, paths, strict=True)
        ]
        size = self._size(leaves, dims, paths)
        trace, axes = tracing.current(), self._mesh_axes
        # See NOTE [batches of nothing].
        is_empty = not size and self._axis_name is None and trace is not None
        if is_empty:
            size, axes = 1, ()
            leaves = [
                x if d is None else x.new_zeros([*x.shape[:d], 1, *x.shape[d + 1 :]])
                for d, x in zip(dims, leaves, strict=True)
            ]
        out_trees: list[tree.Structure] = []
        out_axes: list[int | None] = []
        shared: dict[int, Tensor] = {}  # outputs without an axis

        def flat(*xs: Tensor) -> tuple[Tensor, ...] | Tensor:
            full = list(given)
            for i, x in zip(places, xs, strict=True):
                full[i] = x
            a, k = tree.unflatten(structure, full)
            out = self.fun(*a, **k)
            outs, out_tree = tree.flatten(out)
            outs = as_outputs(name, outs, out_tree)
            out_trees[:] = [out_tree]
            out_axes[:] = _per_leaf(self._out_axes, out, name, "out_axes")
            for i, (o, d) in enumerate(zip(outs, out_axes, strict=True)):
                if d is not None:
                    continue
                shared[i] = o
                if functorch.is_batched_here(o):
                    fail(
                        ValueError,
                        f"{name} has out_axes None for an output ({short(o)}) that depends on "
                        "the mapped axis",
                        "give it an axis.",
                    )
            return tuple(outs) or torch.zeros(())

        if self._axis_name is not None or all(d is None for d in dims):
            # torch.func.vmap needs something to map over, and a named axis its indices.
            indices = torch.arange(size, device=leaves[0].device if leaves else None)

            def with_index(index: Tensor, *xs: Tensor) -> tuple[Tensor, ...] | Tensor:
                with self._named(size, index):
                    return flat(*xs)

            run, dims, leaves = with_index, [0, *dims], [indices, *leaves]
        else:
            run = flat
        with effects.collected(True) if is_empty else contextlib.nullcontext():
            outs = batching.vmap(trace, run, dims, leaves, axes)
        if is_empty:
            outs = [o.new_zeros((0, *o.shape[1:])) for o in outs]
        for o, d in zip(outs, out_axes, strict=False):
            if d is not None and (type(d) is not int or not -o.ndim <= d < o.ndim):
                fail(
                    TreeMismatchError,
                    f"{name} has out_axes {d!r} for an output that is then {short(o)}",
                    "give an axis that the batched output has.",
                )
        placed = [
            shared[i] if d is None else o.movedim(0, d)
            for i, (o, d) in enumerate(zip(outs, out_axes, strict=False))
        ]
        return tree.unflatten(out_trees[0], placed)

    def _named(self, size: int, index: Tensor) -> contextlib.AbstractContextManager[None]:
        """Make the axis known by its name in a block."""
        name = self._axis_name
        if name is None:
            return contextlib.nullcontext()
        if not isinstance(name, str):
            fail(
                TypeError,
                f"{self.__name__} was given axis_name={short_repr(name)}",
                "give a string.",
            )
        return named(name, size, index)

    def static_scalars(self, structure: tree.Structure) -> Sequence[bool]:
        return [d is None for d in self._dims(structure)]

    def _dims(self, structure: tree.Structure) -> list[int | None]:
        """The axis that each flat argument is mapped over."""
        name = self.__name__
        args, kwargs = tree.unflatten(structure, range(structure.num_leaves))
        own, mapped = self._in_axes, isinstance(self._in_axes, tuple)
        entries = len(own) if mapped else len(args)
        if entries != len(args):
            fail(
                TreeMismatchError,
                f"{name} has {entries} in_axes for {len(args)} positional arguments",
                "give one entry for each positional argument, or one axis for all.",
            )
        return [*_per_leaf(own, args, name, "in_axes"), *(0 for _ in tree.leaves(kwargs))]

    def _size(self, leaves: list[Tensor], dims: list[int | None], paths: list[str]) -> int:
        sizes = {
            p: x.shape[d] for x, d, p in zip(leaves, dims, paths, strict=True) if d is not None
        }
        if self._axis_size is not None:
            sizes["axis_size"] = self._axis_size
        if not sizes:
            fail(
                ValueError,
                f"{self.__name__} has nothing to map over",
                "give an in_axes that is not None, or axis_size.",
            )
        if len(set(sizes.values())) > 1:
            lines = "".join(f"\n  {p}: {n}" for p, n in sizes.items())
            fail(
                TreeMismatchError,
                f"{self.__name__}: the mapped axes of {described(self.fun)} differ in size:{lines}",
                "map over axes of one size, or None for what is the same for all.",
            )
        return next(iter(sizes.values()))


def _freeze(axes: PyTree) -> Hashable:
    leaves, structure = optree.tree_flatten(axes, none_is_leaf=True, namespace=tree.NAMESPACE)
    return (tuple(leaves), structure)


def _checked(d: int | None, x: Tensor, path: str, name: str) -> int | None:
    if d is None:
        return None
    if type(d) is not int or not -x.ndim <= d < x.ndim:
        fail(
            TreeMismatchError,
            f"{name} maps over axis {d!r} of {path}, which is {short(x)}",
            "give an axis that the array has, or None.",
        )
    return d % x.ndim


def _per_leaf(axes: PyTree, of: PyTree, name: str, what: str) -> list[int | None]:
    """The entry of a tree prefix that applies to each leaf of `of`."""
    # None is an entry of the prefix, but not a leaf of the tree.
    flat, structure = optree.tree_flatten(of, none_is_leaf=True, namespace=tree.NAMESPACE)
    dummy = structure.unflatten(range(len(flat)))
    try:
        full = optree.broadcast_prefix(axes, dummy, none_is_leaf=True, namespace=tree.NAMESPACE)
    except ValueError as error:
        raise TreeMismatchError(
            format_error(
                f"{name}: {what}={axes!r} is not a prefix of its tree ({error})",
                "give one axis for all, or a tree prefix of it with an axis at each leaf.",
            )
        ) from None
    return [d for d, x in zip(full, flat, strict=True) if x is not None]
