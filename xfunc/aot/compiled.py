"""A function compiled for an absent TPU."""

from __future__ import annotations

import numbers
from typing import NoReturn

from xfunc import config
from xfunc.aot import compilers
from xfunc.aot.buffers import Buffer
from xfunc.aot.client import result_of
from xfunc.aot.request import request_for
from xfunc.aot.result import Result
from xfunc.aot.topology import Topology, topology_of, unknown
from xfunc.backends.analysis import MemoryAnalysis
from xfunc.backends.errors import compile_error, out_of_memory
from xfunc.backends.host_calls import refuse_host_calls
from xfunc.backends.target_passes import traced_for
from xfunc.core.sizes import size
from xfunc.errors import (
    CompileError,
    OutOfMemoryError,
    ShardingError,
    fail,
    format_error,
    short_repr,
)
from xfunc.hlo.estimate.cost import CHIPS
from xfunc.stages.compiled import Device, register_target
from xfunc.stages.stages import Lowered


class _Ahead:
    """libtpu's program; see `xfunc.stages.compiled.CompiledProgram`."""

    def __init__(self, name: str, topology: Topology, result: Result, compiler: str):
        self.topology, self.result, self._name = topology, result, name
        self.compiler = compiler

    def text(self) -> str | None:
        return self.result.text

    def costs(self) -> dict[str, float] | None:
        return self.result.report["cost"] or None

    def memory(self) -> MemoryAnalysis:
        return self.result.memory

    def largest_buffers(self, n: int) -> list[Buffer]:
        return self.result.largest_buffers(n)

    def serialize(self) -> bytes:
        return self.result.executable

    def call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> NoReturn:
        fail(
            CompileError,
            f"{self._name} was compiled for {self.topology.name}, and cannot run here",
            "call the jitted function itself, which compiles for the running device.",
        )


def compile_ahead(
    lowered: Lowered, target: str, options: dict[str, object], timeout: float | None
) -> _Ahead:
    """See `Lowered.compile`."""
    topology = topology_of(target)
    _check_options(options)
    if timeout is not None and not (isinstance(timeout, numbers.Real) and timeout > 0):
        fail(
            ValueError, f"compile was given timeout={short_repr(timeout)}", "give seconds, above 0."
        )
    parts = lowered.traced.parts
    lowering, entry = parts.lowering, parts.entry
    name = entry.program.name
    if not lowering.outputs:
        fail(
            CompileError,
            f"{name} returns no tensor, so there is nothing to compile",
            "return what it computes.",
        )
    module = lowered.module
    refuse_host_calls(module.proto, name, f"on {topology.name}")
    n = traced_for(module.proto, topology.devices)
    if n != topology.devices:
        fail(
            ShardingError,
            f"{name} was traced for a mesh of {n} devices, but {topology.name} has "
            f"{topology.devices}",
            "make the mesh as large as the topology, or name another topology.",
        )
    compiler = compilers.chosen()
    labels = parts.staged.labels(lowered.traced.in_tree)
    shardy = config.use_shardy_partitioner
    request = request_for(module, lowering.inputs, labels, entry.donated, topology, options, shardy)
    result = result_of(request, name, compiler, timeout)
    if "unknown_topology" in result.report:
        raise unknown(target, f"{compiler} says: {result.report['unknown_topology']}")
    if "refusal" in result.report:
        raise _refusal(name, result)
    return _Ahead(parts.staged.name, topology, result, str(compiler))


_OURS = ("xla_dump_to", "xla_dump_hlo_as_proto", "xla_dump_hlo_as_text")


def _check_options(options: dict[str, object]) -> None:
    for name in options:
        if name in _OURS:
            fail(
                ValueError,
                f"the compiler option {name} is set by xfunc itself",
                "leave it out; as_text() and largest_buffers() show what libtpu made.",
            )


def _refusal(name: str, result: Result) -> CompileError:
    """libtpu's refusal to compile a program, as an error."""
    said, _, _ = result.report["refusal"].partition("\n\n")
    if "No such compile option" in said or "Failed to parse" in said:
        hint = "leave the compiler option out, or write it as libtpu knows it."
        return CompileError(format_error(f"libtpu could not compile {name}: {said}", hint))
    error = compile_error(name, said)
    if not isinstance(error, OutOfMemoryError):
        return error
    required, limit = error.required_bytes, error.limit_bytes
    problem = f"{name} does not fit in the memory of a chip: {said}"
    if required is not None and limit is not None:
        problem = (
            f"{name} does not fit in the memory of a {result.request.topology.kind} chip, which is "
            f"{size(limit)}: it takes {size(required)}, results not counted"
        )
    largest = [f"\n    {buffer}" for buffer in result.largest_buffers(5)]
    if largest:
        problem += "\n  The largest buffers of a chip:" + "".join(largest)
    return out_of_memory(problem, required, limit)


def _device(target: str) -> Device:
    topology = topology_of(target)
    chip = topology.kind if topology.kind in CHIPS else "v4"  # the oldest with a cost model
    return Device(topology.name, chip, topology.memory)


register_target("tpu", compile_ahead, _device)
