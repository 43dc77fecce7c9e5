"""A function lowered for all sizes of its `Dim`s: the result of `lower` for symbolic shapes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from xfunc import tree
from xfunc.core.avals import Aval, ShapeDtypeStruct, SymbolicSize
from xfunc.errors import ShapeError, fail
from xfunc.stages import stages
from xfunc.stages.arguments import arguments_of
from xfunc.stages.options import Options
from xfunc.stages.stages import Parts
from xfunc.stages.staging import Staged
from xfunc.symbolic.binding import Declared, sizes_at
from xfunc.symbolic.box import Box
from xfunc.symbolic.bucket import Bucket, Maker, explained
from xfunc.symbolic.dim import dimension, merged, size_of
from xfunc.symbolic.fit import SymbolicModule
from xfunc.symbolic.polynomial import Polynomial, value
from xfunc.symbolic.rungs import Rungs
from xfunc.tree import Leaf


@dataclasses.dataclass(frozen=True, eq=False)
class LoweredRange:
    """A function as HLO for a range of shapes: a program for each bucket.

    Attributes:
        declared: which dimensions of the arguments vary, and between which bounds.
        in_tree: structure of ``(args, kwargs)``.
        in_avals: of its leaves, with `Dim`s among the sizes.
        buckets: by the largest size of each `Dim`, in the order of the box, the program and its
            source.
        maker: makes the programs.
        options: how the function was traced.
    """

    declared: Declared
    in_tree: tree.Structure
    in_avals: tuple[Aval, ...]
    buckets: dict[tuple[int, ...], tuple[Bucket, Parts]]
    maker: Maker
    options: Options

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.declared.function

    @property
    def typical(self) -> tuple[Bucket, Parts]:
        """The bucket whose results tell most about those of all: one of a single size has numbers
        instead of `Dim`s.
        """
        return max(self.buckets.values(), key=lambda found: _symbols(found[0]))

    @property
    def out_info(self) -> tree.PyTree:
        """The result as a tree of `ShapeDtypeStruct`, with sizes computed from the `Dim`s."""
        bucket, parts = self.typical
        box = self.declared.box
        avals = [
            ShapeDtypeStruct([dimension(s, box) for s in sizes], a.dtype)
            for sizes, a in zip(bucket.outputs, parts.entry.outputs, strict=True)
        ]
        return tree.unflatten(parts.entry.out_tree, avals)

    @property
    def static_positions(self) -> list[int]:
        """Positions of the arguments that are part of the program."""
        return [i for i, *_ in self.options.static or () if isinstance(i, int)]

    def as_text(self) -> str:
        """The HLO for all sizes, with shapes such as ``f32[B,S-1,16]``.

        Raises:
            ShapeError: each bucket has its own HLO.
        """
        found = self.maker.all_sizes()
        if isinstance(found, SymbolicModule):
            return str(found)
        fail(
            ShapeError,
            f"{self.name} is not one program for all sizes: {explained(found)}",
            "ask for one shape.",
        )


def lower(
    staged: Staged,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    options: Options,
    buckets: object,
    shardings: list[object],
) -> LoweredRange:
    """Lower a function for arguments with `Dim`s in their shapes.

    Args:
        staged: the function.
        args: positional arguments.
        kwargs: named ones.
        options: how it is traced.
        buckets: see `Rungs`.
        shardings: of the flat arguments; some may be None.

    Raises:
        ShapeError: there is no single program for all sizes of a bucket, or a `Dim` has no maximum.
    """
    leaves, structure = tree.flatten((args, kwargs))
    leaves, fixed = arguments_of(staged, leaves, structure)
    if fixed:  # Not with `arrays_only`, which jitted functions are.
        raise AssertionError(fixed)
    dims = tuple(_dims(x) for x in leaves)
    box = Box(merged(d for x in leaves for d in x.shape))
    rungs = Rungs(buckets, staged.name)
    rungs.check(box)
    ends = [rungs.all(name, r) for name, r in box.ranges.items()]
    tops = {n: (box.ranges[n].min, e[-1][1]) for n, e in zip(box.ranges, ends, strict=True)}
    declared = Declared(staged.name, tuple(staged.labels(structure)), dims, box.within(**tops))
    _check_bound(declared)
    at_least = {n: r.min for n, r in box.ranges.items()}
    avals = tuple(
        (sizes_at(d, tuple(x.shape), at_least), x.dtype) for d, x in zip(dims, leaves, strict=True)
    )
    maker = Maker(staged, declared, structure, avals, options)
    found = {}
    for cell in itertools.product(*ends):
        bucket = maker.bucket(dict(zip(box.ranges, cell, strict=True)))
        if bucket.entry is None:
            fail(
                ShapeError,
                f"{staged.name} has no program for a range of sizes: {bucket.why}",
                "lower it for each exact shape, or change what is named so that it is exact.",
            )
        high = {n: top for n, (_, top) in zip(box.ranges, cell, strict=True)}
        parts = _parts(staged, structure, leaves, dims, high, shardings, options)
        found[tuple(high.values())] = bucket, parts
    in_avals = tuple(
        Aval(x.shape, x.dtype, s if s is not None else getattr(x, "sharding", None))
        for x, s in zip(leaves, shardings, strict=True)
    )
    return LoweredRange(declared, structure, in_avals, found, maker, options)


def _symbols(bucket: Bucket) -> int:
    return sum(isinstance(s, Polynomial) for sizes in bucket.outputs for s in sizes)


def refuse_trace(name: str) -> NoReturn:
    """Refuse a trace for all sizes, and name the alternatives."""
    fail(
        ShapeError,
        f"{name} was to be traced for sizes that are not known yet",
        "call lower(...) for a program of all sizes, or xf.make_hlo and xf.eval_shape.",
    )


def refuse_limit(name: str) -> NoReturn:
    """Refuse a memory limit: a program for a range of sizes holds no plans."""
    fail(
        ValueError,
        f"{name} has a memory_limit, which a program for a range of sizes cannot keep",
        "lower the function without the limit, with the checkpoint policies that fit it.",
    )


def _parts(
    staged: Staged,
    structure: tree.Structure,
    leaves: list[Leaf],
    dims: tuple[Any, ...],
    env: dict[str, int],
    shardings: list[object],
    options: Options,
) -> Parts:
    """The function traced at a bucket's own shape."""
    at = [
        x if d is None else ShapeDtypeStruct(sizes_at(d, x.shape, env), x.dtype, x.sharding)
        for x, d in zip(leaves, dims, strict=True)
    ]
    args, kwargs = tree.unflatten(structure, at)
    return stages.trace(staged, args, kwargs, shardings, options).parts


def _dims(x: torch.Tensor | ShapeDtypeStruct) -> tuple[Any, ...] | None:
    if not any(isinstance(d, SymbolicSize) for d in x.shape):
        return None
    return tuple(size_of(d) for d in x.shape)  # type: ignore[arg-type]


def _check_bound(declared: Declared) -> None:
    """Refuse Dims that no argument determines; see `Declared.bind`."""
    env = {n: r.min for n, r in declared.box.ranges.items()}
    shapes = [tuple(value(s, env) for s in d or () if s is not None) for d in declared.dims]
    declared.bind(shapes)
