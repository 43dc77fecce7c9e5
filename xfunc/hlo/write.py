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

from xfunc.graph.build import Convolution, GatherDims, Literal, ScatterDims, Window
from xfunc.graph.node import ArrayType, Node, Operation, TupleType, reached
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import opcodes
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


class CustomCall(NamedTuple):
    """The parameters of a custom call.

    Attributes:
        target: a name that the compiler knows.
        config: its configuration.
        sharding: a serialised ``OpSharding``.
    """

    target: str
    config: str = ""
    sharding: bytes | None = None


def _custom_call(p: CustomCall) -> bytes:
    original = 1  # the version of the interface
    return b"".join((
        message_of(28, p.target.encode()), message_of(43, p.config.encode()) if p.config else b"",
        integer_of(77, original), b"" if p.sharding is None else message_of(40, p.sharding),
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
    """The field of a pad: before, behind and between the elements of each dimension."""
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


def _dot(p: tuple[tuple[int, ...], ...]) -> bytes:
    return message_of(30, b"".join([integers_of(k + 1, dims) for k, dims in enumerate(p)]))


def _dims(p: tuple[int, ...]) -> bytes:
    return integers_of(14, p)


_PARAMS: dict[str, Callable[[Any], bytes]] = {
    "broadcast": _dims, "transpose": _dims, "reverse": _dims, "concatenate": _dims, "iota": _dims,
    "reduce": _dims,
    "compare": lambda p: message_of(63, p.encode()),
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
    "fft": lambda p: integer_of(31, p[0]) + integers_of(32, p[1]),
    "cholesky": lambda p: message_of(62, integer_of(1, 1)),
    "triangular-solve": lambda p: message_of(
        59, b"".join([integer_of(k + 1, int(on)) for k, on in enumerate(p)]) + integer_of(4, 1)
    ),
}  # fmt: skip


@functools.lru_cache(65536)
def _known_params(opcode: str, params: Any) -> bytes:
    return _PARAMS[opcode](params)


@functools.lru_cache(4096)
def _scalar(_: str, value: Any, type: ArrayType) -> bytes:
    return message_of(8, scalar_literal(value, type.dtype).SerializeToString())


def _literal(n: Node) -> bytes:
    value = n.params
    if not isinstance(value, Literal):
        return _scalar(repr(value), value, n.type)
    proto = pb.LiteralProto()
    with plain_tensors():
        write_literal(value.tensor, proto)
    return message_of(8, proto.SerializeToString())


# -- modules --------------------------------------------------------------------------------------


@functools.lru_cache(4096)
def _opcode(opcode: str) -> tuple[bytes, bytes]:
    return message_of(2, opcode.encode()), opcode.encode() + b"."


_SHAPE, _ID, _OPERANDS = b"\x1a", b"\x98\x02", b"\xa2\x02"  # fields 3, 35 and 36


def _instruction(
    opcode: str, shape: bytes, number: int, operands: Sequence[int], rest: bytes
) -> bytes:
    """An instruction, as a field of its computation."""
    code, base = _opcode(opcode)
    name = base + b"%d" % number
    ids = b"".join(map(_known_varint, operands))
    data = b"".join((
        b"\x0a", _known_varint(len(name)), name, code, _SHAPE, _known_varint(len(shape)), shape,
        _ID, _known_varint(number), _OPERANDS, _known_varint(len(ids)), ids, rest,
    ))  # fmt: skip
    return b"\x12" + _known_varint(len(data)) + data


class _Writer:
    """Writes one module."""

    def __init__(self) -> None:
        self._last = 1  # the number of the module's entry
        self._computations: list[bytes] = []
        self._called: dict[object, int] = {}
        self._metadata: dict[tuple[str, str], bytes] = {}

    def _new(self) -> int:
        self._last += 1
        return self._last

    def entry(self, name: str, nodes: Sequence[Node], inputs: Sequence[Node],
              outputs: Sequence[Node]) -> bytes:  # fmt: skip
        """A module that returns a tuple."""
        places = {id(n): k for k, n in enumerate(inputs)}
        numbers: dict[int, int] = {}
        body: list[bytes] = []

        def put(n: Node, rest: bytes, operands: Sequence[int], operation: Operation) -> int:
            number = numbers[id(n)] = self._new()
            rest += self._origin(operation)
            body.append(_instruction(n.opcode, _shape(n.type), number, operands, rest))
            return number

        def number_of(n: Node, operation: Operation) -> int:
            number = numbers.get(id(n))
            return put(n, _literal(n), (), operation) if number is None else number

        for n in nodes:
            opcode = n.opcode
            place = places.get(id(n)) if opcode == "parameter" else None
            if place is not None:
                rest = integer_of(9, place)
            elif opcode == "constant":
                continue  # see NOTE [where constants stand]
            elif n.params is not None:
                rest = _known_params(opcode, n.params)
            else:
                rest = b""
            for called in n.calls:
                rest += integers_of(38, (self._callee(called),))
            put(n, rest, [number_of(o, n.operation) for o in n.operands], n.operation)
        result = _tuple(outputs)
        ids = [number_of(n, n.operation) for n in outputs]
        root = self._new()
        body.append(_instruction("tuple", result, root, ids, b""))
        signature = b"".join([message_of(1, _shape(n.type)) for n in inputs]) + message_of(
            2, result
        )
        signature += b"".join([message_of(3, b"p%d" % k) for k in range(len(inputs))])
        title = name.encode()
        entry = b"".join((
            message_of(1, title + b".1"), *body, message_of(4, signature), integer_of(5, 1),
            integer_of(6, root),
        ))  # fmt: skip
        self._computations.append(entry)
        return b"".join((
            message_of(1, title), message_of(2, title + b".1"),
            *[message_of(3, c) for c in self._computations], message_of(4, signature),
            integer_of(5, 1), integer_of(6, 1),
        ))  # fmt: skip

    def _origin(self, operation: Operation) -> bytes:
        key = operation.name, operation.origin
        data = self._metadata.get(key)
        if data is None:
            kind = key[0].encode()
            text = message_of(1, kind) + message_of(2, key[1].encode() + kind)
            data = self._metadata[key] = message_of(7, text) if kind or key[1] else b""
        return data

    def _callee(self, called: Any) -> int:
        """The number of a computation that is called."""
        number = self._called.get(called)
        if number is not None:
            return number
        communicates = False
        if isinstance(called, Module):
            number, communicates = self._embedded(called.proto)
        else:
            number = self._pair(*called)
        if not communicates:
            self._called[called] = number
        return number

    def _pair(self, opcode: str, type: ArrayType) -> int:
        """A computation that combines two scalars."""
        number, x, y = self._new(), self._new(), self._new()
        shape, title = _shape(type), f"{opcode}.{number}".encode()
        body = _instruction("parameter", shape, x, (), b"")
        body += _instruction("parameter", shape, y, (), integer_of(9, 1))
        root = y
        if opcode != "second":
            root = self._new()
            body += _instruction(opcode, shape, root, (x, y), b"")
        signature = message_of(1, shape) * 2 + message_of(2, shape) + message_of(3, b"x") * 2
        self._computations.append(
            message_of(1, title) + body + message_of(4, signature) + integer_of(5, number)
            + integer_of(6, root)
        )  # fmt: skip
        return number

    def _embedded(self, module: pb.HloModuleProto) -> tuple[int, bool]:
        """The entry of a module whose computations are added under new numbers.

        Returns:
            Its number, and whether devices communicate in it: then each call needs one of its own,
            for its channels and because what they exchange may be equal in one call only.
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
            self._last = last
            self._computations.append(made.SerializeToString())
        return module.entry_computation_id + shift, communicates


def _tuple(outputs: Sequence[Node]) -> bytes:
    return integer_of(2, pb.TUPLE) + b"".join([message_of(4, _shape(n.type)) for n in outputs])


def write(name: str, inputs: Sequence[Node], outputs: Sequence[Node]) -> tuple[bytes, list[int]]:
    """A serialised module that computes a tuple of outputs, and which inputs it takes."""
    nodes = reached(outputs, inputs)
    among = set(map(id, nodes))
    taken = [k for k, n in enumerate(inputs) if id(n) in among]
    return _Writer().entry(name, nodes, [inputs[k] for k in taken], outputs), taken
