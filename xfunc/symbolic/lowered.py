"""A function lowered for all sizes of its `Dim`s: the result of `lower` for symbolic shapes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn

import torch

from xfunc import tree
from xfunc.backends.devices import device_count
from xfunc.core import ambient
from xfunc.core.avals import Aval, ShapeDtypeStruct, SymbolicSize
from xfunc.errors import ShapeError, fail, short_repr
from xfunc.hlo import Module
from xfunc.stages.arguments import arguments_of
from xfunc.stages.options import Options
from xfunc.stages.stages import Lowered, Traced
from xfunc.stages.staging import Staged
from xfunc.symbolic.binding import Declared, sizes_at
from xfunc.symbolic.bucket import Bucket, Ends, Maker, explained
from xfunc.symbolic.bucket_lookup import Rungs
from xfunc.symbolic.budget import (
    Planning,
    Target,
    held_by,
    of_chip,
    plans_of,
    traced_at,
    within_here,
)
from xfunc.symbolic.compiled import CompiledRange
from xfunc.symbolic.dim import dimension, merged, size_of
from xfunc.symbolic.interpolation import SymbolicModule
from xfunc.symbolic.pad import Scalars
from xfunc.symbolic.plans import Plans
from xfunc.symbolic.polynomial import Env, Polynomial, value
from xfunc.symbolic.shape_domain import ShapeDomain


@dataclasses.dataclass(frozen=True, eq=False)
class Programs:
    """The programs of a range of shapes.

    Attributes:
        buckets: by the largest size of each `Dim`, in the order of the box, the program and its
            source.
        makers: make the programs: one, or one for each plan that a memory limit led to.
    """

    buckets: dict[tuple[int, ...], tuple[Bucket, Traced]]
    makers: tuple[Maker, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class LoweredRange:
    """A function as HLO for a range of shapes: a program for each bucket.

    `at` gives one of them. Queries without sizes are about the largest bucket, which takes the most
    memory and time.

    Attributes:
        declared: which dimensions of the arguments vary, and between which bounds.
        in_tree: structure of ``(args, kwargs)``.
        in_avals: of its leaves, with `Dim`s among the sizes.
        made: makes the programs for a target; None: for the running device.
        options: how the function was traced.
        scalars: sizes on the device.
    """

    declared: Declared
    in_tree: tree.Structure
    in_avals: tuple[Aval, ...]
    made: Callable[[Target | None], Programs]
    options: Options
    scalars: Scalars = dataclasses.field(default_factory=Scalars)

    @functools.cached_property
    def programs(self) -> Programs:
        """The programs of the buckets."""
        return self.made(None)

    @property
    def buckets(self) -> dict[tuple[int, ...], tuple[Bucket, Traced]]:
        """See `Programs`."""
        return self.programs.buckets

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.declared.function

    @property
    def typical(self) -> tuple[Bucket, Traced]:
        """The bucket with the most general results: a bucket of a single size has numbers instead
        of `Dim`s.
        """
        return max(self.buckets.values(), key=lambda found: _symbols(found[0]))

    @property
    def out_tree(self) -> tree.Structure:
        """The structure of the result."""
        return self.typical[1].out_tree

    @property
    def out_info(self) -> tree.PyTree:
        """The result as a tree of `ShapeDtypeStruct`, with sizes computed from the `Dim`s."""
        bucket, traced = self.typical
        box = self.declared.box
        avals = [
            ShapeDtypeStruct([dimension(s, box) for s in sizes], a.dtype)
            for sizes, a in zip(bucket.outputs, traced.parts.entry.outputs, strict=True)
        ]
        return tree.unflatten(self.out_tree, avals)

    @property
    def static_positions(self) -> list[int]:
        """Positions of the arguments that are part of the program."""
        return [i for i, *_ in self.options.static or () if isinstance(i, int)]

    def at(self, **sizes: int) -> Lowered:
        """The program of the bucket that holds these sizes; a `Dim` left out has its largest.

        It takes the leaves of the arguments padded to the bucket's shape and the actual sizes, so
        it is for inspection: to run it, call ``compile()`` of the range.

        Raises:
            ValueError: a size of no `Dim`, or one that is no number.
            ShapeError: no bucket holds it.
        """
        key = self.key_of(sizes)
        return of_bucket(*self.buckets[key], len(key))

    @property
    def module(self) -> Module:
        """The HLO of the largest bucket, as data."""
        return self.at().module

    def as_text(self, dialect: str = "hlo") -> str:
        """The program as text.

        Args:
            dialect: ``"hlo"``: for all sizes, with shapes such as ``f32[B,S-1,16]``;
                ``"stablehlo"``: that of the largest bucket.

        Raises:
            ShapeError: each bucket has its own HLO.
            ValueError: another dialect.
        """
        if dialect != "hlo":
            return self.at().as_text(dialect)
        if len(self.programs.makers) > 1:
            fail(
                ShapeError,
                f"{self.name} is not one program for all sizes: memory_limit makes buckets keep "
                "other values for the backward pass",
                "ask for one bucket: at(...).as_text().",
            )
        found = next(iter(self.programs.makers)).all_sizes()
        if isinstance(found, SymbolicModule):
            return str(found)
        fail(
            ShapeError,
            f"{self.name} is not one program for all sizes: {explained(found)}",
            "ask for one bucket: at(...).as_text().",
        )

    def cost_analysis(self) -> dict[str, float]:
        """See `Lowered.cost_analysis`; of the largest bucket."""
        return self.at().cost_analysis()

    def compile(
        self,
        target: str | None = None,
        compiler_options: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> CompiledRange:
        """Compile the program of each bucket; runs nothing. See `Lowered.compile`.

        `timeout` is for each bucket.
        """
        lowered = self
        if target is not None:
            programs = self.made(Target(target, compiler_options, timeout))
            lowered = dataclasses.replace(self, made=lambda _: programs)
        compiled = {
            key: of_bucket(*found, len(key)).compile(target, compiler_options, timeout)
            for key, found in lowered.buckets.items()
        }
        return CompiledRange(lowered, compiled)

    def key_of(self, sizes: Mapping[str, object]) -> tuple[int, ...]:
        """The key in `buckets` of the smallest bucket that holds sizes; see `at`."""
        ranges = self.declared.box.ranges
        for name, n in sizes.items():
            if name not in ranges or not isinstance(n, int) or isinstance(n, bool):
                fail(
                    ValueError,
                    f"{self.name} was asked for its program at {name}={short_repr(n)}",
                    f"give a number for some of {', '.join(ranges)}.",
                )
            if n not in ranges[name]:
                r = ranges[name]
                step = f", multiples of {r.step}" * (r.step > 1)
                fail(
                    ShapeError,
                    f"{self.name} has no program at {name}={n}",
                    f"its sizes are {r.min} to {r.max}{step}.",
                )
        wanted = [sizes.get(n, r.max) for n, r in ranges.items()]
        holding = [
            key
            for key in self.buckets
            if all(n <= m for n, m in zip(wanted, key, strict=True))  # type: ignore[operator]
        ]
        key = min(holding)
        served = self.buckets[key][0].served
        refuse_small(self.name, served.first, sizes, served.why_small)
        return key


def refuse_small(name: str, first: Env, sizes: Mapping[str, object], why: str = "") -> None:
    """Refuse sizes below the first that the program of their bucket serves."""
    for n, size in sizes.items():
        if isinstance(size, int) and size < first.get(n, 0):
            fail(
                ShapeError,
                f"{name} has no program at {n}={size}, where it differs from that of its bucket"
                f"{f': {why}' if why else ''}",
                f"give it buckets that end at {n}={size} before it is lowered, or declare "
                f"Dim({n!r}, min={first[n]}).",
            )


def of_bucket(bucket: Bucket, traced: Traced, symbols: int) -> Lowered:
    """The program of a bucket, as `LoweredRange.at` describes it; it takes so many sizes."""
    entry, n = bucket.entry, len(traced.in_avals)
    assert entry is not None
    tiles = traced.parts.tiles
    if tiles:
        n += len(traced.parts.entry.captures)
        tiles = (*tiles[:n], *[None] * symbols, *tiles[n:])
    parts = dataclasses.replace(traced.parts, entry=entry, tiles=tiles, is_padded=True)
    return Lowered(dataclasses.replace(traced, parts=parts))


def lower(
    staged: Staged,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    options: Options,
    buckets: object,
    shardings: list[object],
    planning: Planning | None = None,
) -> LoweredRange:
    """Lower a function for arguments with `Dim`s in their shapes.

    Args:
        staged: the function.
        args: positional arguments.
        kwargs: named ones.
        options: how it is traced.
        buckets: see `Rungs`.
        shardings: of the flat arguments; some may be None.
        planning: under a memory limit; None: no limit.

    Raises:
        ShapeError: there is no single program for all sizes of a bucket, or a `Dim` has no maximum.
    """
    leaves, structure = tree.flatten((args, kwargs))
    leaves, fixed = arguments_of(staged, leaves, structure)
    if fixed:  # Not with `arrays_only`, which jitted functions are.
        raise AssertionError(fixed)
    dims = tuple(_dims(x) for x in leaves)
    box = ShapeDomain(merged(d for x in leaves for d in x.shape))
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
    makers: dict[Hashable, Maker] = {}  # by the plan

    def made(ends: Ends) -> tuple[Maker, Bucket]:
        """The program of a bucket under the plan that is set."""
        new = Maker(staged, declared, structure, avals, options)
        maker = makers.setdefault(ambient.context_key(), new)
        return maker, maker.bucket(ends)

    cells = [dict(zip(box.ranges, cell, strict=True)) for cell in itertools.product(*ends)]
    trace = functools.partial(traced_at, staged, structure, leaves, dims, shardings, options)

    def programs(plans: Plans | None = None) -> Programs:
        found: dict[tuple[int, ...], tuple[Bucket, Traced]] = {}
        used: list[Maker] = []
        for cell in cells:
            high = _top(cell)
            plan = None if plans is None else plans.choose(high)
            with nullcontext() if plan is None else ambient.overridden(plan.override):
                maker, bucket = made(cell)
                if (why := bucket.why_no_range()) is not None:
                    fail(
                        ShapeError,
                        f"{staged.name} has no program for a range of sizes: {why}",
                        "lower it for each exact shape, or change what is named so that it is "
                        "exact.",
                    )
                found[tuple(high.values())] = bucket, trace(high)
            used.append(maker)
        return Programs(found, tuple(dict.fromkeys(used)))

    def planned(planning: Planning, target: Target | None) -> Programs:
        plans = _plans(staged, box, planning.bytes, trace, made, cells, target)
        planning.note(plans)
        return programs(plans)

    in_avals = tuple(
        Aval(x.shape, x.dtype, s if s is not None else getattr(x, "sharding", None))
        for x, s in zip(leaves, shardings, strict=True)
    )
    if planning is None:
        known = programs()
        return LoweredRange(declared, structure, in_avals, lambda _: known, options)
    trace(_top(cells[-1]))  # Its errors are raised now.
    by_target = within_here(functools.partial(planned, planning))
    return LoweredRange(declared, structure, in_avals, by_target, options)


def _symbols(bucket: Bucket) -> int:
    return sum(isinstance(s, Polynomial) for sizes in bucket.outputs for s in sizes)


def refuse_trace(name: str) -> NoReturn:
    """Refuse a trace for all sizes, and name the alternatives."""
    fail(
        ShapeError,
        f"{name} was to be traced for sizes that are not known yet",
        "call lower(...) for a program of all sizes, or xf.make_hlo and xf.eval_shape.",
    )


def _plans(
    staged: Staged,
    box: ShapeDomain,
    limit: int,
    trace: Callable[[Env], Traced],
    made: Callable[[Ends], tuple[Maker, Bucket]],
    cells: Sequence[Ends],
    target: Target | None,
) -> Plans:
    """The values that the programs of the buckets may keep for the backward pass."""

    def measure(env: Env) -> int | None:
        (cell,) = (c for c in cells if _top(c) == env)
        bucket = made(cell)[1]
        if bucket.entry is None:
            return None
        if target is not None:
            return target.held(of_bucket(bucket, trace(env), len(env)))
        return None if device_count() > 1 else held_by(bucket.entry)

    return plans_of(staged, lambda env: of_chip(trace(env).parts), box, limit, measure, target)


def _top(cell: Ends) -> dict[str, int]:
    return {n: high for n, (_, high) in cell.items()}


def _dims(x: torch.Tensor | ShapeDtypeStruct) -> tuple[Any, ...] | None:
    if not any(isinstance(d, SymbolicSize) for d in x.shape):
        return None
    return tuple(size_of(d) for d in x.shape)  # type: ignore[arg-type]


def _check_bound(declared: Declared) -> None:
    """Refuse Dims that no argument determines; see `Declared.bind`."""
    env = {n: r.min for n, r in declared.box.ranges.items()}
    shapes = [tuple(value(s, env) for s in d or () if s is not None) for d in declared.dims]
    declared.bind(shapes)
