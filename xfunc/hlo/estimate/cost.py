"""`cost`: the operations and bytes of a module, counted in one pass over its instructions.

The rules are those of XLA's ``HloCostAnalysis``, which JAX's ``cost_analysis`` shows too,
with one difference: a loop whose number of steps can be read from the HLO counts that many times,
not once.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import NamedTuple

from xfunc.graph import opcodes
from xfunc.graph.graph import Graph
from xfunc.graph.node import Node
from xfunc.hlo import wire
from xfunc.hlo.module import Computation, Instruction, Module
from xfunc.hlo.passes.offload import is_placement
from xfunc.hlo.shape import Shape
from xfunc.hlo.write import numbered


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a computation or an instruction.

    Attributes:
        flops: arithmetic operations; a multiply-add is two.
        transcendentals: exponentials, logarithms, roots, trigonometric functions.
        bytes_accessed: read and written by all instructions together, as if none were fused.
        host_bytes: sent to the host's memory, or brought from there.
    """

    flops: int = 0
    transcendentals: int = 0
    bytes_accessed: int = 0
    host_bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(a + b for a, b in zip(_fields(self), _fields(other), strict=True)))

    def __mul__(self, times: int) -> Cost:
        return Cost(*(a * times for a in _fields(self)))


def _fields(c: Cost) -> tuple[int, int, int, int]:
    return c.flops, c.transcendentals, c.bytes_accessed, c.host_bytes


def cost(module: Module) -> Cost:
    """The cost of one run of the module."""
    known = _known(module)
    return sum((_instruction(i, known) for i in module.entry.instructions), Cost())


def costs(graph: Graph) -> dict[Node, Cost]:
    """The cost of each node of a graph."""
    data, numbers = numbered(graph)
    module = Module.from_bytes(data)
    known, by_id = _known(module), module.entry.by_id
    return {n: _instruction(by_id[numbers[id(n)]], known) for n in graph.nodes if id(n) in numbers}


def _known(module: Module) -> dict[int, Cost]:
    """The cost of each called computation, by its id."""
    known: dict[int, Cost] = {}
    for c in module.computations:  # callees come first
        if c is not module.entry:
            known[c.id] = sum((_instruction(i, known) for i in c.instructions), Cost())
    return known


def running(module: Module) -> list[tuple[Instruction, Cost, int]]:
    """The costs of the instructions that do the work, each with the number of times it runs.

    Instructions inside loops, calls and branches (all of a conditional's) are listed instead of the
    loops, calls and conditionals themselves.
    """
    known = _known(module)
    result: list[tuple[Instruction, Cost, int]] = []

    def add(c: Computation, times: int) -> None:
        for i in c.instructions:
            if i.opcode == "while":
                for inner in i.called_computations:
                    add(inner, times * (trip_count(i) or 1))
            elif i.opcode in ("call", "conditional"):
                for inner in i.called_computations:
                    add(inner, times)
            else:
                result.append((i, _instruction(i, known), times))

    add(module.entry, 1)
    return result


class Chip(NamedTuple):
    """The speed of a chip, per second.

    Attributes:
        flops: arithmetic operations of matrix products.
        bytes: bytes read from its memory or written to it.
        host: bytes sent to its host's memory, or brought from there; 0: it has no other memory.
    """

    flops: float
    bytes: float
    host: float = 0.0


# Source for the TPUs: cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e,tpu7x}, peak compute per chip in
# bfloat16 and memory bandwidth; half of both for tpu7x, where a chip is two devices. That of the
# link to the host: Austin et al., "How to Scale Your Model", 2025, part 2; it does not give
# tpu7x's, for which half of v6e's is assumed. The CPU is a guess: a few cores of a server.
CHIPS = {
    "v4": Chip(275e12, 1228e9, 15e9),
    "v5e": Chip(197e12, 819e9, 15e9),
    "v5p": Chip(459e12, 2765e9, 15e9),
    "v6e": Chip(918e12, 1640e9, 32e9),
    "tpu7x": Chip(1153.5e12, 3690e9, 16e9),
    "cpu": Chip(100e9, 20e9),
}


def roofline(cost: Cost, chip: str = "v6e") -> float:
    """Seconds that a cost takes on a chip: for arithmetic or for memory, whichever is longer.

    Transfers from and to the host are added as if nothing ran meanwhile: transfers to the host may
    overlap with other work, but the backward pass of a loop's step waits for its transfers.

    Source: Williams et al., "Roofline", 2009.
    """
    speed = CHIPS[chip]
    work = cost.flops + cost.transcendentals
    seconds = max(work / speed.flops, cost.bytes_accessed / speed.bytes)
    return seconds + cost.host_bytes / speed.host if speed.host else seconds


def _instruction(i: Instruction, known: dict[int, Cost]) -> Cost:
    op = i.opcode
    if op in opcodes.COUNTED_AS_NOTHING:
        return Cost()
    called = [known[c] for c in i.proto.called_computation_ids]
    if op == "call":
        return called[0]
    if op == "while":
        return (called[0] + called[1]) * (trip_count(i) or 1)
    if op == "conditional":
        return max(called, key=_fields) if called else Cost()
    moved = Cost(bytes_accessed=_bytes(i), host_bytes=i.bytes if is_placement(i) else 0)
    if op == "fusion":
        return dataclasses.replace(called[0], bytes_accessed=moved.bytes_accessed)
    if op == "dot":
        lhs = i.operands[0].shape.dims
        contracted = i.proto.dot_dimension_numbers.lhs_contracting_dimensions
        terms = math.prod(lhs[d] for d in contracted)
        return moved + Cost(flops=2 * _size(i.shape) * terms)
    if op == "convolution":
        return moved + Cost(flops=_convolution(i))
    if op in opcodes.COUNTED_PER_ELEMENT and called:
        inner = dataclasses.replace(called[0], bytes_accessed=0)
        return moved + inner * _applications(i)
    if op in opcodes.COUNTED_AS_MOVES:
        return moved
    if op in opcodes.TRANSCENDENTAL:
        return moved + Cost(transcendentals=_size(i.shape))
    return moved + Cost(flops=_size(i.shape))


def _size(shape: Shape) -> int:
    return sum(map(_size, shape.elements)) if shape.is_tuple else math.prod(shape.dims)


def _bytes(i: Instruction) -> int:
    """The bytes that an instruction reads and writes."""
    if i.opcode in ("slice", "dynamic-slice", "gather"):  # They read no more than they write.
        return 2 * i.bytes + sum(o.bytes for o in i.operands[1:] if i.opcode == "gather")
    if i.opcode == "dynamic-update-slice":  # In place.
        return 2 * i.operands[1].bytes
    return i.bytes + sum(o.bytes for o in i.operands)


def _applications(i: Instruction) -> int:
    """How often an instruction applies its computation."""
    size = _size(i.operands[0].shape)
    if i.opcode == "reduce":
        result = i.shape.elements[0] if i.shape.is_tuple else i.shape
        return size - _size(result)
    if i.opcode == "sort":
        return size * max(1, math.ceil(math.log2(max(2, size))))
    if i.opcode == "scatter":
        return _size(i.operands[-1].shape)
    if i.opcode == "reduce-window":
        return _size(i.shape) * (math.prod(wire.integer(d, 1, 1) for d in _window(i)) - 1)
    return size


# -- loops ----------------------------------------------------------------------------------------


_KNOWN_TRIPS = re.compile(rb'"known_trip_count":\{"n":"(\d+)"')


def trip_count(loop: Instruction) -> int | None:
    """How often a ``while`` runs, if it counts up by one from a constant to a constant limit."""
    known = _KNOWN_TRIPS.search(loop.proto.backend_config)  # from XLA, once it has optimised
    if known:
        return int(known[1])
    body, condition = loop.called_computations
    test = condition.root
    if test.opcode != "compare" or test.proto.comparison_direction != "LT":
        return None
    counter, bound = test.operands
    index = _element(counter, condition)
    if index is None or body.root.opcode != "tuple" or loop.operands[0].opcode != "tuple":
        return None
    step = body.root.operands[index]
    one = [_scalar(o) for o in step.operands if _element(o, body) != index]
    start, stop = _scalar(loop.operands[0].operands[index]), _scalar(bound)
    if step.opcode != "add" or one != [1] or start is None or stop is None:
        return None
    return max(0, stop - start)


def _element(i: Instruction, computation: Computation) -> int | None:
    """Which element of the computation's only parameter an instruction stands for."""
    if i.opcode == "get-tuple-element" and i.operands[0] is computation.parameters[0]:
        return i.proto.tuple_index
    return None


def _scalar(i: Instruction) -> int | None:
    if i.opcode != "constant" or i.shape.dims or i.shape.is_tuple:
        return None
    values = [*i.proto.literal.s32s, *i.proto.literal.s64s]
    return values[0] if len(values) == 1 else None


# -- windows --------------------------------------------------------------------------------------


def _window(i: Instruction) -> list[wire.Fields]:
    """The dimensions of the instruction's window, each a ``WindowDimension``."""
    window = wire.message(wire.fields(i.proto.SerializeToString()), 15)
    return [wire.fields(d) for d in window.get(1, ())]


def _convolution(i: Instruction) -> int:
    """Two operations wherever the kernel meets the input; padding does not count."""
    x, kernel, out = i.operands[0].shape.dims, i.operands[1].shape.dims, i.shape.dims
    numbers = wire.message(wire.fields(i.proto.SerializeToString()), 16)
    spatial = zip(
        _window(i),
        wire.integers(numbers, _KERNEL_SPATIAL),
        wire.integers(numbers, _INPUT_SPATIAL),
        wire.integers(numbers, _OUTPUT_SPATIAL),
        strict=True,
    )
    met = math.prod(_meetings(w, kernel[k], x[d], out[o]) for w, k, d, o in spatial)
    batch = x[wire.integer(numbers, _INPUT_BATCH)] // max(1, i.proto.batch_group_count)
    features = out[wire.integer(numbers, _OUTPUT_FEATURE)]
    channels = kernel[wire.integer(numbers, _KERNEL_INPUT_FEATURE)]
    return 2 * met * batch * features * channels


# Field numbers of ``ConvolutionDimensionNumbers``.
_KERNEL_INPUT_FEATURE, _KERNEL_SPATIAL, _INPUT_BATCH = 3, 6, 7
_OUTPUT_FEATURE, _INPUT_SPATIAL, _OUTPUT_SPATIAL = 10, 11, 12


def _meetings(window: wire.Fields, kernel: int, size: int, out: int) -> int:
    """The number of pairs of a kernel element and an input element in one dimension."""
    stride, low = wire.integer(window, 2, 1), wire.integer(window, 3)
    dilation, base = wire.integer(window, 5, 1), wire.integer(window, 6, 1)
    return sum(
        0 <= at < (size - 1) * base + 1 and at % base == 0
        for k in range(kernel)
        for at in range(k * dilation - low, k * dilation - low + out * stride, stride)
    )
