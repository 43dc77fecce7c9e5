"""The primitive behind `shard_map`, and its rules.

A `ShardMap` is the program of one device, on its shard of each array, with the specs of the shards.
Derived programs have derived ShardMaps: batching adds a dimension to the specs, and in forward mode
tangents have the specs of their primals.

NOTE [gradients across the border]: seen from outside, an input that is not sharded over an axis
goes to every device along it, so its cotangent is the sum of the devices' cotangents. An output
that is not sharded over an axis is any one of several equal values; it counts as their mean, so
that each gets an equal share of its cotangent. With collectives that are differentiated as
functions of all devices' arrays, this is right for every program, without knowing which values are
equal.

NOTE [residuals of a region]: residuals differ from device to device. They leave the region stacked
along a new first dimension, which is sharded over all axes, and each device gets its own back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import cast

from xfunc.core.avals import Aval, aval_of
from xfunc.program.bind import bind
from xfunc.program.collective_ops import Sum
from xfunc.program.dependence import where_reached
from xfunc.program.primitive import Dims, Primitive, Tensor, scatter_to_inputs
from xfunc.program.program import Joint, TracedProgram, differentiable
from xfunc.remat.partition import Partition, gathered
from xfunc.remat.policies import everything_saveable
from xfunc.sharding.collective_primitive import Total
from xfunc.sharding.manual import Region
from xfunc.sharding.manual_region import RegionValue, analyze_outputs, wrap_region
from xfunc.sharding.spec import PartitionSpec
from xfunc.sharding.vmap_specs import mapped_axes, with_axis
from xfunc.torchlib.batching import Size, axes_of
from xfunc.trace.lowering import HloProgram

Specs = tuple[PartitionSpec, ...]


@dataclasses.dataclass(eq=False)
class ShardMap(Primitive):
    """The primitive; see `Primitive` for its methods.

    Attributes:
        body: the program of one device.
        region: where it runs.
        in_specs: of the inputs, the captures of the body among them.
        out_specs: of the outputs.
    """

    body: TracedProgram
    region: Region
    in_specs: Specs
    out_specs: Specs

    @property
    def name(self) -> str:
        return f"shard_map.{self.body.name}"

    @property
    def outputs(self) -> tuple[Aval, ...]:
        pairs = zip(self.body.outputs, self.out_specs, strict=True)
        return tuple(Aval(self.region.global_shape(a.shape, s), a.dtype) for a, s in pairs)

    @property
    def has_rule(self) -> bool:
        return self.body.has_rule

    def with_fwd_rules(self, wrt: tuple[int, ...], forward_mode: bool) -> ShardMap:
        return dataclasses.replace(self, body=self.body.with_fwd_rules(wrt, forward_mode))

    @property
    def key(self) -> tuple[Hashable, ...]:
        """The parts of the HLO's key other than the body."""
        return self.region, self.in_specs, self.out_specs

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        def make() -> HloProgram:
            ins, outs = map(RegionValue, self.in_specs), map(RegionValue, self.out_specs)
            return wrap_region(self.name, self.body.lowering, self.region, [*ins], [*outs])

        return self.body.memo(("shard_map", self.key), make).apply(args)

    def reverse_rule(self, wrt: tuple[bool, ...]) -> ShardMapReverseRule:
        return ShardMapReverseRule(self, self.body.joint(wrt), self.in_specs)

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor | None]:
        n = len(args)
        present = tuple(i for i, c in enumerate(cts) if c is not None)
        pull = self.body.pullback(wrt, present)
        shares = [self.region.size(self.region.missing(self.out_specs[i])) for i in present]
        missing = [self.region.missing(self.in_specs[i]) for i in wrt]

        # See NOTE [gradients across the border].
        def fn(*flat: Tensor) -> list[Tensor]:
            given = [ct / k if k > 1 else ct for ct, k in zip(flat[n:], shares, strict=True)]
            grads = pull.fn(*flat[:n], *given)
            return [_total(g, self.region, a) for g, a in zip(grads, missing, strict=True)]

        key = ("shard_map vjp", self.key, wrt, present)
        inner = ShardMap(
            self.body.derive(key, pull.name, fn, pull.avals),
            self.region,
            (*self.in_specs, *(self.out_specs[i] for i in present)),
            tuple(self.in_specs[i] for i in wrt),
        )
        given = [*args, *(c for c in cts if c is not None)]
        grads = bind(inner, given)
        return where_reached(grads, inner.body.lowering.dependencies, range(n, len(given)))

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        wrt = tuple(i for i, t in enumerate(tangents) if t is not None and differentiable(args[i]))
        smooth = [s for s, o in zip(self.out_specs, self.outputs, strict=True) if differentiable(o)]
        inner = ShardMap(
            self.body.pushforward(wrt),
            self.region,
            (*self.in_specs, *(self.in_specs[i] for i in wrt)),
            (*self.out_specs, *smooth),
        )
        dots = [t for t in (tangents[i] for i in wrt) if t is not None]
        out_dots = iter(bind(inner, [*args, *dots])[len(self.outputs) :])
        found = [next(out_dots) if differentiable(o) else None for o in self.outputs]
        return where_reached(found, self.body.lowering.dependencies, wrt)

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        axes, each = self.divided(n)
        inner = self.batched(self.body.batched(dims, each), dims, axes)
        return bind(inner, args), [0] * len(self.outputs)

    def divided(self, n: int) -> tuple[tuple[str, ...], int]:
        """The region's own axes that shard a batch, and the number of examples per device."""
        specs = (*self.in_specs, *self.out_specs)
        own = mapped_axes(n, self.region.mesh, specs, self.name, self.region.own)
        each = n // self.region.size(own)
        return own, Size(each, axes_of(n)) if axes_of(n) else each

    def batched(self, body: TracedProgram, dims: Dims, axes: tuple[str, ...]) -> ShardMap:
        """The region of a batched body, with outputs batched along axis 0."""
        pairs = zip(self.in_specs, dims, strict=True)
        ins = tuple(s if d is None else with_axis(s, d, axes) for s, d in pairs)
        outs = tuple(with_axis(s, 0, axes) for s in self.out_specs)
        return ShardMap(body, self.region, ins, outs)


def _total(g: Tensor, region: Region, axes: tuple[str, ...]) -> Tensor:
    return bind(Total(Sum(), aval_of(g), region, axes), [g])[0] if axes else g


@dataclasses.dataclass(eq=False)
class ShardMapReverseRule:
    """First-order reverse mode: see `ReverseRule` and NOTE [residuals of a region].

    Attributes:
        forwards: the primitive.
        joint: of its body.
        grad_specs: of the gradient of each input.
    """

    forwards: ShardMap
    joint: Joint
    grad_specs: Specs

    def __post_init__(self) -> None:
        self.wrt, self.cts = self.joint.wrt, self.joint.cts
        self.n_outputs = len(self.joint.outputs)

    @property
    def partition(self) -> Partition:
        """The body's joint program, cut in two."""
        return self.joint.split(everything_saveable)

    def forward(self, args: Sequence[Tensor]) -> list[Tensor]:
        def make() -> HloProgram:
            p, partition = self.forwards, self.partition
            kept = [RegionValue.row(p.region)] * partition.n_residuals
            ins, outs = [*map(RegionValue, p.in_specs)], [*map(RegionValue, p.out_specs), *kept]
            return wrap_region(f"{p.name}.forward", partition.forward, p.region, ins, outs)

        return self.joint.memo(("shard_map forward", self.forwards.key), make).apply(args)

    def backward(
        self, args: Sequence[Tensor], residuals: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        joint = self.joint
        partition = joint.prune_cotangents(self.partition, cts)
        if not partition.gradients:
            return [None] * len(self.wrt)
        given = cast("list[Tensor]", [cts[i] for i in joint.cts])  # Those that are read exist.
        flat = gathered(partition.sources, args, residuals, given.__getitem__)
        key = ("shard_map backward", self.forwards.key, self.grad_specs, partition)
        grads = joint.memo(key, lambda: self._backward(partition)).apply(flat)
        return list(scatter_to_inputs(len(self.wrt), partition.gradients, grads))

    def _backward(self, partition: Partition) -> HloProgram:
        p, region = self.forwards, self.forwards.region
        differ, varies = analyze_outputs(partition.forward, region, [*map(RegionValue, p.in_specs)])
        rows = zip(differ[self.n_outputs :], varies[self.n_outputs :], strict=True)

        def ct(k: int) -> RegionValue:  # See NOTE [gradients across the border].
            spec = p.out_specs[self.joint.cts[k]]
            return RegionValue(spec, share=region.size(region.missing(spec)))

        residuals = [RegionValue.row(region, *row) for row in rows]
        ins = gathered(partition.sources, [*map(RegionValue, p.in_specs)], residuals, ct)
        specs = [self.grad_specs[self.wrt[k]] for k in partition.gradients]
        outs = [RegionValue(s, sum_over=region.missing(s)) for s in specs]
        return wrap_region(f"{p.name}.backward", partition.backward, region, ins, outs)

    def batched(self, dims: Dims, n: int) -> tuple[ShardMapReverseRule, Dims, Dims, Dims]:
        axes, each = self.forwards.divided(n)
        joint = self.joint.batched(dims, each)
        forwards = self.forwards.batched(joint.source, dims, axes)
        # One gradient for each example, even with respect to values that all of them share.
        grad_specs = tuple(with_axis(s, 0, axes) for s in self.grad_specs)
        inner = ShardMapReverseRule(forwards, joint, grad_specs)
        return inner, dims, (0,) * self.n_outputs, (0,) * len(self.wrt)
