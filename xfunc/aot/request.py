"""What is compiled: a module in a form that depends on nothing but its meaning, and how.

NOTE [lines are numbers]: the lines of the user's files are in a table beside the module, and the
module holds indices into it. So the same program has the same bytes after a line was added above
it, its result is found in the cache, and buffers are shown with the current lines.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence

from xfunc.aot.topology import Topology
from xfunc.hlo import Module
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import renumber_parameters

_FILE = "xfunc"

Lines = tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Request:
    """A program, and what to compile it for and how.

    Attributes:
        module: the serialised ``HloModuleProto``; see NOTE [lines are numbers].
        arguments: names of the module's parameters.
        lines: the files and lines that the module's numbers stand for.
        donated: parameters whose buffers the program may take over.
        topology: what it is compiled for.
        options: of the compiler.
    """

    module: bytes
    arguments: tuple[str, ...]
    lines: Lines
    donated: tuple[int, ...]
    topology: Topology
    options: dict[str, object]

    @property
    def settings(self) -> dict[str, object]:
        """What the worker is told beside the module."""
        return {
            "topology": self.topology.name,
            "topology_options": self.topology.options,
            "donated": self.donated,
            "options": self.options,
        }

    def key(self, *others: str) -> str:
        """A hash of all that the result depends on; `others` are versions and environment."""
        said = json.dumps([self.settings, others], sort_keys=True)
        return hashlib.sha256(said.encode() + b"\n" + self.module).hexdigest()


def request_for(
    module: Module,
    inputs: Sequence[int],
    labels: Sequence[str],
    donated: frozenset[int],
    topology: Topology,
    options: dict[str, object],
) -> Request:
    """The request to compile a module; what is compiled takes flat inputs in their order.

    Args:
        module: is not changed.
        inputs: the flat input that each parameter of the module is.
        labels: names of the flat inputs that are arguments; the others are held by the function.
        donated: flat inputs whose buffers the program may take over.
        topology: what to compile for.
        options: of the compiler.
    """
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    # XLA pairs donated parameters with results in the order of both.
    numbers = sorted(range(len(inputs)), key=lambda k: inputs[k])
    renumber_parameters(proto, numbers)
    lines = _number_lines(proto)
    flat = [inputs[k] for k in numbers]
    names = tuple(labels[i] if i < len(labels) else "a captured tensor" for i in flat)
    taken = tuple(k for k, i in enumerate(flat) if i in donated)
    return Request(Module(proto).to_bytes(), names, lines, taken, topology, options)


def _number_lines(proto: pb.HloModuleProto) -> Lines:
    numbers: dict[tuple[str, int], int] = {}
    callers: dict[int, tuple[str, int]] = {}  # the line of what calls a computation
    for c in reversed(proto.computations):  # callees stand before their callers
        for i in c.instructions:
            line = (i.metadata.source_file, i.metadata.source_line)
            if not i.metadata.source_file:
                line = callers.get(c.id, line)
            if not line[0]:
                continue
            for k in i.called_computation_ids:
                callers.setdefault(k, line)
            i.metadata.op_name = i.metadata.op_name or i.opcode  # MLIR drops the line of no name
            i.metadata.source_file = _FILE
            i.metadata.source_line = numbers.setdefault(line, len(numbers) + 1)
    return tuple(numbers)


def restore_lines(proto: pb.HloModuleProto, lines: Lines) -> None:
    """Put files and lines in place of their numbers, in place."""
    for c in proto.computations:
        for i in c.instructions:
            k = i.metadata.source_line
            if i.metadata.source_file == _FILE and 1 <= k <= len(lines):
                i.metadata.source_file, i.metadata.source_line = lines[k - 1]
