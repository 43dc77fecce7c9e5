"""Graphs as HLO modules, in protobuf's wire format.

Messages are written field by field, because making protobuf's objects for each instruction takes
longer than tracing. The numbers of fields are those of XLA's ``hlo.proto`` and ``xla_data.proto``.

NOTE [where constants stand]: traces share the nodes of constants, so the numbers and operations of
these nodes depend on earlier traces. The program must not: a constant stands before the first
instruction that uses it, as a part of that operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from xfunc.graph import opcodes
from xfunc.graph.build import Convolution, CustomCall, GatherDims, Literal, ScatterDims, Window
from xfunc.graph.graph import Graph
from xfunc.graph.node import ArrayType, Node, Operation, TupleType
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import renamed
from xfunc.hlo.literal import scalar_literal, write_literal
from xfunc.hlo.module import Module
from xfunc.hlo.plain import plain_tensors
from xfunc.hlo.shape import Shape
from xfunc.hlo.wire import integer_of, integers_of, message_of, varint

_known_varint = functools.lru_cache(65536)(varint)

# -- types ----------------------------------------------------------------------------------------


def _shape(type: ArrayType | TupleType) -> bytes:
    """A serialised ``ShapeProto``."""
    if type.wire is None:
        type.wire = _hlo_shape(type).proto.SerializeToString()
    return type.wire


def _hlo_shape(type: ArrayType | TupleType) -> Shape:
    if isinstance(type, TupleType):
        return Shape.of_tuple(map(_hlo_shape, type.elements))
    return Shape(type.dtype, type.dims)


# -- the parameters of instructions ---------------------------------------------------------------


def _custom_call(p: CustomCall) -> bytes:
    config = p.config.encode() if isinstance(p.config, str) else p.config
    return b"".join((
        message_of(28, p.target.encode()), message_of(43, config) if config else b"",
        integer_of(77, p.version), b"" if p.sharding is None else message_of(40, p.sharding),
        p.rest,
    ))  # fmt: skip


def _windows(windows: Sequence[Window], reversal: bool = False) -> bytes:
    dims = b""
    for w in windows:
        numbers = (w.size, w.stride, w.low, w.high, w.dilation, w.base_dilation, int(reversal))
        data = b"".join([integer_of(k + 1, n) for k, n in enumerate(numbers)])
        dims += message_of(1, data)
    return message_of(15, dims)


def _convolution(p: Convolution) -> bytes:
    numbers = (
        integer_of(7, p.input[0]) + integer_of(8, p.input[1]) + integers_of(11, p.input[2:])
        + integer_of(3, p.kernel[0]) + integer_of(4, p.kernel[1]) + integers_of(6, p.kernel[2:])
        + integer_of(9, p.output[0]) + integer_of(10, p.output[1]) + integers_of(12, p.output[2:])
    )  # fmt: skip
    groups = integer_of(50, p.feature_groups) + integer_of(58, p.batch_groups)
    return _windows(p.windows, p.reversal) + message_of(16, numbers) + groups


def _slices(p: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]) -> bytes:
    parts = zip(*p, strict=True)
    return b"".join([message_of(17, integer_of(1, s) + integer_of(2, e) + integer_of(3, t))
                     for s, e, t in parts])  # fmt: skip


def padding(p: Iterable[tuple[int, int, int]]) -> bytes:
    """The field of a pad: before, after and between the elements of each dimension."""
    edges = [
        integer_of(1, low) + integer_of(2, high) + integer_of(3, inner) for low, high, inner in p
    ]
    return message_of(21, b"".join([message_of(1, e) for e in edges]))


def _gather(p: GatherDims) -> bytes:
    numbers = (
        integers_of(1, p.offset) + integers_of(2, p.collapsed) + integers_of(3, p.start_map)
        + integer_of(4, p.vector) + integers_of(5, p.operand_batch) + integers_of(6, p.index_batch)
    )  # fmt: skip
    return message_of(33, numbers) + integers_of(34, p.sizes)


def _scatter(p: ScatterDims) -> bytes:
    numbers = (
        integers_of(1, p.window) + integers_of(2, p.inserted) + integers_of(3, p.operand_map)
        + integer_of(4, p.vector) + integers_of(5, p.operand_batch) + integers_of(6, p.index_batch)
    )  # fmt: skip
    return message_of(48, numbers)


def _dot(p: tuple[Any, ...]) -> bytes:
    numbers = message_of(30, b"".join([integers_of(k + 1, dims) for k, dims in enumerate(p[:4])]))
    return numbers + b"".join(p[4:])  # such as a precision


def _comparison(direction: str, order: str = "") -> bytes:
    return message_of(63, direction.encode()) + (message_of(72, order.encode()) if order else b"")


def _dims(p: tuple[int, ...]) -> bytes:
    return integers_of(14, p)


_PARAMS: dict[str, Callable[[Any], bytes]] = {
    "broadcast": _dims, "transpose": _dims, "reverse": _dims, "concatenate": _dims, "iota": _dims,
    "reduce": _dims,
    "compare": lambda p: _comparison(*((p,) if isinstance(p, str) else p)),
    "slice": _slices,
    "dynamic-slice": lambda p: integers_of(20, p),
    "pad": padding,
    "dot": _dot,
    "reduce-window": _windows,
    "select-and-scatter": _windows,
    "convolution": _convolution,
    "gather": _gather,
    "scatter": _scatter,
    "sort": lambda p: integers_of(14, p[:1]) + integer_of(60, p[1]),
    "get-tuple-element": lambda p: integer_of(13, p),
    "custom-call": _custom_call,
    "reduce-precision": lambda p: integer_of(18, p[0]) + integer_of(19, p[1]),
    "fft": lambda p: integer_of(31, p[0]) + integers_of(32, p[1]),
    "cholesky": lambda p: message_of(62, integer_of(1, 1)),
    "triangular-solve": lambda p: message_of(
        59, b"".join([integer_of(k + 1, int(on)) for k, on in enumerate(p)]) + integer_of(4, 1)
    ),
}  # fmt: skip


@functools.lru_cache(65536)
def params_of(opcode: str, params: Any) -> bytes:
    """The fields with the parameters of an instruction; parameters from `read` may be bytes."""
    return params if isinstance(params, bytes) else _PARAMS[opcode](params)


@functools.lru_cache(4096)
def _scalar(_: str, value: Any, type: ArrayType) -> bytes:
    return message_of(8, scalar_literal(value, type.dtype).SerializeToString())


def _literal(n: Node) -> bytes:
    value = n.params
    if isinstance(value, bytes):  # It was read from a module.
        return value
    if not isinstance(value, Literal):
        return _scalar(repr(value), value, n.type)
    proto = pb.LiteralProto()
    with plain_tensors():
        write_literal(value.tensor, proto)
    return message_of(8, proto.SerializeToString())


# -- modules --------------------------------------------------------------------------------------


_ID, _OPERANDS = b"\x98\x02", b"\xa2\x02"  # fields 35 and 36


@functools.lru_cache(65536)
def _head(opcode: str, shape: bytes) -> tuple[bytes, bytes]:
    """The prefix of an instruction's name, and the fields after it."""
    code = opcode.encode()
    return code + b".", message_of(2, code) + message_of(3, shape) + _ID


def _instruction(
    opcode: str, shape: bytes, number: int, operands: Sequence[int], rest: bytes
) -> bytes:
    """An instruction, as a field of its computation."""
    base, head = _head(opcode, shape)
    name = base + b"%d" % number
    if operands:
        ids = b"".join(map(_known_varint, operands))
        rest = _OPERANDS + _known_varint(len(ids)) + ids + rest
    data = b"".join((
        b"\x0a", _known_varint(len(name)), name, head, _known_varint(number), rest,
    ))  # fmt: skip
    return b"\x12" + _known_varint(len(data)) + data


class Writer:
    """Writes one module, as it may be part of another; see also `xfunc.hlo.final`."""

    def __init__(self) -> None:
        self._last = 1  # the number of the module's entry
        self.numbers: dict[int, int] = {}  # of the entry's instructions, by the node's identity
        self._computations: list[bytes] = []
        self._called: dict[object, int] = {}
        self.metadata: dict[Operation, bytes] = {}
        self._known: dict[tuple[str, str], bytes] = {}  # the same, by name and origin

    def new(self) -> int:
        """The next number."""
        self._last += 1
        return self._last

    def module(self, graph: Graph) -> bytes:
        """A module that runs a graph and returns a tuple."""
        signature = self._computation(graph, 1, graph.name, _APART)
        title = (graph.name or "main").encode()
        return b"".join((
            message_of(1, graph.name.encode()), message_of(2, title + b".1"),
            *[message_of(3, c) for c in self._computations], message_of(4, signature),
            integer_of(5, 1), integer_of(6, 1),
        ))  # fmt: skip

    def _computation(self, graph: Graph, id: int, name: str, style: Style) -> bytes:
        """Add a computation; returns its signature."""
        body = _Body(self, graph)
        shapes = [_shape(n.type) for n in graph.inputs]
        if style.packed:
            shapes = [_tuple(graph.inputs)]
            body.unpack(graph.inputs, shapes[0])
        elif graph.inputs:
            body.parameters(graph.inputs, is_entry=id == 1)
        body.fill(graph.nodes)
        if style.bare and len(graph.outputs) == 1:
            (output,) = graph.outputs
            root, result = body.number_of(output, output.operation), _shape(output.type)
        else:
            root, result = body.pack(graph.outputs, Operation(""))
        signature = b"".join([message_of(1, s) for s in shapes]) + message_of(2, result)
        signature += b"".join([message_of(3, b"p%d" % k) for k in range(len(shapes))])
        self.numbers = body.numbers  # The entry is the last.
        title = f"{name or 'main'}.{id}".encode()
        self._computations.append(b"".join((
            message_of(1, title), *body.written, message_of(4, signature), integer_of(5, id),
            integer_of(6, root),
        )))  # fmt: skip
        return signature

    def origin(self, operation: Operation) -> bytes:
        """The metadata of an operation's instructions."""
        data = operation.wire
        if data is not None:
            data = self.was_read(data)
        else:
            key = operation.name, operation.origin
            data = self._known.get(key)
            if data is None:
                data = self._known[key] = self.metadata_of(*key) if any(key) else b""
        self.metadata[operation] = data
        return data

    def was_read(self, metadata: bytes) -> bytes:
        """The metadata of an operation that was read from a module."""
        return metadata

    def metadata_of(self, kind: str, origin: str) -> bytes:
        """The metadata of an operation of this kind and origin (see `Operation`)."""
        return metadata(kind, origin + kind)

    def attributed(self, n: Node) -> bytes | None:
        """The fields of a node that carries attributes, communicates or is a custom call.

        Returns:
            Them; None, if it stands for its only operand.
        """
        return (b"" if n.params is None else params_of(n.opcode, n.params)) + self.more_of(n)

    def more_of(self, n: Node) -> bytes:
        """The same, without parameters, of a constant or of an instruction with tuples."""
        return n.more

    def sharding_of(self, n: Node, place: int | None) -> bytes:
        """The field with the sharding of an input; `place` is that of a parameter of the entry."""
        return sharding_of(n)

    def callee(self, called: Any) -> Any:
        """The form in which a called function is written."""
        return called

    def is_passed(self, call: Node) -> bool:
        """Whether the results of a call stand for its operands."""
        return False

    def is_apart(self, called: Graph) -> bool:
        """Whether each call of a function needs one of its own."""
        # A channel belongs to one call, and collectives may be equal within one call only.
        return called.communicates

    def callees(self, n: Node) -> list[int]:
        """The numbers of the computations that an instruction calls."""
        styles = _STYLES.get(n.opcode, (_BARE,))
        each = [styles[min(k, len(styles) - 1)] for k in range(len(n.calls))]
        called = map(self.callee, n.calls)
        return [self._callee(c, style) for c, style in zip(called, each, strict=True)]

    def _callee(self, called: Any, style: Style) -> int:
        number = self._called.get((called, style))
        if number is not None:
            return number
        is_apart = False
        if isinstance(called, Graph):
            number = self.function(called, style)
            is_apart = self.is_apart(called)
        elif isinstance(called, Module):
            number, is_apart = self._embedded(called.proto)
        else:
            number = self._pair(*called)
        if not is_apart:
            self._called[called, style] = number
        return number

    def function(self, called: Graph, style: Style) -> int:
        """A function that is called: its number."""
        number = self.new()
        self._computation(called, number, called.name, style)
        return number

    def _pair(self, opcode: str, type: ArrayType) -> int:
        """A computation that combines two scalars."""
        number, x, y = self.new(), self.new(), self.new()
        shape, title = _shape(type), f"{opcode}.{number}".encode()
        body = _instruction("parameter", shape, x, (), b"")
        body += _instruction("parameter", shape, y, (), integer_of(9, 1))
        root = y
        if opcode != "second":
            root = self.new()
            body += _instruction(opcode, shape, root, (x, y), b"")
        signature = message_of(1, shape) * 2 + message_of(2, shape) + message_of(3, b"x") * 2
        self._computations.append(
            message_of(1, title) + body + message_of(4, signature) + integer_of(5, number)
            + integer_of(6, root)
        )  # fmt: skip
        return number

    def _embedded(self, module: pb.HloModuleProto) -> tuple[int, bool]:
        """The entry of a module, after adding its computations under new numbers.

        Returns:
            Its number, and whether devices communicate in it.
        """
        shift, communicates = self._last, False
        for c in module.computations:
            made = pb.HloComputationProto()
            made.CopyFrom(c)
            made.id, made.root_id = c.id + shift, c.root_id + shift
            made.name = renamed(c.name, made.id)
            last = max(self._last, made.id)
            for i in made.instructions:  # See NOTE [slices of fields] and NOTE [absent fields].
                opcode, k = i.opcode, i.id + shift
                i.id, i.name = k, f"{opcode}.{k}"
                if k > last:
                    last = k
                communicates |= opcode in opcodes.COLLECTIVES
                if opcode not in opcodes.LEAVES:
                    i.operand_ids[:] = [j + shift for j in i.operand_ids[:]]
                if ids := i.control_predecessor_ids[:]:
                    i.control_predecessor_ids[:] = [j + shift for j in ids]
                if opcode in opcodes.CALLING and (ids := i.called_computation_ids[:]):
                    i.called_computation_ids[:] = [j + shift for j in ids]
                self.was_embedded(i)
            self._last = last
            self._computations.append(made.SerializeToString())
        return module.entry_computation_id + shift, communicates

    def was_embedded(self, i: pb.HloInstructionProto) -> None:
        """Change an instruction of a module that was embedded."""


def metadata(kind: str, name: str, file: str = "", line: int = 0) -> bytes:
    """The metadata field of the user's operation that an instruction belongs to."""
    place = message_of(3, file.encode()) + integer_of(4, line) if file else b""
    return message_of(7, message_of(1, kind.encode()) + message_of(2, name.encode()) + place)


class Style(NamedTuple):
    """How a computation takes its inputs and returns its outputs.

    Attributes:
        packed: it takes one tuple.
        bare: a single output is no tuple.
    """

    packed: bool
    bare: bool


_APART, _PACKED = Style(False, False), Style(True, False)
_BARE, _TEST = Style(False, True), Style(True, True)
_STYLES: dict[str, tuple[Style, ...]] = {
    "while": (_PACKED, _TEST), "conditional": (_PACKED,),
}  # fmt: skip
"""By opcode, the styles of its callees; the last one is for all further callees."""


class _Body:
    """The instructions of one computation.

    Attributes:
        written: each as a field of the computation.
    """

    def __init__(self, writer: Writer, graph: Graph) -> None:
        self._writer = writer
        self.numbers: dict[int, int] = {}
        self._inputs = set(map(id, graph.inputs))
        self._alone: set[int] = set()  # calls with one result
        self._passed: set[int] = set()  # calls that return their operands
        self.written: list[bytes] = []

    def parameters(self, inputs: Sequence[Node], is_entry: bool) -> None:
        for place, n in enumerate(inputs):
            sharding = self._writer.sharding_of(n, place if is_entry else None)
            self._put("parameter", n, _shape(n.type), integer_of(9, place) + sharding, ())

    def unpack(self, inputs: Sequence[Node], shape: bytes) -> None:
        """The elements of the only parameter."""
        whole = self._writer.new()
        self.written.append(_instruction("parameter", shape, whole, (), b""))
        for place, n in enumerate(inputs):
            self._put("get-tuple-element", n, _shape(n.type), integer_of(13, place), (whole,))

    def _put(self, opcode: str, n: Node, shape: bytes, rest: bytes, operands: Sequence[int]) -> int:
        writer = self._writer
        number = self.numbers[id(n)] = writer.new()
        rest += writer.origin(n.operation)
        self.written.append(_instruction(opcode, shape, number, operands, rest))
        return number

    def number_of(self, n: Node, operation: Operation) -> int:
        """The number of an instruction that is used by an operation."""
        number = self.numbers.get(id(n))
        if number is None:  # a constant
            number = self.numbers[id(n)] = self._writer.new()
            rest = _literal(n) + self._writer.more_of(n) + self._writer.origin(operation)
            self.written.append(_instruction("constant", _shape(n.type), number, (), rest))
        return number

    def pack(self, nodes: Sequence[Node], operation: Operation) -> tuple[int, bytes]:
        """A tuple of values: its number, and its shape."""
        ids = [self.number_of(n, n.operation) for n in nodes]
        shape, number = _tuple(nodes), self._writer.new()
        rest = self._writer.origin(operation)
        self.written.append(_instruction("tuple", shape, number, ids, rest))
        return number, shape

    def fill(self, nodes: Iterable[Node]) -> None:
        """Add the instructions of a graph, but its inputs."""
        writer, inputs, numbers = self._writer, self._inputs, self.numbers
        for n in nodes:
            opcode, operation = n.opcode, n.operation
            if opcode == "constant" or id(n) in inputs:  # see NOTE [where constants stand]
                continue
            if opcode in _PACKING and isinstance(n.type, TupleType):  # A barrier may take an array.
                self._packing(n)
                continue
            if opcode == "get-tuple-element":
                of = n.operands[0]
                if id(of) in self._alone:
                    numbers[id(n)] = numbers[id(of)]
                    continue
                if id(of) in self._passed:
                    which: int = n.params
                    numbers[id(n)] = self.number_of(of.operands[which], operation)
                    continue
            operands = [numbers.get(id(o)) or self.number_of(o, operation) for o in n.operands]
            type = n.type
            if n.more or opcode in _SETTLED:
                rest = writer.attributed(n)
                if rest is None:
                    (numbers[id(n)],) = operands
                    continue
            else:
                rest = b"" if n.params is None else params_of(opcode, n.params)
            if n.calls:
                if opcode == "call":
                    if writer.is_passed(n):
                        self._passed.add(id(n))
                        continue
                    if _is_alone(writer.callee(n.calls[0])):
                        self._alone.add(id(n))
                        type = _result(n)
                rest += integers_of(38, writer.callees(n))
            number = numbers[id(n)] = writer.new()
            rest += writer.metadata.get(operation) or writer.origin(operation)
            shape = type.wire or _shape(type)
            self.written.append(_instruction(opcode, shape, number, operands, rest))

    def _packing(self, n: Node) -> None:
        """An instruction that takes tuples."""
        operands, shape, rest = n.operands, _shape(n.type), self._writer.more_of(n)
        if n.opcode == "conditional":
            given = [self.number_of(operands[0], n.operation)]
            at = 1
            for count in n.params:
                given.append(self.pack(operands[at : at + count], n.operation)[0])
                at += count
        else:
            given = [self.pack(operands, n.operation)[0]]
        if n.calls:
            rest += integers_of(38, self._writer.callees(n))
        self._put(n.opcode, n, shape, rest, given)


_PACKING = frozenset(("while", "conditional", "opt-barrier"))
_SETTLED = opcodes.COLLECTIVES | {"custom-call"}  # what passes over a whole program change


def _result(call: Node) -> ArrayType:
    """The type of the only result of a call."""
    whole: Any = call.type
    return whole.elements[0]


def _is_alone(called: Graph | Module) -> bool:
    """Whether a function has one result, which is no tuple."""
    if isinstance(called, Graph):
        return len(called.outputs) == 1
    return called.proto.host_program_shape.result.element_type != pb.TUPLE


def sharding_of(n: Node) -> bytes:
    """The field with the sharding of a value, for a parameter that takes its place."""
    if n.opcode == "parameter":
        return n.more
    how = n.params
    if isinstance(how, CustomCall) and how.sharding is not None and not how.tied:
        return message_of(40, how.sharding)
    return b""


def _tuple(outputs: Sequence[Node]) -> bytes:
    return integer_of(2, pb.TUPLE) + b"".join([message_of(4, _shape(n.type)) for n in outputs])


def write(graph: Graph) -> bytes:
    """A serialised module that runs a graph and returns a tuple."""
    return Writer().module(graph)


def numbered(graph: Graph) -> tuple[bytes, dict[int, int]]:
    """A module, and the ids of its entry's instructions, by the identities of their nodes."""
    writer = Writer()
    return writer.module(graph), writer.numbers
