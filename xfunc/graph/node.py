"""`Node`: one HLO instruction of a graph, with the type of its result.

A rule of an operation makes nodes. The type of a node is computed when it is made, by the functions
of `xfunc.graph.build`: there is no other shape inference.

NOTE [numbers of nodes]: a node is made after its operands, and has a greater number. So nodes in
the order of their numbers are a program, and the newest value of two is the one with the greater
number. Nodes belong to no graph: constants are shared by all.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import torch


class NoSuchTypeError(RuntimeError):
    """XLA has no such numbers."""


class ArrayType:
    """The dtype and dimensions of an array; equal ones are one object: see `array_type`.

    Attributes:
        dtype: of the elements.
        dims: sizes.
        wire: the serialised ``ShapeProto``, once `xfunc.hlo.write` has made it.
    """

    __slots__ = ("dims", "dtype", "wire")

    def __init__(self, dtype: torch.dtype, dims: tuple[int, ...]) -> None:
        self.dtype, self.dims = dtype, dims
        self.wire: bytes | None = None

    @property
    def bytes(self) -> int:
        """The size in bytes."""
        return math.prod(self.dims) * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}[{','.join(map(str, self.dims))}]"


@functools.lru_cache(65536)
def array_type(dtype: torch.dtype, dims: tuple[int, ...]) -> ArrayType:
    """The type of an array.

    Raises:
        NoSuchTypeError: XLA has no such numbers.
    """
    if dtype is torch.complex32:
        raise NoSuchTypeError("complex numbers of float16")
    return ArrayType(dtype, dims)


class TupleType:
    """The types of several results."""

    __slots__ = ("elements", "wire")

    def __init__(self, elements: Iterable[ArrayType]) -> None:
        self.elements = tuple(elements)
        self.wire: bytes | None = None

    @property
    def bytes(self) -> int:
        """The size in bytes."""
        return sum(t.bytes for t in self.elements)

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.elements))})"


class Operation:
    """An operation of the user's program, which its nodes share.

    Attributes:
        name: of the aten operation.
        origin: the number of the user's line and scopes, as a prefix: see `xfunc.trace.scopes`.
        wire: the serialised ``OpMetadata``, if the operation was read from a module.
    """

    __slots__ = ("name", "origin", "wire")

    def __init__(self, name: str, wire: bytes | None = None) -> None:
        self.name, self.origin, self.wire = name, "", wire


class _Thread(threading.local):
    operation = Operation("")


current = _Thread()
"""The operation that is recorded in this thread."""


@contextlib.contextmanager
def unattributed() -> Iterator[None]:
    """A block that makes nodes outside of the user's operations."""
    before, current.operation = current.operation, Operation("")
    try:
        yield
    finally:
        current.operation = before


next_number = itertools.count(1).__next__


class Node:
    """An HLO instruction.

    Attributes:
        opcode: XLA's name.
        type: of the result.
        operands: the nodes of its inputs.
        params: its other parameters, hashable; their form depends on the opcode: see
            `xfunc.hlo.write`.
        calls: the computations it calls: reducers by opcode and dtype, graphs or modules.
        more: further data (a sharding, attributes), as serialised fields.
        operation: the operation of the user's program that it is a part of.
        number: see NOTE [numbers of nodes].
    """

    __slots__ = ("calls", "more", "number", "opcode", "operands", "operation", "params", "type")

    # Most nodes have an array type; `types` has those of a tuple.
    type: ArrayType

    def __init__(
        self,
        opcode: str,
        type: ArrayType,
        operands: tuple[Node, ...] = (),
        params: Any = None,
        calls: tuple[Any, ...] = (),
        more: bytes = b"",
    ) -> None:
        self.opcode, self.type, self.operands = opcode, type, operands
        self.params, self.calls, self.more = params, calls, more
        self.operation = current.operation
        self.number = next_number()

    def changed(self, operands: tuple[Node, ...], calls: tuple[Any, ...] | None = None) -> Node:
        """The same instruction with other operands, and other computations if they are given."""
        calls = self.calls if calls is None else calls
        result = Node(self.opcode, self.type, operands, self.params, calls, self.more)
        result.operation = self.operation
        return result

    @property
    def dims(self) -> tuple[int, ...]:
        """The sizes of an array."""
        return self.type.dims

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of an array."""
        return self.type.dtype

    @property
    def bytes(self) -> int:
        """The size of the result in bytes; of several results, all of them."""
        return self.type.bytes

    def __repr__(self) -> str:
        return f"<{self.opcode}.{self.number}: {self.type}>"


def reached(roots: Iterable[Node], ends: Iterable[Node]) -> list[Node]:
    """The nodes that `roots` depend on, each after its operands, up to and including `ends`."""
    last = set(map(id, ends))
    found: dict[int, Node] = {}
    stack = [*roots]
    while stack:
        n = stack.pop()
        key = id(n)
        if key not in found:
            found[key] = n
            if key not in last:
                stack += n.operands
    return sorted(found.values(), key=_number)


_number = operator.attrgetter("number")
