"""`shard_map`: a function that each device runs on its own part of the data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import ParamSpec, Protocol, TypeVar, overload

from xfunc import tree
from xfunc.core import ambient
from xfunc.core.avals import Aval, short
from xfunc.core.locations import described
from xfunc.core.wrappers import Part
from xfunc.errors import ShardingError, fail, short_repr
from xfunc.program.bind import ad_depth, bind
from xfunc.program.primitive import Tensor
from xfunc.program.program import differentiable
from xfunc.sharding.jit_shardings import hashable
from xfunc.sharding.manual import Region, inside
from xfunc.sharding.manual_region import RegionValue, analyze_outputs
from xfunc.sharding.mesh import AbstractMesh
from xfunc.sharding.prefix import broadcast
from xfunc.sharding.shard_map_primitive import ShardMap
from xfunc.sharding.spec import NamedSharding, PartitionSpec, check_shape
from xfunc.sharding.typeof import typed_arguments
from xfunc.stages.checks import arrays, as_tensors, labels_in
from xfunc.stages.entry import Entry
from xfunc.stages.options import Options
from xfunc.stages.staging import Staged
from xfunc.stages.transformed import CallableOrLambda, Transform
from xfunc.torchlib.eager import disable_jit, is_eager
from xfunc.torchlib.values import is_tracked
from xfunc.trace import effects
from xfunc.tree import PyTree

P = ParamSpec("P")
R = TypeVar("R")
_NO_SPECS = object()


@overload
def shard_map(
    f: CallableOrLambda[P, R],
    mesh: AbstractMesh | None = None,
    in_specs: object = ...,
    out_specs: object = ...,
    axis_names: Collection[str] | None = None,
    check_vma: bool = True,
    check_rep: bool | None = None,
) -> ShardMapped[P, R]: ...
@overload
def shard_map(
    f: None = None,
    mesh: AbstractMesh | None = None,
    in_specs: object = ...,
    out_specs: object = ...,
    axis_names: Collection[str] | None = None,
    check_vma: bool = True,
    check_rep: bool | None = None,
) -> _Decorator: ...
def shard_map(
    f: Callable[..., object] | None = None,
    mesh: AbstractMesh | None = None,
    in_specs: object = _NO_SPECS,
    out_specs: object = _NO_SPECS,
    axis_names: Collection[str] | None = None,
    check_vma: bool = True,
    check_rep: bool | None = None,
) -> ShardMapped[..., PyTree] | _Decorator:
    """A function of whole arrays that runs `f` on each device's shards of them.

    Along each dimension an array is cut into as many parts as the axes in its spec have devices.
    `f` is traced once, on the shape of a part; the devices communicate with the collectives
    (`psum`, `all_gather`, ...). Values that it closes over are replicated.

    Differentiated from outside, it has the gradients of the function of whole arrays. A gradient
    taken inside `f` with respect to a value that varies from device to device is the device's own;
    with respect to a value that does not vary, it is the sum over all devices. See `check_vma`.

    Args:
        f: a pure function of trees of tensors. If omitted, a decorator is returned.
        mesh: the devices; None: the mesh in use.
        in_specs: for each argument, a `PartitionSpec` or a tree prefix of them.
        out_specs: likewise, for the result. Along an axis that a spec does not name, all devices
            must return the same value.
        axis_names: the axes of the mesh that it is manual over: collectives and specs may name
            them. XLA shards the work over the others, as it does outside. None: all axes.
        check_vma: whether to track the axes along which each value varies: those in an input's
            spec, minus those that a `psum` or another reduction sums over. Then an output that may
            vary along an axis that its spec does not name is an error, and gradients taken inside
            take the types into account. If False, such an output is one of the devices' outputs,
            and a gradient is that of the sum of all devices' results with respect to a device's
            argument.
        check_rep: an older name of `check_vma`.

    Returns:
        A function of the same arguments that returns the result of `f`, put together: along each
        dimension, a leaf is as long as a device's part times the number of devices along the axes
        that its spec names there. Without `f`, a decorator that makes one.

    Raises:
        ShardingError: a spec does not fit its array or the mesh; an output is not the same along an
            axis that its spec does not name; or the devices might wait for each other forever.
        TreeMismatchError: the specs are not tree prefixes of the arguments or the result.

    Source: ``jax.shard_map``.
    """
    if f is None:
        return functools.partial(
            shard_map,
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=axis_names,
            check_vma=check_vma,
            check_rep=check_rep,
        )
    if check_rep and not check_vma:
        fail(
            TypeError,
            f"shard_map of {described(f)} was given check_vma=False and check_rep=True",
            "give check_vma alone: check_rep is its older name.",
        )
    for name, specs in (("in_specs", in_specs), ("out_specs", out_specs)):
        if specs is _NO_SPECS:
            fail(
                TypeError,
                f"shard_map of {described(f)} was given no {name}",
                f"pass {name}=P('x'), or a tuple with a PartitionSpec for each one.",
            )
    checks = check_vma and check_rep is not False
    return ShardMapped(f, mesh, in_specs, out_specs, axis_names, checks)


class _Decorator(Protocol):
    def __call__(self, fun: Callable[P, R], /) -> ShardMapped[P, R]: ...


class ShardMapped(Transform[P, R]):
    """The result of `shard_map`."""

    def __init__(
        self,
        fun: Callable[P, R],
        mesh: AbstractMesh | None,
        in_specs: object,
        out_specs: object,
        axis_names: Collection[str] | None,
        check_vma: bool,
    ):
        in_specs = tuple(in_specs) if type(in_specs) is list else in_specs
        self._mesh, self._in, self._out = mesh, in_specs, out_specs
        names = (axis_names,) if isinstance(axis_names, str) else axis_names
        self._axes = None if names is None else tuple(sorted(names))
        self._check_vma = bool(check_vma)
        options = (mesh, hashable(in_specs), hashable(out_specs), self._axes, self._check_vma)
        super().__init__(fun, options, "shard_map")
        self._body = Staged(fun, value=Part(fun, "shard_map"))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not is_eager():
            return super().__call__(*args, **kwargs)
        # One thread cannot run the collective work of all devices one operation at a time.
        with disable_jit(False):
            out = self(*args, **kwargs)
        given = {t.device for t in tree.leaves(args) if isinstance(t, Tensor)}
        host = next((d for d in given if d.type == "cpu"), None)
        return out if host is None else tree.map(lambda t: t.to(host), out)

    def apply(self, *args: P.args, **kwargs: P.kwargs) -> R:
        name = f"shard_map of {described(self.fun)}"
        if kwargs:
            fail(
                TypeError,
                f"{name} was given the keyword arguments {', '.join(kwargs)}",
                "pass them by position: in_specs has an entry for each argument.",
            )
        region = self._region(name)
        args = as_tensors(args)
        leaves, structure = tree.flatten((args, {}))
        labels = self._staged.labels(structure)
        leaves = arrays(leaves, name, labels)
        what = f"{name}: in_specs"
        given = broadcast(self._in, args, what, "the arguments")
        specs = [
            _spec(*one, region, f"{name}: ") for one in zip(given, leaves, labels, strict=True)
        ]
        pairs = zip(leaves, specs, strict=True)
        avals = tuple((region.local_shape(x.shape, s), x.dtype) for x, s in pairs)
        wrt = None
        if ad_depth(leaves) == 1:
            wrt = tuple(differentiable(x) and is_tracked(x) for x in leaves)
        types = tuple(specs)

        def typed(*args: object) -> PyTree:
            with typed_arguments(types), effects.collected(True) as found:
                out = self.fun(*args)
            if found.effects:
                each = effects.LoopEffects(tuple(found.effects), region.size(region.own))
                effects.emit(each, [t[None] for t in found.tensors])
            return out

        with inside(region):  # The result of `typeof` is part of the trace.
            extra_deps = (("in_specs", tuple(s.axes for s in types)),)
            options = Options(extra_deps=extra_deps, call=typed, effects_allowed=True)
            entry, held = self._body.find(structure, avals, wrt, options)
        flat = entry.inputs(leaves, held)
        specs += [PartitionSpec()] * (len(flat) - len(leaves))
        outs = self._out_specs(entry, region, specs, name)
        outs += [PartitionSpec(region.own)] * (len(entry.program.outputs) - len(outs))  # of effects
        primitive = ShardMap(entry.program, region, tuple(specs), tuple(outs))
        return entry.result(bind(primitive, flat))

    def _region(self, name: str) -> Region:
        outer: Region | None = ambient.region()
        around = () if outer is None else outer.axes
        mesh = self._mesh if self._mesh is not None else ambient.mesh() or (outer and outer.mesh)
        if not isinstance(mesh, AbstractMesh):
            fail(
                ShardingError,
                f"{name}: "
                + ("no mesh is in use" if mesh is None else f"mesh is {short_repr(mesh)}"),
                "pass mesh=xf.make_mesh((4, 2), ('x', 'y')), or call it in a block of `with "
                "xf.use_mesh(mesh):`.",
            )
        if outer is not None and outer.mesh != mesh:
            fail(
                ShardingError,
                f"{name} is on {mesh!r}, inside a shard_map on {outer.mesh!r}",
                "nest shard_maps on one mesh only.",
            )
        own = mesh.axis_names if self._axes is None else self._axes
        for n in own:
            if n not in mesh.shape:
                axes = ", ".join(map(repr, mesh.axis_names))
                fail(
                    ShardingError,
                    f"{name}: axis_names has {n!r}, which is not an axis of {mesh!r}",
                    f"its axes: {axes}.",
                )
            if n in {a.name for a in ambient.named_axes()}:
                fail(
                    ShardingError,
                    f"{name} is manual over {n!r}, but is inside a vmap over an axis of that name",
                    "give the axis of the vmap another name.",
                )
            if n in around:
                fail(
                    ShardingError,
                    f"{name} is inside a shard_map that is manual over {n!r} already",
                    "call the function directly: inside a shard_map each device already has its "
                    "own part; or give both shard_maps axis_names that do not overlap.",
                )
        checked = {*(() if outer is None else outer.checked), *(own if self._check_vma else ())}
        in_order = [
            tuple(n for n in mesh.axis_names if n in names)
            for names in ({*own, *around}, own, checked)
        ]
        return Region(mesh, *in_order)

    def _out_specs(
        self, entry: Entry, region: Region, in_specs: Sequence[PartitionSpec], name: str
    ) -> list[PartitionSpec]:
        """The spec of each output, checked."""
        result = entry.out_tree.unflatten(entry.outputs)
        given = broadcast(self._out, result, f"{name}: out_specs", "the result")
        labels = labels_in(result, "the result")
        avals = entry.outputs
        specs = [
            _out_spec(*one, region, f"{name}: ") for one in zip(given, avals, labels, strict=True)
        ]
        if not (self._check_vma and avals):
            return specs
        key = ("shard_map replication", region, tuple(in_specs))
        differ = entry.program.memo(
            key,
            lambda: analyze_outputs(entry.program.lowering, region, [*map(RegionValue, in_specs)])[
                0
            ],
        )
        for spec, axes, label in zip(specs, differ, labels, strict=False):
            bad = [n for n in region.missing(spec) if n in axes]
            if bad:
                fail(
                    ShardingError,
                    f"{name}: {label} has the spec {spec!r}, which does not name {bad[0]!r}, and "
                    "may differ between the devices along that axis",
                    f"name {bad[0]!r} in out_specs, make it the same with a collective such as "
                    f"xf.sharding.psum(x, {bad[0]!r}), or pass check_vma=False if you know that "
                    "it is.",
                )
        return specs


def _spec(given: object, x: Tensor, label: str, region: Region, name: str) -> PartitionSpec:
    """The spec of an array, which it fits."""
    spec = _checked(given, label, region, name)
    check_shape(NamedSharding(region.mesh, spec), tuple(x.shape), f"{name}{label}")
    return spec


def _out_spec(given: object, x: Aval, label: str, region: Region, name: str) -> PartitionSpec:
    spec = _checked(given, label, region, name)
    if len(spec) > len(x.shape):
        fail(
            ShardingError,
            f"{name}{label} is {short(x)} on each device, and its spec {spec!r} is for "
            f"{len(spec)} dimensions",
            "give a spec with at most one entry for each dimension, or return x[None] to stack "
            "what the devices return.",
        )
    return spec


def _checked(given: object, label: str, region: Region, name: str) -> PartitionSpec:
    what = f"{name}the spec of {label} is {given!r}"
    if isinstance(given, NamedSharding) and given.mesh == region.mesh:
        given = given.spec
    if not isinstance(given, PartitionSpec):
        fail(ShardingError, what, "give a PartitionSpec; P() for what is not sharded.")
    if any(e is PartitionSpec.UNCONSTRAINED for e in given):
        fail(
            ShardingError,
            f"{what}: devices cannot have parts of an unknown size",
            "name axes, or None for a dimension that is not sharded.",
        )
    named = [n for names in given.axes for n in names]
    for n in named:
        if n not in region.mesh.shape:
            axes = ", ".join(map(repr, region.mesh.axis_names))
            fail(
                ShardingError,
                f"{what}, and {region.mesh!r} has no axis {n!r}",
                f"its axes are {axes}.",
            )
        if n not in region.own:
            fail(
                ShardingError,
                f"{what}, but the shard_map is not manual over {n!r}",
                f"leave {n!r} out, or add it to axis_names.",
            )
        if named.count(n) > 1:
            fail(
                ShardingError,
                f"{what}, where {n!r} occurs twice",
                "use each axis for one dimension only.",
            )
    return PartitionSpec(*given.entries)
