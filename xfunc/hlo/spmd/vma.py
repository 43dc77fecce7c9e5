"""Varying types: the axes of a mesh along which a value of a manual region counts as varying.

Whether devices hold equal values is one question (`varying`); the type of the values is another,
which defines the meaning of a gradient. All devices share a value with no axis in its type, so its
gradient is the sum of their contributions. Types follow JAX's rules.

They are only known when a whole region has been traced. Until then *marks* represent the operations
that depend on them: custom calls that no compiler sees, because the border of a region resolves
them for its axes.

=========  ======================  =================================================================
mark       operands                stands for
=========  ======================  =================================================================
``type``   a value                 nothing: a *witness*, a scalar of the type of that value
``cast``   a value[, a witness]    the value, which varies along the mark's axes, or as the witness
``total``  a value, a witness      its sum over the axes along which the witness does not vary
``share``  a value, two witnesses  the value, divided by the number of devices along the axes along
                                   which neither witness varies
=========  ======================  =================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xfunc.graph import build, opcodes
from xfunc.graph.build import CustomCall
from xfunc.graph.graph import Graph, moved
from xfunc.graph.node import Node
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.attributes import attributes_of, said, with_attributes
from xfunc.hlo.spmd.collectives import AXES
from xfunc.hlo.spmd.varying import Axes, ControlContext, Run, Walk
from xfunc.hlo.spmd.vma_ops import TARGET, Cast, Operation, Total, Type, VmaOp, vma_op_of
from xfunc.hlo.wire import message_of

_AXES, _WEAK, _AT = "xfunc_vma_axes", "xfunc_vma_weak", "xfunc_vma_at"


class VaryingTypeError(Exception):
    """A cotangent that varies where its value does not.

    Attributes:
        axes: along which.
        at: the text of the mark about it.
    """

    def __init__(self, axes: Axes, at: str):
        super().__init__(axes, at)
        self.axes, self.at = axes, at


def vma_op(
    which: VmaOp,
    operands: Sequence[Node],
    axes: Sequence[str],
    *,
    weak: bool = False,
    at: str = "",
) -> Node:
    """The node of a mark.

    Args:
        which: one of the marks of `vma_ops`.
        operands: as in the table above.
        axes: the axes of the mark.
        weak: for a cast: values known to be equal still count as equal.
        at: for a share: raise `VaryingTypeError` with this text if the last operand varies where
            the other witness does not.
    """
    more = said({_AXES: ",".join(axes), _WEAK: "true" if weak else "", _AT: at})
    type = which.type(operands[0].type)
    return Node("custom-call", type, tuple(operands), CustomCall(TARGET + which.name), more=more)


def types(graph: Graph, inputs: Sequence[Axes], every: Axes) -> tuple[Axes, ...]:
    """The types of the outputs of a graph.

    Args:
        graph: may have marks.
        inputs: the type of each input.
        every: the axes of interest.
    """
    return tuple(x & every for x in _Types(every).run(graph, tuple(inputs), ControlContext()))


def has_vma_ops(graph: Graph) -> bool:
    """Whether a graph, or one that it calls, contains such operations."""
    return _Marked().holds(graph)


def resolve_vma(
    graph: Graph,
    inputs: Sequence[Axes],
    sizes: Mapping[str, int],
    total: Total,
) -> Graph:
    """The graph with the marks of some axes replaced by the operations they represent.

    Args:
        graph: not changed.
        inputs: the type of each input.
        sizes: the number of devices along each of the axes.
        total: the sum of a value over axes.

    Raises:
        VaryingTypeError: see `vma_op`.
    """
    every = frozenset(n for n, size in sizes.items() if size > 1)
    return _Settling(_Types(every), sizes, total).of(graph, tuple(inputs))


def _axes(n: Node) -> Axes:
    return frozenset(attributes_of(n)[_AXES].split(","))


class _Types(Walk):
    """Finds types, for which the paths of devices through the program do not matter."""

    def __init__(self, every: Axes):
        super().__init__(every, partly=False)
        self.every = every

    def run(self, graph: Graph, inputs: tuple[Axes, ...], ctx: ControlContext) -> tuple[Axes, ...]:
        return super().run(graph, inputs, ControlContext())

    def result(self, n: Node, operands: tuple[Axes, ...], ctx: ControlContext) -> Axes:
        found = vma_op_of(n)
        if found is None:
            return super().result(n, operands, ctx)
        own, *witnesses = operands
        return found.type_of(own, witnesses, _axes(n) & self.every)


class _Marked:
    """Finds marks."""

    def __init__(self) -> None:
        self._known: dict[Graph, bool] = {}

    def holds(self, graph: Graph) -> bool:
        if graph not in self._known:
            self._known[graph] = any(map(self._is_one, graph.nodes))
        return self._known[graph]

    def _is_one(self, n: Node) -> bool:
        if n.opcode in opcodes.RUNS:
            return any(c.graph is not None and self.holds(c.graph) for c in n.calls)
        return vma_op_of(n) is not None


class _Settling:
    """Rewrites each graph with marks once for each way in which its inputs vary."""

    def __init__(self, walk: _Types, sizes: Mapping[str, int], total: Total):
        self._walk, self._sizes, self._total = walk, sizes, total
        self._marked = _Marked()
        self._made: dict[Run, Graph] = {}

    def of(self, graph: Graph, inputs: tuple[Axes, ...]) -> Graph:
        if not self._marked.holds(graph):
            return graph
        key = Run(graph, inputs, ControlContext())
        if key not in self._made:
            self._walk.run(*key)
            values = self._walk.values[key]

            def change(n: Node, operands: tuple[Node, ...]) -> Node:
                types = tuple([values[o] for o in n.operands])
                if what := vma_op_of(n):
                    return self._settled(n, operands, what, types)
                if n.opcode in opcodes.RUNS and all(c.graph for c in n.calls):
                    given = self._walk.calls(n, types, ControlContext())
                    callees = zip(n.calls, given, strict=True)
                    made = tuple([self.of(c.graph, x) for c, (x, _) in callees])
                    return moved(n, operands, made)
                return moved(n, operands)

            self._made[key] = graph.rewritten(change)
        return self._made[key]

    def _settled(
        self, n: Node, operands: tuple[Node, ...], what: VmaOp, types: tuple[Axes, ...]
    ) -> Node:
        """The result of the operation that a mark represents."""
        axes, told = _axes(n), attributes_of(n)
        x, (own, *witnesses) = operands[0], types
        mine = axes & self._walk.every
        if at := told.get(_AT):
            of, given = witnesses
            if more := (given - of) & mine:
                raise VaryingTypeError(more, at)
        missing = sorted(mine.difference(*witnesses))
        if missing and isinstance(what, Operation):
            x = _inside(n, x, what.of(x, missing, self._sizes, self._total))
        if isinstance(what, Cast) and _WEAK not in told and mine:
            # Equal or not, the values now count as different.
            x = Node("reshape", x.type, (x,), more=said({AXES: ",".join(sorted(own | mine))}))
        pending = sorted(axes - self._sizes.keys())
        if pending:  # for a region around this one
            how = with_attributes(n.more, {**told, _AXES: ",".join(pending)})
            return Node(n.opcode, n.type, (x, *operands[1:]), n.params, n.calls, how)
        return _scalar(n, build.constant(False, n.dtype)) if isinstance(what, Type) else x


def _inside(vma_op: Node, x: Node, result: Node) -> Node:
    """The value computed from another one in the region of an operation."""

    def change(n: Node, operands: tuple[Node, ...]) -> Node:
        return _scalar(vma_op, n) if n.opcode == "constant" else moved(n, operands)

    return Graph("", [x], [result]).rewritten(change).outputs[0]


def _scalar(vma_op: Node, constant: Node) -> Node:
    """A scalar that the partitioner treats as part of the region that a mark is in."""
    if vma_op.params.sharding is None:
        return constant
    sharding = pb.OpSharding.FromString(vma_op.params.sharding)
    rank = len(vma_op.dims)
    sharding.tile_assignment_dimensions[:] = sharding.tile_assignment_dimensions[rank:]
    result = constant.changed(())
    result.more = message_of(40, sharding.SerializeToString(deterministic=True))
    return result
