"""From one device's HLO to HLO for whole arrays: see NOTE [borders] in `manual`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from xfunc.core.avals import Aval, array_of
from xfunc.core.locations import Location
from xfunc.errors import ShardingError, fail, format_error
from xfunc.graph import build, opcodes
from xfunc.graph.build import CustomCall
from xfunc.graph.graph import Graph, is_pair, moved, rerun
from xfunc.graph.node import Node, unattributed
from xfunc.hlo.attributes import has_sharding
from xfunc.hlo.spmd import vma, vma_ops
from xfunc.hlo.spmd.annotations import is_region_graph
from xfunc.hlo.spmd.collectives import all_reduce
from xfunc.hlo.spmd.varying import DivergenceError, varying, without_sums
from xfunc.hlo.wire import message_of
from xfunc.sharding.manual import Region
from xfunc.sharding.spec import PartitionSpec
from xfunc.trace.lowering import HloProgram


@dataclasses.dataclass(frozen=True)
class RegionValue:
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
    ) -> RegionValue:
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


def wrap_region(
    name: str,
    local: HloProgram,
    region: Region,
    ins: Sequence[RegionValue],
    outs: Sequence[RegionValue],
) -> HloProgram:
    """The function of whole arrays that runs one device's program on each device's parts.

    Args:
        name: the function's name.
        local: one device's program.
        region: the manual region in which it runs.
        ins: how each flat input enters the region.
        outs: how each output leaves it.

    Raises:
        ShardingError: `local` contains an operation that is impossible in the region.
    """
    given = tuple([p.outside(region, a) for p, a in zip(ins, local.avals, strict=True)])
    results = tuple(p.outside(region, a) for p, a in zip(outs, local.outputs, strict=True))
    if not results:
        return HloProgram.empty(name, given)
    local = resolve_vma(local, region, ins)
    differ = differing_axes(local, region, ins)
    inside = without_ties(local.graph)  # One device's shards are not sharded any further.
    if not region.is_whole and not region.is_trivial:
        _check_operations(local.name, inside)
    # See NOTE [sums of equal values].
    inside = without_sums(inside, _differing(local, region, ins), _axes(region))
    with unattributed():
        inputs = build.parameters([array_of(given[i]) for i in local.inputs])
        values = [ins[i] for i in local.inputs]
        entered = [_entered(x, p, region) for x, p in zip(inputs, values, strict=True)]
        results_inside = build.call(inside, entered)
        pairs = zip(results_inside, outs, differ, strict=True)
        left = [_left(x, p, region, d) for x, p, d in pairs]
        graph = Graph(name, inputs, left)
        if not region.is_trivial and (not region.is_whole or region.axes != region.own):
            graph = _Sources(region).manual(graph)
    return HloProgram.of(name, graph, given, results, local.inputs)


def _entered(x: Node, value: RegionValue, region: Region) -> Node:
    x = region.enter(x, value.spec)
    if value.is_row:
        x = build.reshape(x, x.dims[1:])
    return _times(x, 1 / value.share)


def _left(x: Node, value: RegionValue, region: Region, differs: frozenset[str]) -> Node:
    axes = [n for n in value.sum_over if n in differs]
    if axes:
        x = all_reduce(x, region.groups(axes), "add")
    x = _times(x, region.size(value.sum_over) // region.size(axes))
    if value.is_row:
        x = build.reshape(x, (1, *x.dims))
    return region.leave(x, value.spec)


def _times(x: Node, k: float) -> Node:
    return x if k == 1 else build.multiply(x, k)


_BORDERS = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape")


def _check_operations(name: str, graph: Graph) -> None:
    """See NOTE [partly manual regions]."""
    todo, seen = [graph], set[Graph]()
    while todo:
        inner = todo.pop()
        # A region inside this one may be manual over all axes.
        is_border = is_region_graph(inner)
        for n in inner.nodes:
            graphs = [c.graph for c in n.calls if not isinstance(c, tuple)]
            new = [] if is_border else [g for g in graphs if g is not None and g not in seen]
            seen.update(new)
            todo += new
            what = n.params.target if isinstance(n.params, CustomCall) else n.opcode
            if n.opcode in opcodes.PARTITIONABLE or what in _BORDERS or vma_ops.vma_op_of(n):
                continue
            fail(
                ShardingError,
                f"{name} needs the operation {what} of XLA, which 2.9 cannot do where a "
                "shard_map is manual over some axes of the mesh only",
                "leave axis_names out, so that it is manual over all of them, or do that part "
                "outside the shard_map"
                + (" (of layer_norm: write out mean and variance)." if "norm" in what else "."),
            )


class _Sources:
    """Annotates values without operands as manual; the partitioner infers the rest.

    It aborts the process if manual values meet others in the state of a loop.
    """

    def __init__(self, region: Region) -> None:
        self._region = region
        self._made: dict[Graph, Graph] = {}

    def manual(self, graph: Graph) -> Graph:
        """The graph and the graphs that it runs."""
        if graph not in self._made:
            self._made[graph] = graph.rewritten(self._change)
        return self._made[graph]

    def _change(self, n: Node, operands: tuple[Node, ...]) -> Node:
        if n.opcode in opcodes.RUNS:
            return rerun(n, operands, self.manual)
        is_mark = vma_ops.vma_op_of(n)  # It may become a constant.
        if is_mark and n.params.sharding is None:
            result = n.changed(operands)
            result.params = n.params._replace(sharding=self._region.manual(len(n.dims)).wire)
            return result
        if n.opcode in ("constant", "iota") and not has_sharding(n):
            result = n.changed(operands)
            result.more += message_of(40, self._region.manual(len(n.dims)).wire)
            return result
        return moved(n, operands)


def without_ties(graph: Graph) -> Graph:
    """The graph and the graphs that it runs, without shard groups."""
    made: dict[Graph, Graph] = {}

    def of(graph: Graph) -> Graph:
        if graph not in made:
            made[graph] = graph.rewritten(change)
        return made[graph]

    def change(n: Node, operands: tuple[Node, ...]) -> Node:
        if n.opcode == "get-tuple-element" and is_tie(n.operands[0]):
            return operands[0].operands[n.params]
        if n.opcode in opcodes.RUNS and not is_tie(n):
            return rerun(n, operands, of)
        return moved(n, operands)

    def is_tie(n: Node) -> bool:
        return n.opcode == "call" and n.calls[0].graph is not None and is_pair(n.calls[0].graph)

    return of(graph)


def resolve_vma(local: HloProgram, region: Region, ins: Sequence[RegionValue]) -> HloProgram:
    """One device's program, without the markers of varying types: see `xfunc.hlo.spmd.vma`.

    Raises:
        ShardingError: a cotangent does not fit its value.
    """
    if not vma.has_vma_ops(local.graph):
        return local
    sizes = {n: region.mesh.shape[n] for n in region.own}

    def total(x: Node, axes: Sequence[str]) -> Node:
        return all_reduce(x, region.groups(axes), "add")

    try:
        graph = vma.resolve_vma(local.graph, _types(local, region, ins), sizes, total)
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
        raise ShardingError(format_error(problem, hint, at=at)) from None
    return dataclasses.replace(local, function=graph)


def _types(local: HloProgram, region: Region, ins: Sequence[RegionValue]) -> list[frozenset[str]]:
    """The types of the parameters, as far as axes of this region are concerned."""
    every = frozenset(n for n in region.own if region.mesh.shape[n] > 1)
    return [every & ins[i].type if i < len(ins) else frozenset() for i in local.inputs]


def analyze_outputs(
    local: HloProgram, region: Region, ins: Sequence[RegionValue]
) -> tuple[tuple[frozenset[str], ...], tuple[frozenset[str], ...]]:
    """For each output, the axes along which it may differ, and those along which it varies."""
    differ = differing_axes(resolve_vma(local, region, ins), region, ins)
    return differ, vma.types(local.graph, _types(local, region, ins), frozenset(region.own))


def differing_axes(
    local: HloProgram, region: Region, ins: Sequence[RegionValue]
) -> tuple[frozenset[str], ...]:
    """How the outputs of one device's program may differ from device to device.

    Raises:
        ShardingError: devices that communicate might not all do so.
    """
    given, every = _differing(local, region, ins), _axes(region)
    try:
        return varying(local.graph, given, every, not region.is_whole)
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
        raise ShardingError(format_error(problem, hint)) from None


def _axes(region: Region) -> frozenset[str]:
    """All axes of several devices that a region is manual over."""
    return frozenset(n for n in region.axes if region.mesh.shape[n] > 1)


def _differing(
    local: HloProgram, region: Region, ins: Sequence[RegionValue]
) -> tuple[frozenset[str], ...]:
    """The axes along which the inputs of one device's program may differ."""
    every = _axes(region)
    around = every - frozenset(region.own)
    of_inputs = [every & p.axes | around for p in ins]
    return tuple(of_inputs[i] if i < len(of_inputs) else around for i in local.inputs)


def _names(axes: frozenset[str]) -> str:
    return ", ".join(map(repr, sorted(axes)))
