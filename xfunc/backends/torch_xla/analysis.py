"""The compiler's output for a program: optimised HLO and memory.

NOTE [where compiled programs are found]: torch_xla gives no access to compiled programs. But XLA
keeps a description of each compiled program for its profiler, and a profiler session of zero length
returns those of all live programs: the optimised HLO, and the layout of its buffers.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from xfunc.backends.analysis import CompilerOutput, MemoryAnalysis
from xfunc.backends.torch_xla import recorder
from xfunc.hlo import Module, wire


def optimised(graph: str) -> CompilerOutput | None:
    """A compiled program by its name: see NOTE [where compiled programs are found].

    None: this device's client does not provide it.
    """
    try:
        space = recorder.session().stop()
        for name, program in _programs(space):
            if name.rsplit("(", 1)[0].rsplit(".", 1)[0] == graph:
                return _read(program)
    except (RuntimeError, DecodeError):  # The user's own session is open, or there is no data.
        return None
    return None


def _programs(space: bytes) -> list[tuple[str, bytes]]:
    """The programs in an ``XSpace``: name and ``HloProto``."""
    result = []
    for plane in map(wire.fields, wire.fields(space).get(1, ())):
        if plane[2] != [b"/host:metadata"]:
            continue
        for entry in map(wire.fields, plane.get(4, ())):
            event = wire.message(entry, 2)
            for stat in map(wire.fields, event.get(5, ())):
                result += [(event[2][0].decode(), data) for data in stat.get(6, ())]
    return result


def _read(program: bytes) -> CompilerOutput:
    found = wire.fields(program)
    module = Module.from_bytes(found[1][0])
    if 3 not in found:
        return CompilerOutput(module, MemoryAnalysis())
    arguments = outputs = temporary = alias = host = 0
    for allocation in map(wire.fields, wire.message(found, 3).get(3, ())):
        size, live_out = wire.integer(allocation, 2), wire.integer(allocation, 7)
        if wire.integer(allocation, 3) or wire.integer(allocation, 12):
            continue  # of one thread, or a constant
        if wire.integer(allocation, 8) == _HOST:
            host += size
        if wire.integer(allocation, 5):
            arguments += size
            alias += size if live_out else 0
        if live_out:
            outputs += size
        elif not wire.integer(allocation, 5):
            temporary += size
    peak = arguments + outputs - alias + temporary
    return CompilerOutput(module, MemoryAnalysis(arguments, outputs, temporary, alias, host, peak))


_HOST = 5  # the number of the host's memory space, in XLA's layouts
