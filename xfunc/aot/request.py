"""Requests to compile: a module, in a form that depends only on its meaning, and options.

NOTE [lines are numbers]: the lines of the user's files are in a table beside the module, and the
module holds indices into it. So the same program keeps the same bytes when a line is added above
it, its result is found in the cache, and buffers are shown with the current lines.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Sequence

from xfunc.aot.topology import Topology
from xfunc.backends.target_passes import prepare_to_partition
from xfunc.hlo import Module
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import renumber_parameters
from xfunc.hlo.passes.shardy import to_shardy

_FILE = "xfunc"

Lines = tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Request:
    """A program, the target to compile it for, and the options.

    Attributes:
        module: the serialised ``HloModuleProto``; see NOTE [lines are numbers].
        arguments: names of the module's parameters.
        lines: the files and lines that the module's numbers stand for.
        donated: parameters with buffers that the program may reuse.
        topology: the target.
        options: the compiler's.
        shardy: whether shardings are written for Shardy, which then partitions the program in place
            of GSPMD.
    """

    module: bytes
    arguments: tuple[str, ...]
    lines: Lines
    donated: tuple[int, ...]
    topology: Topology
    options: dict[str, object]
    shardy: bool = False

    @property
    def settings(self) -> dict[str, object]:
        """The worker's input other than the module."""
        return {
            "topology": self.topology.name,
            "topology_options": self.topology.options,
            "donated": self.donated,
            "options": self.options,
            "shardy": self.shardy,
        }

    def key(self, *others: str) -> str:
        """A hash of everything the result depends on; `others` are versions and environment."""
        said = json.dumps([self.settings, others], sort_keys=True)
        return hashlib.sha256(said.encode() + b"\n" + self.module).hexdigest()


def request_for(
    module: Module,
    inputs: Sequence[int],
    labels: Sequence[str],
    donated: frozenset[int],
    topology: Topology,
    options: dict[str, object],
    shardy: bool = False,
) -> Request:
    """The request to compile a module; the compiled program takes flat inputs in order.

    Args:
        module: is not changed.
        inputs: for each parameter of the module, the flat input it takes.
        labels: names of the flat inputs that are arguments; the function holds the others.
        donated: flat inputs with buffers that the program may reuse.
        topology: the target.
        options: the compiler's.
        shardy: whether to write shardings for Shardy, if all of them fit into one mesh.
    """
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    # XLA pairs donated parameters with results, both in order.
    numbers = sorted(range(len(inputs)), key=lambda k: inputs[k])
    renumber_parameters(proto, numbers)
    prepare_to_partition(proto, topology.devices)
    by_shardy = shardy and topology.devices > 1 and to_shardy(proto, topology.devices) is not None
    lines = _number_lines(proto)
    flat = [inputs[k] for k in numbers]
    names = tuple(labels[i] if i < len(labels) else "a captured tensor" for i in flat)
    taken = tuple(k for k, i in enumerate(flat) if i in donated)
    made = Module(proto).to_bytes()
    return Request(made, names, lines, taken, topology, options, by_shardy)


def _number_lines(proto: pb.HloModuleProto) -> Lines:
    numbers: dict[tuple[str, int], int] = {}
    callers: dict[int, tuple[str, int]] = {}  # the line that calls a computation
    for c in reversed(proto.computations):  # callees come before their callers
        for i in c.instructions:
            line = (i.metadata.source_file, i.metadata.source_line)
            if not i.metadata.source_file:
                line = callers.get(c.id, line)
            if not line[0]:
                continue
            for k in i.called_computation_ids:
                callers.setdefault(k, line)
            i.metadata.op_name = i.metadata.op_name or i.opcode  # MLIR drops a nameless line.
            i.metadata.source_file = _FILE
            i.metadata.source_line = numbers.setdefault(line, len(numbers) + 1)
    return tuple(numbers)


def _meant(number: int, lines: Lines) -> tuple[str, int]:
    """The file and line that a number stands for; the number itself if it stands for none."""
    return lines[number - 1] if 1 <= number <= len(lines) else (_FILE, number)


def restore_lines(proto: pb.HloModuleProto, lines: Lines) -> None:
    """Put files and lines in place of their numbers, in place."""
    for c in proto.computations:
        for i in c.instructions:
            said = i.metadata
            if said.source_file == _FILE:
                said.source_file, said.source_line = _meant(said.source_line, lines)


def text_with_lines(text: str, lines: Lines) -> str:
    """A printed module with files and lines in place of their numbers."""

    def restored(found: re.Match[str]) -> str:
        file, line = _meant(int(found[1]), lines)
        return f'source_file="{file}" source_line={line}'

    # libtpu would derive the end of a line, and columns, from these indices.
    numbered = rf'source_file="{_FILE}" source_line=(\d+)(?: source_(?:end_)?(?:line|column)=\d+)*'
    return re.sub(numbered, restored, text)
