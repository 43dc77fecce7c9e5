"""A compiler's analysis of a program."""

from __future__ import annotations

import dataclasses

from xfunc.hlo import Module


@dataclasses.dataclass(frozen=True)
class MemoryAnalysis:
    """The memory of a compiled program, in bytes; None where the compiler does not report it.

    Attributes:
        argument_size_in_bytes: of the arguments.
        output_size_in_bytes: of the results, including those that reuse an argument's memory.
        temp_size_in_bytes: of temporaries, which exist only while the program runs.
        alias_size_in_bytes: of the arguments with memory that results reuse.
        host_temp_size_in_bytes: of temporaries in host memory.
        peak_memory_in_bytes: of all allocations while the program runs.
    """

    argument_size_in_bytes: int | None = None
    output_size_in_bytes: int | None = None
    temp_size_in_bytes: int | None = None
    alias_size_in_bytes: int | None = None
    host_temp_size_in_bytes: int | None = None
    peak_memory_in_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class CompilerOutput:
    """A compiled program as its compiler describes it."""

    module: Module
    memory: MemoryAnalysis
