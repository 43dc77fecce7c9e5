"""What a compiler made of a program."""

from __future__ import annotations

import dataclasses

from xfunc.hlo import Module


@dataclasses.dataclass(frozen=True)
class MemoryAnalysis:
    """The memory of a compiled program, in bytes; None where the compiler does not say.

    Attributes:
        argument_size_in_bytes: of the arguments.
        output_size_in_bytes: of the results, those that reuse an argument's memory included.
        temp_size_in_bytes: of what lives only while the program runs.
        alias_size_in_bytes: of the arguments whose memory results reuse.
        host_temp_size_in_bytes: of what the program keeps in the memory of the host.
        peak_memory_in_bytes: of all that is allocated while the program runs.
    """

    argument_size_in_bytes: int | None = None
    output_size_in_bytes: int | None = None
    temp_size_in_bytes: int | None = None
    alias_size_in_bytes: int | None = None
    host_temp_size_in_bytes: int | None = None
    peak_memory_in_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Optimised:
    """A compiled program as its compiler describes it."""

    module: Module
    memory: MemoryAnalysis
