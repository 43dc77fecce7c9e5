"""Modules as graphs: the opposite of `xfunc.hlo.write`.

Tuples disappear: a graph has no values but arrays. Fields that no pass over graphs looks at become
`Node.more`, as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from xfunc.graph import build, opcodes
from xfunc.graph.build import Convolution, CustomCall, Window
from xfunc.graph.graph import Graph
from xfunc.graph.node import ArrayType, Node, Operation, TupleType, array_type, reached
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import wire
from xfunc.hlo.errors import InvalidHloError
from xfunc.hlo.literal import scalar_of
from xfunc.hlo.shape import Shape

Value: TypeAlias = "Node | list[Value]"


class UnreadableError(Exception):
    """No graph can express the module."""


def read(module: pb.HloModuleProto) -> Graph:
    """The graph of a module.

    Raises:
        UnreadableError: its instructions run in an order of their own, have types that torch does
            not have, or custom calls that set the layout of their results.
    """
    reader = _Reader(module)
    try:
        graph = reader.graph(module.entry_computation_id)
    except InvalidHloError as e:
        raise UnreadableError(str(e)) from e
    return Graph(module.name, graph.inputs, graph.outputs, graph.effects)


_PACKING = opcodes.RUNS | {"opt-barrier"}
_UNKNOWN = frozenset(("fusion", "async-start", "async-update", "async-done", "domain"))


class _Reader:
    def __init__(self, module: pb.HloModuleProto) -> None:
        self._computations = {c.id: c for c in module.computations}
        self._graphs: dict[int, Graph] = {}
        self._operations: dict[bytes, Operation] = {}
        self._scratch = pb.HloInstructionProto()

    def graph(self, id: int) -> Graph:
        if id not in self._graphs:
            self._graphs[id] = self._read(self._computations[id])
        return self._graphs[id]

    def _read(self, c: pb.HloComputationProto) -> Graph:
        values: dict[int, Value] = {}
        inputs: dict[int, list[Node]] = {}
        acting: list[Node] = []
        for i in c.instructions:
            if i.control_predecessor_ids or i.opcode in _UNKNOWN:
                raise UnreadableError(i.name)
            operands = [values[k] for k in i.operand_ids]
            if i.opcode == "parameter":
                value = values[i.id] = self._parameter(i)
                inputs[i.parameter_number] = _leaves(value)
            elif i.opcode == "tuple":
                values[i.id] = operands
            elif i.opcode == "get-tuple-element":
                (of,) = operands
                assert isinstance(of, list)
                values[i.id] = of[i.tuple_index]
            else:
                node, values[i.id] = self._instruction(i, operands)
                if _acts(i) or any(getattr(c, "effects", ()) for c in node.calls):
                    acting.append(node)
        outputs = _leaves(values[c.root_id])
        whole = set(reached(outputs, ()))
        effects = [n for n in acting if n not in whole]
        name = c.name.rpartition(".")[0] if c.name.rpartition(".")[2].isdigit() else c.name
        each = [n for k in sorted(inputs) for n in inputs[k]]
        return Graph(name or c.name, each, outputs, effects)

    def _parameter(self, i: pb.HloInstructionProto) -> Value:
        shape = Shape.from_proto(i.shape)
        _, more = self._fields(i)
        if shape.is_tuple:
            if more:
                raise UnreadableError(i.name)
            return _made(shape, lambda t: Node("parameter", t))
        node = Node("parameter", _type(shape), more=more)
        node.operation = self._operation(i)
        return node

    def _instruction(self, i: pb.HloInstructionProto, operands: list[Value]) -> tuple[Node, Value]:
        shape, opcode = Shape.from_proto(i.shape), i.opcode
        params, more = self._fields(i)
        flat = [n for o in operands for n in _leaves(o)]
        if opcode == "conditional":
            params = tuple(len(_leaves(o)) for o in operands[1:])
        elif opcode not in _PACKING:
            takes_tuple = any(isinstance(o, list) for o in operands)
            if takes_tuple or (opcode == "custom-call" and not _is_row_major(i.shape)):
                raise UnreadableError(i.name)
        calls = tuple(self._called(opcode, k) for k in i.called_computation_ids)
        types = list(_types(shape))
        is_several = shape.is_tuple or opcode in opcodes.RUNS
        type: Any = TupleType(types) if is_several else types[0]
        node = Node(opcode, type, tuple(flat), params, calls, more)
        node.operation = self._operation(i)
        if not is_several:
            return node, node
        made = build.elements(node, types)
        for n in made:
            n.operation = node.operation
        rest = iter(made)
        return node, _made(shape, lambda _: next(rest))

    def _called(self, opcode: str, id: int) -> object:
        graph = self.graph(id)
        if opcode in opcodes.RUNS or len(graph.inputs) != 2 or len(graph.outputs) != 1:
            return graph
        (root,), (x, y) = graph.outputs, graph.inputs
        if root is y and x.type is y.type:
            return "second", x.type
        if root.operands == (x, y) and root.params is None and not root.more and not root.calls:
            return root.opcode, root.type
        return graph

    def _operation(self, i: pb.HloInstructionProto) -> Operation:
        key = i.metadata.SerializeToString() if i.HasField("metadata") else b""
        result = self._operations.get(key)
        if result is None:
            result = Operation(i.metadata.op_type, wire.message_of(7, key) if key else b"")
            self._operations[key] = result
        return result

    def _fields(self, i: pb.HloInstructionProto) -> tuple[Any, bytes]:
        """The parameters of a node, as bytes if no pass reads them, and its further data."""
        rest = self._scratch
        rest.CopyFrom(i)
        for name in (*_STRUCTURE, *_MORE):
            rest.ClearField(name)
        whole = rest.SerializeToString(deterministic=True)
        decode = _DECODED.get(i.opcode)
        params = None if decode is None else decode(i, rest)
        left = rest.SerializeToString(deterministic=True)
        if left not in (b"", _NO_STATISTICS):  # more than passes look at
            if isinstance(params, CustomCall):
                params = params._replace(rest=left)
            else:
                params = (*_dot(i, rest), left) if i.opcode == "dot" else whole
        rest.Clear()
        if i.HasField("sharding") and i.opcode != "custom-call":
            rest.sharding.CopyFrom(i.sharding)
        if i.custom_call_has_side_effect:
            rest.custom_call_has_side_effect = True
        if i.HasField("frontend_attributes") and i.frontend_attributes.map:
            rest.frontend_attributes.CopyFrom(i.frontend_attributes)
        return params, rest.SerializeToString(deterministic=True)


# XLA writes `statistics_viz` for every instruction, also without any.
_NO_STATISTICS = wire.message_of(82, b"")
_MORE = "sharding", "custom_call_has_side_effect", "frontend_attributes"
_STRUCTURE = (
    "id", "name", "opcode", "shape", "operand_ids", "called_computation_ids", "metadata",
    "parameter_number", "tuple_index",
)  # fmt: skip


def _is_row_major(shape: pb.ShapeProto) -> bool:
    if shape.element_type == pb.TUPLE:
        return all(map(_is_row_major, shape.tuple_shapes))
    order = [*shape.layout.minor_to_major]
    return order == sorted(order, reverse=True)


def _acts(i: pb.HloInstructionProto) -> bool:
    return i.opcode in opcodes.TRANSFERS or i.custom_call_has_side_effect


def _type(shape: Shape) -> ArrayType:
    return array_type(shape.dtype, shape.dims)


def _types(shape: Shape) -> Iterator[ArrayType]:
    if shape.is_tuple:
        for s in shape.elements:
            yield from _types(s)
    else:
        yield _type(shape)


def _made(shape: Shape, make: Callable[[ArrayType], Node]) -> Value:
    """A value of a shape, an array at a time."""
    if shape.is_tuple:
        return [_made(s, make) for s in shape.elements]
    return make(_type(shape))


def _leaves(value: Value) -> list[Node]:
    if isinstance(value, Node):
        return [value]
    return [n for v in value for n in _leaves(v)]


# -- parameters of instructions -------------------------------------------------------------------

_I: TypeAlias = pb.HloInstructionProto


def _dims(i: _I, rest: _I) -> tuple[int, ...]:
    rest.ClearField("dimensions")
    return tuple(i.dimensions)


def _direction(i: _I, rest: _I) -> str:
    rest.ClearField("comparison_direction")
    return i.comparison_direction


def _dot(i: _I, rest: _I) -> tuple[tuple[int, ...], ...]:
    rest.ClearField("dot_dimension_numbers")
    d = i.dot_dimension_numbers
    return (
        tuple(d.lhs_contracting_dimensions), tuple(d.rhs_contracting_dimensions),
        tuple(d.lhs_batch_dimensions), tuple(d.rhs_batch_dimensions),
    )  # fmt: skip


def _custom_call(i: _I, rest: _I) -> CustomCall:
    sharding = None
    if i.HasField("sharding"):
        sharding = i.sharding.SerializeToString(deterministic=True)
    for name in ("custom_call_target", "backend_config", "custom_call_api_version"):
        rest.ClearField(name)
    how = i.custom_call_target, i.backend_config, sharding, i.custom_call_api_version
    return CustomCall(*how, i.sharding.is_shard_group)


def _slice(i: _I, rest: _I) -> tuple[tuple[int, ...], ...]:
    rest.ClearField("slice_dimensions")
    each = [(d.start, d.limit, d.stride) for d in i.slice_dimensions]
    return tuple(zip(*each, strict=True)) or ((), (), ())


def _sizes(i: _I, rest: _I) -> tuple[int, ...]:
    rest.ClearField("dynamic_slice_sizes")
    return tuple(i.dynamic_slice_sizes)


def _constant(i: _I, rest: _I) -> Any:
    value = scalar_of(i)
    if value is None or value != value:  # The bits of a NaN may matter.
        return None
    rest.ClearField("literal")
    return value


def _convolution(i: _I, rest: _I) -> Convolution | None:
    found = wire.fields(rest.SerializeToString())
    if set(found) - {15, 16, 50, 58}:
        return None
    windows, reversals = _windows(found)
    if len(set(reversals)) > 1:
        return None
    d = wire.message(found, 16)
    x, kernel, out = [
        (wire.integer(d, a), wire.integer(d, b), *wire.integers(d, c))
        for a, b, c in ((7, 8, 11), (3, 4, 6), (9, 10, 12))
    ]
    features, batches = wire.integer(found, 50), wire.integer(found, 58)
    rest.Clear()
    return Convolution(windows, x, kernel, out, features, batches, any(reversals))


def _reduce_window(i: _I, rest: _I) -> tuple[Window, ...] | None:
    found = wire.fields(rest.SerializeToString())
    if set(found) != {15}:
        return None
    windows, reversals = _windows(found)
    if any(reversals):
        return None
    rest.Clear()
    return windows


def _windows(found: wire.Fields) -> tuple[tuple[Window, ...], Sequence[bool]]:
    each = [wire.fields(d) for d in wire.message(found, 15).get(1, ())]
    windows = [Window(*(wire.integer(w, k) for k in range(1, 7))) for w in each]
    return tuple(windows), [bool(wire.integer(w, 7)) for w in each]


_DECODED: dict[str, Callable[[_I, _I], Any]] = {
    **dict.fromkeys(("broadcast", "transpose", "reverse", "concatenate", "iota", "reduce"), _dims),
    "compare": _direction,
    "dot": _dot,
    "slice": _slice,
    "dynamic-slice": _sizes,
    "custom-call": _custom_call,
    "constant": _constant,
    "convolution": _convolution,
    "reduce-window": _reduce_window,
}
