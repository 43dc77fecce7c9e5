"""A function called with any shape: traced at a few, compiled once for each bucket."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from xfunc import tree
from xfunc.backends.devices import device_count
from xfunc.backends.lock import lock, turn
from xfunc.core import ambient
from xfunc.core.avals import AvalKey
from xfunc.errors import OutOfMemoryError, TreeMismatchError, fail, short_repr
from xfunc.hlo import Module
from xfunc.program.bind import ad_depth
from xfunc.stages.arguments import arguments_of, avals_of, prepare
from xfunc.stages.options import Options
from xfunc.stages.staging import Staged, first_run, inspected, run_staged
from xfunc.symbolic.auto import Auto
from xfunc.symbolic.binding import Declared, declare, sizes_at
from xfunc.symbolic.bucket import Bucket, Maker, untraceable
from xfunc.symbolic.bucket_lookup import Rungs
from xfunc.symbolic.budget import abstract, fixed, held_by, of_chip, plans_of, traced_at
from xfunc.symbolic.call_cache import CachedCall, Memory, padded_leaves
from xfunc.symbolic.pad import Scalars
from xfunc.symbolic.plans import Plans
from xfunc.torchlib.storageless import check_surroundings
from xfunc.torchlib.values import check_array
from xfunc.tree import Leaf, PyTree

Divide = Callable[[tuple[object, ...], dict[str, object]], tuple[object, ...]]

_Name = tuple[tuple[str, int], ...]  # a bucket: the size of each symbol

_ONE_SIZE = Bucket(None, None, why="the bucket is of one size")
_WATCHED = Bucket(None, None, why="autograd watched an argument or a tensor that it holds")


class _Given(NamedTuple):
    """A call as it was made."""

    args: tuple[object, ...]
    kwargs: dict[str, object]
    options: Options
    divide: Divide | None


class Dynamic:
    """The programs of a function with symbolic dimensions in its arguments.

    Args:
        staged: the function.
        spec: `dynamic_shapes`.
        buckets: see `Rungs`.
        limit: bytes that a program may use on a device, or None.
    """

    def __init__(
        self, staged: Staged, spec: object, buckets: object, limit: int | None = None
    ) -> None:
        if not isinstance(spec, (tuple, list, dict)):
            fail(
                TreeMismatchError,
                f"dynamic_shapes of {staged.name} is {short_repr(spec)}",
                "give a tuple with an entry for each positional argument, or a dict by name.",
            )
        self._staged, self._spec = staged, spec
        self._rungs = Rungs(buckets, staged.name)
        self._declared: dict[tree.Structure, Declared] = {}
        self._makers: dict[object, Maker] = {}
        self._buckets: dict[object, Bucket] = {}
        self._calls: collections.Counter[_Name] = collections.Counter()
        self._cells: collections.Counter[_Name] = collections.Counter()
        self._served: dict[_Name, Bucket] = {}
        self._auto: dict[tuple[str, ...], Auto] = {}
        self._scalars, self._memory = Scalars(), Memory()
        self._limit = limit
        self._plans: dict[object, Plans] = {}

    def run(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        options: Options,
        divide: Divide | None = None,
        wanted: Sequence[object] = (),
    ) -> Any:
        """Call the function.

        Args:
            args: positional arguments.
            kwargs: keyword arguments.
            options: how it is traced.
            divide: puts positional arguments on the devices as the function requires.
            wanted: the shardings that it requires of flat arguments; some may be None.
        """
        check_surroundings(self._staged.name)
        with lock:
            leaves, structure = tree.flatten((args, kwargs))
            given = _Given(args, kwargs, options, divide)
            key = self._memory.key(leaves, structure, options)
            seen = self._memory.find(key)
            declared = seen.declared if seen else self.declared(structure, args, kwargs)
            env = seen.env if seen else declared.bind([getattr(x, "shape", ()) for x in leaves])
            auto = self._auto.get(tuple(declared.box.ranges))
            if auto is not None:
                auto.note(env)
            ends = self._ends(declared, env)
            if seen and seen.rung == ends and divide is None:
                found = seen.arguments(self._staged, leaves, structure, options)
                if found is not None:
                    return self._launch(seen, *found, given)
            if self._limit is None:
                return self._call(key, declared, leaves, structure, env, ends, given)
            with turn(self):
                plans = self._plans_of(declared, leaves, structure, options, wanted)
                largest = {n: high for n, (_, high) in ends.items()}
                padded = any(low < high for low, high in ends.values())
                misfit = plans.misfit(largest, padded) if padded else None
                if misfit is not None:
                    # The program of its own size may fit where the bucket's does not.
                    ends, padded = {n: (s, s) for n, s in env.items()}, False
                try:
                    plan = plans.choose({n: high for n, (_, high) in ends.items()}, padded)
                except OutOfMemoryError as error:
                    raise _lesser(error, misfit) from None
            with ambient.overridden(plan.override):
                return self._call(key, declared, leaves, structure, env, ends, given)

    def _ends(self, declared: Declared, env: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """The smallest and the largest sizes of the bucket that holds these."""
        auto = self._auto.get(tuple(declared.box.ranges))
        if auto is not None:
            return auto.ends(env)
        return {n: self._rungs.of(n, s, declared.box.ranges[n]) for n, s in env.items()}

    def _plans_of(
        self,
        declared: Declared,
        leaves: list[object],
        structure: tree.Structure,
        options: Options,
        wanted: Sequence[object],
    ) -> Plans:
        """The plans for calls of one kind."""
        assert self._limit is not None
        avals = avals_of(arguments_of(self._staged, leaves, structure)[0])
        key = (self._kind(declared, structure, avals, options), ambient.context_key())
        if key not in self._plans:
            options = options._replace(donated=fixed(options))
            maker = Maker(self._staged, declared, structure, avals, options)

            # On the CPU, where it is padded, an argument has no sharding, but it will have one.
            like = [abstract(x) for x in leaves]

            def trace(env: Mapping[str, int]) -> tuple[Module, tuple[int, ...]]:
                staged, dims = self._staged, declared.dims
                with staged.cache.uncounted():
                    found = traced_at(staged, structure, like, dims, wanted, options, env)
                return of_chip(found.parts)

            def measure(env: Mapping[str, int]) -> int | None:
                return None if device_count() > 1 else held_by(maker.entry(env)[0])

            def measure_padded(env: Mapping[str, int]) -> int | None:
                if device_count() > 1:
                    return None
                sizes = [
                    (sizes_at(dims, shape, env), dtype)
                    for dims, (shape, dtype) in zip(declared.dims, avals, strict=True)
                ]
                ends = self._ends(declared, env)
                bucket, _ = self._bucket(declared, structure, tuple(sizes), ends, options)
                return held_by(bucket.entry or maker.entry(env)[0])

            self._plans[key] = plans_of(
                self._staged, trace, declared.box, self._limit, measure, None, measure_padded
            )
        return self._plans[key]

    def _call(
        self,
        key: Hashable,
        declared: Declared,
        leaves: Sequence[Leaf],
        structure: tree.Structure,
        env: Mapping[str, int],
        ends: Mapping[str, tuple[int, int]],
        given: _Given,
        rung: Mapping[str, tuple[int, int]] | None = None,
    ) -> object:
        """Call the function in the bucket between `ends`; or in that part of the bucket `rung`."""
        with lock:
            options = given.options
            largest = {n: high for n, (_, high) in ends.items()}
            why = self._exact_of(leaves, ends)
            if why is None:
                padding = tuple(
                    (k, sizes_at(declared.dims[k], leaves[k].shape, largest))
                    for k in declared.varying
                )
                labels = declared.labels
                for x, label in zip(leaves, labels, strict=True):
                    if isinstance(x, torch.Tensor):
                        check_array(x, self._staged.name, label)
                wide = padded_leaves(leaves, padding)
                if given.divide is not None:
                    args, kwargs = tree.unflatten(structure, wide)
                    wide = tree.leaves((given.divide(args, kwargs), kwargs))
                flat, _ = prepare(self._staged, wide, structure)
                avals = avals_of(flat)
                whole = declared if rung is None else declared.where(ends)
                with turn(self):
                    bucket, held = self._bucket(whole, structure, avals, ends, options)
                    part = None if bucket.entry is None else bucket.part(env)
                why = bucket if bucket.entry is None else None
                if bucket.is_watched(held):
                    why = _WATCHED
                if why is None and part is not None:
                    own, reason = part
                    if any(low < high for low, high in own.values()):
                        return self._call(
                            key, declared, leaves, structure, env, own, given, rung or ends
                        )
                    ends, why = own, Bucket(None, None, why=reason)
                if why is None:
                    seen = CachedCall(
                        declared,
                        bucket,
                        ambient.override(),
                        env,
                        rung or ends,
                        ends,
                        padding,
                        avals,
                    )
                    self._memory.add(key, seen)
                    return self._launch(seen, flat, held, given)
            self._note(ends, env, why)
            args = given.args
            if given.divide is not None:
                args = given.divide(args, given.kwargs)
            with ambient.asking_sizes():  # as for the buckets, so that nothing is traced twice
                return run_staged(self._staged, args, given.kwargs, options)

    def _launch(
        self,
        seen: CachedCall,
        flat: list[torch.Tensor],
        held: Sequence[torch.Tensor],
        given: _Given,
    ) -> object:
        """Run the program of a bucket."""
        bucket, env = seen.bucket, seen.env
        assert bucket.entry is not None
        self._note(seen.ends, env, bucket)
        sizes = self._scalars.of(env[n] for n in seen.declared.box.ranges)
        cut, held = _Cut(bucket, env), [*held, *sizes]
        if bucket.entry.executable is None or device_count() > 1:
            result = first_run(self._staged.cache, cut, flat, held)
        else:
            result = cut.result(cut.run(flat, held))
        call = given.args, given.kwargs, given.options
        inspected(self._staged, *call, result, bucket.entry, flat, held)
        return result

    def declared(
        self, structure: tree.Structure, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Declared:
        """The dimensions of the leaves of arguments."""
        if structure not in self._declared:
            staged = self._staged
            found = declare(
                staged.name, self._spec, args, kwargs, staged.parameters, staged.labels(structure)
            )
            self._rungs.check(found.box)
            if (auto := self._rungs.auto(found.box)) is not None:
                self._auto.setdefault(tuple(found.box.ranges), auto)
            self._declared[structure] = found
        return self._declared[structure]

    def _exact_of(
        self, leaves: Sequence[object], ends: Mapping[str, tuple[int, int]]
    ) -> Bucket | None:
        """Why a call uses its exact shape, if it does so regardless of the function."""
        if all(low == high for low, high in ends.values()):
            return _ONE_SIZE
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        return _WATCHED if ad_depth(tensors) else None

    def _bucket(
        self,
        declared: Declared,
        structure: tree.Structure,
        avals: tuple[AvalKey, ...],
        ends: Mapping[str, tuple[int, int]],
        options: Options,
    ) -> tuple[Bucket, list[torch.Tensor]]:
        options = options._replace(effects_allowed=True)
        key = (structure, avals, options.static, ambient.context_key())
        found = self._buckets.get(key)
        if found is not None and found.source is None:
            return found, []
        try:
            with ambient.asking_sizes():
                entry, held = self._staged.find(structure, avals, None, options)
        except Exception as error:  # Other sizes may be fine.
            found = self._buckets[key] = Bucket(None, None, why=untraceable(ends, error))
            return found, []
        # The entry is a different one once something the function depends on has changed; with
        # another ladder, the same bucket may have smaller sizes.
        if found is None or found.source is not entry or not found.holds(ends):
            maker = Maker(self._staged, declared, structure, avals, options)
            found = self._maker(declared, maker, structure, avals, options).bucket(ends)
            self._buckets[key] = found
        return found, held

    def _maker(
        self,
        declared: Declared,
        maker: Maker,
        structure: tree.Structure,
        avals: tuple[AvalKey, ...],
        options: Options,
    ) -> Maker:
        sizes = tuple(declared.box.ranges.items())
        value = (self._kind(declared, structure, avals, options), ambient.context_key(), sizes)
        return self._makers.setdefault(value, maker)

    def _kind(
        self,
        declared: Declared,
        structure: tree.Structure,
        avals: tuple[AvalKey, ...],
        options: Options,
    ) -> Hashable:
        """The common part of calls that only differ in sizes."""
        plain = tuple(
            (shape if dims is None else dims, dtype)
            for dims, (shape, dtype) in zip(declared.dims, avals, strict=True)
        )
        return structure, plain, options.static, self._staged.function_value()[0]

    def _note(
        self, ends: Mapping[str, tuple[int, int]], env: Mapping[str, int], bucket: Bucket
    ) -> None:
        name = tuple([(n, high) for n, (_, high) in ends.items()])
        self._calls[name] += 1
        used = whole = 1
        for n, high in name:
            used, whole = used * env[n], whole * high
        self._cells[name] += used / whole  # type: ignore[assignment]
        self._served[name] = bucket

    def note(self, plans: Plans) -> None:
        """Show further plans in `explain`."""
        self._plans[object()] = plans

    def explain(self) -> str:
        """The buckets used so far, and their state."""
        lines = []
        for name, calls in sorted(self._calls.items()):
            bucket = self._served[name]
            sizes = ", ".join(f"{n}<={high}" for n, high in name)
            if bucket.entry is None:
                what = f"a program for each exact shape: {bucket.why}"
            else:
                waste = 1 - self._cells[name] / calls
                unsure = bucket.served.unsure
                own = ", traced for this bucket: other sizes take other paths"
                what = (
                    f"one program, {bucket.masks} masks, {waste:.0%} padding"
                    f"{own if bucket.per_bucket else ''}"
                    f"{f', each size traced: {unsure.why}' if unsure else ''}"
                )
            lines.append(f"bucket {sizes}: {calls} calls, {what}")
        lines += [
            f"the ladder changed {a.changes} time{'s' * (a.changes > 1)}"
            for a in self._auto.values()
            if a.changes
        ]
        lines += [plans.explain() for plans in self._plans.values()]
        return "\n".join(lines)


class _Cut:
    """The entry of a bucket, with its results cut to their exact shapes."""

    def __init__(self, bucket: Bucket, env: Mapping[str, int]) -> None:
        self._bucket, self._env = bucket, env

    def run(self, leaves: list[torch.Tensor], held: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        assert self._bucket.entry is not None
        return self._bucket.cut(self._bucket.entry.run(leaves, held), self._env)

    def result(self, outs: Sequence[torch.Tensor]) -> PyTree:
        assert self._bucket.entry is not None
        return self._bucket.entry.result(outs)


def _lesser(error: OutOfMemoryError, of_bucket: Exception | None) -> OutOfMemoryError:
    """The one that needs less: the program of the size itself, or that of its bucket."""
    if not isinstance(of_bucket, OutOfMemoryError):
        return error
    return min(error, of_bucket, key=lambda e: e.required_bytes or math.inf)
