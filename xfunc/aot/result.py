"""The result of compiling a program: the file that the worker writes and the cache keeps."""

from __future__ import annotations

import dataclasses
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

from xfunc.aot.buffers import Buffer, largest_buffers, temporary_bytes
from xfunc.aot.request import Request, restore_lines, text_with_lines
from xfunc.backends.analysis import MemoryAnalysis
from xfunc.hlo import Module, wire

UNREADABLE = (
    OSError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,  # a zip file that claims to be encrypted
    LookupError,
    ValueError,
)
"""The exceptions of reading a file that is missing, damaged or not a result."""


@dataclasses.dataclass(frozen=True)
class Result:
    """The program that libtpu made, or its refusal.

    Attributes:
        report: figures and refusals.
        executable: libtpu's own form of the program; empty if it made none.
        description: the optimised program and its buffers, as an ``HloProto``; empty if libtpu
            did not get that far.
        printed: the optimised program as text, with numbers for lines; empty if there is none.
        request: the request answered.
    """

    report: dict[str, Any]
    executable: bytes = dataclasses.field(repr=False)
    description: bytes = dataclasses.field(repr=False)
    printed: str = dataclasses.field(repr=False)
    request: Request

    @classmethod
    def read(cls, path: Path, request: Request) -> Result:
        """Read the file of a result; see `UNREADABLE`."""
        with zipfile.ZipFile(path) as archive:
            report = json.loads(archive.read("report.json"))
            executable, description = archive.read("executable"), archive.read("hlo.pb")
            return cls(report, executable, description, archive.read("hlo.txt").decode(), request)

    @property
    def is_final(self) -> bool:
        """Whether libtpu would say the same again."""
        return "memory" in self.report or "RESOURCE_EXHAUSTED" in self.report.get("refusal", "")

    @property
    def memory(self) -> MemoryAnalysis:
        """The memory of one chip.

        NOTE [holes count once]: libtpu up to 0.0.42 reports as the size of temporaries the size of
        the space they occupy plus that of the holes in it, which it already includes. By that
        figure some programs that it compiles are too large, and when it refuses one it counts the
        space alone. So the figure here is the space, as XLA assigned it; 0.0.52 reports the same.
        """
        said = dict(self.report["memory"])
        assignment = wire.fields(self.description).get(3)
        if assignment:
            said["temp_size_in_bytes"] = temporary_bytes(assignment[0])
        names = [f.name for f in dataclasses.fields(MemoryAnalysis)]
        found = MemoryAnalysis(**{name: said.get(name) for name in names})
        # libtpu's own figure for the peak counts other memories too.
        held = said["argument_size_in_bytes"] + said["output_size_in_bytes"]
        peak = held - said["alias_size_in_bytes"] + said["temp_size_in_bytes"]
        return dataclasses.replace(found, peak_memory_in_bytes=peak)

    @property
    def text(self) -> str | None:
        """The optimised program as libtpu's own XLA prints it, with the user's files and lines."""
        return text_with_lines(self.printed, self.request.lines) or None

    @property
    def module(self) -> Module | None:
        """The optimised program, with the user's files and lines."""
        found = wire.fields(self.description)
        if 1 not in found:
            return None
        module = Module.from_bytes(found[1][0])
        restore_lines(module.proto, self.request.lines)
        return module

    def largest_buffers(self, n: int) -> list[Buffer]:
        """See `largest_buffers`; none if libtpu did not get that far."""
        found, module = wire.fields(self.description), self.module
        if module is None or 3 not in found:
            return []
        return largest_buffers(module, found[3][0], self.request.arguments, n)
