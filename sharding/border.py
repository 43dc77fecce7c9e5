"""From one device's HLO to HLO for whole arrays: see NOTE [borders] in `manual`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import chain

from xfunc.core.avals import Aval, hlo_shape
from xfunc.core.locations import Location
from xfunc.errors import ShardingError, fail, report
from xfunc.hlo import Builder, ComputationBuilder, Module, Value, opcodes
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.spmd import marks, vma
from xfunc.hlo.spmd.annotations import is_pair
from xfunc.hlo.spmd.collectives import all_reduce, without_sums
from xfunc.hlo.spmd.groups import strip_groups
from xfunc.hlo.spmd.varying import DivergenceError, Findings, varying
from xfunc.sharding.manual import Region
from xfunc.sharding.spec import PartitionSpec
from xfunc.trace.lowering import Lowering


@dataclasses.dataclass(frozen=True)
class Port:
    """How one value crosses the border of a region.

    Attributes:
        spec: the sharding of the array outside.
        is_row: outside it has an additional first axis, along which each device has one row.
        differs: for such a value, the axes along which it may differ from device to device.
        varies: for such a value, the axes along which its type is varying.
        share: inside, it is divided by this number.
        sum_over: inside, it is summed over these axes before it leaves.

    NOTE [sums of equal values]: cotangents of values that are equal on all devices are equal too,
    and the transpose of a sum adds them up. Such a sum is a product with the number of devices.
    """

    spec: PartitionSpec
    is_row: bool = False
    differs: frozenset[str] = frozenset()
    varies: frozenset[str] = frozenset()
    share: int = 1
    sum_over: tuple[str, ...] = ()

    @classmethod
    def row(
        cls,
        region: Region,
        differs: frozenset[str] = frozenset(),
        varies: frozenset[str] = frozenset(),
    ) -> Port:
        """For a per-device value without a spec."""
        return cls(PartitionSpec(region.own), True, differs, varies)

    @property
    def axes(self) -> frozenset[str]:
        """The axes along which the devices' values may differ."""
        return self.differs if self.is_row else frozenset(n for ns in self.spec.axes for n in ns)

    @property
    def type(self) -> frozenset[str]:
        """The axes along which the devices' values count as varying."""
        return self.varies if self.is_row else self.axes

    def outside(self, region: Region, aval: Aval) -> Aval:
        """The aval of the whole array."""
        shape = (1, *aval.shape) if self.is_row else aval.shape
        return Aval(region.global_shape(shape, self.spec), aval.dtype)


def across(
    name: str, local: Lowering, region: Region, ins: Sequence[Port], outs: Sequence[Port]
) -> Lowering:
    """The function of whole arrays.

    Args:
        name: of the function.
        local: one device's program.
        region: where it runs.
        ins: for each flat input.
        outs: for each output.

    Raises:
        ShardingError: `local` contains an operation that is impossible in the region.
    """
    given = tuple([p.outside(region, a) for p, a in zip(ins, local.avals, strict=True)])
    results = tuple(p.outside(region, a) for p, a in zip(outs, local.outputs, strict=True))
    if not results:
        return Lowering.empty(name, given)
    local = settled(local, region, ins)
    found = along(local, region, ins)
    if not region.is_whole and not region.is_trivial:
        _check_operations(local)
    b = Builder(name)
    body = b.computation(name)
    entered = [
        _entered(body, body.parameter(hlo_shape(given[i])), ins[i], region) for i in local.inputs
    ]
    # See NOTE [sums of equal values].
    inside = _without_ties(local)
    inside = without_sums(inside, found.equal) if found.equal else inside
    result = body.call(b.embed(inside), entered)
    left = [
        _left(body, body.get_tuple_element(result, k), p, region, differs)
        for k, (p, differs) in enumerate(zip(outs, found.outputs, strict=True))
    ]
    module = b.build(body.build(body.tuple(left)))
    if not region.is_trivial and (not region.is_whole or region.axes != region.own):
        _mark_sources(module.proto, region)
    return Lowering.of(name, module, given, results, local.inputs)


def _entered(body: ComputationBuilder, x: Value, port: Port, region: Region) -> Value:
    x = region.enter(body, x, port.spec)
    if port.is_row:
        x = body.reshape(x, x.shape.dims[1:])
    return _times(body, x, 1 / port.share)


def _left(
    body: ComputationBuilder, x: Value, port: Port, region: Region, differs: frozenset[str]
) -> Value:
    axes = [n for n in port.sum_over if n in differs]
    if axes:
        x = all_reduce(body, x, region.groups(axes), "add")
    x = _times(body, x, region.size(port.sum_over) // region.size(axes))
    if port.is_row:
        x = body.reshape(x, (1, *x.shape.dims))
    return region.leave(body, x, port.spec)


def _times(body: ComputationBuilder, x: Value, k: float) -> Value:
    if k == 1:
        return x
    return body.multiply(x, body.broadcast(body.constant(k, x.shape.dtype), x.shape.dims))


def _without_ties(local: Lowering) -> Module:
    """The HLO; one device's shards are not sharded any further."""
    if not any(map(is_pair, local.module.proto.computations)):
        return local.module
    proto = pb.HloModuleProto()
    proto.CopyFrom(local.module.proto)
    strip_groups(proto)
    return Module(proto)


_BORDERS = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape")


def _check_operations(local: Lowering) -> None:
    """See NOTE [what may be done in partly manual regions]."""
    todo, seen = [local.module.entry], set[int]()
    while todo:
        computation = todo.pop()
        # A region inside this one may be manual over all axes.
        is_border = any(
            i.proto.sharding.type == pb.OpSharding.MANUAL for i in computation.instructions
        )
        for i in computation.instructions:
            new = [] if is_border else [c for c in i.called_computations if c.id not in seen]
            seen.update(c.id for c in new)
            todo += new
            what = i.proto.custom_call_target or i.opcode
            if i.opcode in opcodes.PARTITIONABLE or what in _BORDERS or marks.mark_of(i.proto):
                continue
            fail(
                ShardingError,
                f"{local.name} needs the operation {what} of XLA, which 2.9 cannot do where a "
                "shard_map is manual over some axes of the mesh only",
                "leave axis_names out, so that it is manual over all of them, or do that part "
                "outside the shard_map"
                + (" (of layer_norm: write out mean and variance)." if "norm" in what else "."),
            )


def _mark_sources(proto: pb.HloModuleProto, region: Region) -> None:
    """Annotate values without operands as manual; the partitioner infers the rest.

    It aborts the process if manual values meet others in the state of a loop.
    """
    by_id = {c.id: c for c in proto.computations}
    todo, seen = [proto.entry_computation_id], set[int]()
    while todo:
        computation = by_id[todo.pop()]
        for i in computation.instructions:
            if i.opcode in ("call", "while", "conditional"):
                todo += [k for k in i.called_computation_ids if k not in seen]
                seen.update(i.called_computation_ids)
            is_mark = marks.mark_of(i)  # It may become a constant.
            if (is_mark or i.opcode in ("constant", "iota")) and not i.HasField("sharding"):
                region.manual(len(i.shape.dimensions)).write(i.sharding)


def settled(local: Lowering, region: Region, ins: Sequence[Port]) -> Lowering:
    """One device's program, without the markers of varying types: see `xfunc.hlo.spmd.vma`.

    Raises:
        ShardingError: a cotangent does not fit its value.
    """
    whole = chain.from_iterable([c.instructions for c in local.module.proto.computations])
    if not any(map(marks.mark_of, whole)):
        return local
    sizes = {n: region.mesh.shape[n] for n in region.own}

    def total(body: ComputationBuilder, x: Value, axes: Sequence[str]) -> Value:
        return all_reduce(body, x, region.groups(axes), "add")

    try:
        module = vma.settled(local.module, _types(local, region, ins), sizes, total)
    except vma.VaryingTypeError as e:
        file, line, function = e.at.split("\n")
        axes = _names(e.axes)
        problem = (
            f"{local.name}: a pullback was given a cotangent that varies along {axes}, of an "
            "output that does not"
        )
        hint = (
            f"take xf.psum(ct, {axes}) or xf.pmean, whichever is meant; or let the output vary, "
            f"with xf.pvary(out, {axes})."
        )
        at = Location(file, int(line), function)
        raise ShardingError(report(problem, hint, at=at)) from None
    return dataclasses.replace(local, module=module)


def _types(local: Lowering, region: Region, ins: Sequence[Port]) -> list[frozenset[str]]:
    """The types of the parameters, as far as axes of this region are concerned."""
    every = frozenset(n for n in region.own if region.mesh.shape[n] > 1)
    return [every & ins[i].type if i < len(ins) else frozenset() for i in local.inputs]


def ways(
    local: Lowering, region: Region, ins: Sequence[Port]
) -> tuple[tuple[frozenset[str], ...], tuple[frozenset[str], ...]]:
    """For each output, the axes along which it may differ, and those along which it varies."""
    differ = along(settled(local, region, ins), region, ins).outputs
    return differ, vma.types(local.module, _types(local, region, ins), frozenset(region.own))


def along(local: Lowering, region: Region, ins: Sequence[Port]) -> Findings:
    """How the values in one device's program may differ from device to device.

    Raises:
        ShardingError: devices that communicate might not all do so.
    """
    every = frozenset(n for n in region.axes if region.mesh.shape[n] > 1)
    around = every - frozenset(region.own)
    of_inputs = [every & p.axes | around for p in ins]
    parameters = [of_inputs[i] if i < len(of_inputs) else around for i in local.inputs]
    try:
        return varying(local.module, parameters, every, not region.is_whole)
    except DivergenceError as e:
        what = "a loop" if e.choice == "while" else "a branch"
        collective = f"communicates over {_names(e.axes)} ({e.opcode}) inside {what}"
        if not e.opcode:
            collective = f"has {what} in a region that XLA divides further, and may communicate in"
        problem = (
            f"{local.name} {collective}, and devices along {_names(e.varies)} decide for "
            "themselves whether to: some would wait for the others forever"
        )
        hint = (
            "let all devices decide alike (take xf.sharding.pmax or psum of the condition), or "
            "compute both and choose with torch.where."
        )
        raise ShardingError(report(problem, hint)) from None


def _names(axes: frozenset[str]) -> str:
    return ", ".join(map(repr, sorted(axes)))
