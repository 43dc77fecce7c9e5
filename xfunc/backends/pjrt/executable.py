"""A program that JAX compiles and runs.

NOTE [the way into JAX]: our program replaces a trivial one that ``jax.export`` made;
``jax.jit`` of the exported function compiles and calls it. JAX's own interface to its compiler
changes with each release; this way has been the same since 0.7.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from xfunc.backends import processes
from xfunc.backends.analysis import CompilerOutput, MemoryAnalysis
from xfunc.backends.donated import check_given_once, fail_given_twice
from xfunc.backends.errors import compile_error, run_error
from xfunc.backends.host_calls import failures
from xfunc.backends.lock import launches
from xfunc.backends.memory import check_results, check_sorts
from xfunc.backends.memory_maps import check_maps
from xfunc.backends.pjrt import callbacks, client, executable_cache, printer, run_barrier
from xfunc.backends.pjrt.array import Array, array_of
from xfunc.backends.pjrt.donated import Results
from xfunc.backends.pjrt.shardings import partitioner, sharding, sharding_on
from xfunc.backends.placement import Placement
from xfunc.core.avals import Aval
from xfunc.errors import XfuncError
from xfunc.hlo import Module, Shape
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.spmd.common_mesh import CommonMesh
from xfunc.torchlib.global_flags import while_loading

if TYPE_CHECKING:
    import jax
    from jax import export


_WITHIN = re.compile(r"^jit\([\w.-]*\)/call_exported/?", re.ASCII)
"""JAX's prefix of the names of operations; see NOTE [the way into JAX]."""


_CLASHES = ("previously donated", "donate the same buffer", "donate a buffer which is also used")
"""XLA's words for a buffer that a program is to take over, and is also given elsewhere."""


class Executable:
    """See `xfunc.backends.protocol.Executable`.

    Args:
        name: of the program.
        module: its HLO.
        inputs: the flat input that each parameter takes.
        avals: of the parameters, of which there is one if `inputs` are none on several devices.
        donated: parameters with buffers that the program may reuse.
        calls_host: whether it calls Python functions; then its last output is not a result.
        upload: makes an `Array` of any other tensor.
        placements: the placement of each parameter; (): there is one device.
        options: of the compiler, by name.
        mesh: of the module's shardings, if they are written for Shardy.
    """

    rejects_aliased_donation = True

    def __init__(
        self,
        name: str,
        module: Module,
        inputs: Sequence[int],
        avals: Sequence[Aval],
        donated: Sequence[int],
        calls_host: bool,
        upload: Callable[[torch.Tensor], Array],
        placements: Sequence[Placement | None] = (),
        options: Mapping[str, object] | None = None,
        mesh: CommonMesh | None = None,
    ):
        self.inputs = tuple(inputs)
        self._name, self._upload = name, upload
        unused = [
            upload(torch.zeros((), dtype=a.dtype, device="cpu")) for a in avals[len(inputs) :]
        ]
        self._unused = [array_of(x) for x in unused]  # of a program that takes nothing
        outputs = [Aval(tuple(s.dims), s.dtype) for s in module.entry.root.shape.elements]
        results = outputs[: len(outputs) - calls_host]
        if client.platform() == "cpu":
            check_results(name, results)
            if not placements:
                check_sorts(name, _sorts(module))
            check_maps(name, "call xf.clear_caches() now and then")
        made = Results([(torch.Size(a.shape), a.dtype) for a in results])
        self._tensors, self.mark_donated = made.tensors, made.mark_donated
        where = [sharding(p) if mesh is None else sharding_on(mesh, p) for p in placements]
        # On the only device too: if some arrays lay nowhere in particular, as without this the
        # results of some releases do and of others do not, JAX would compile for both kinds.
        only = {} if placements else {"out_shardings": sharding(None)}
        where = where or [sharding(None)] * len(avals)
        shapes = [_shaped(*x) for x in zip(avals, where, strict=True)]
        # Only of several devices: else `run` would compile again, with JAX's usual partitioner.
        around = partitioner(shardy=mesh is not None) if placements else contextlib.nullcontext()
        self._x64 = client.x64()
        with while_loading(), around, client.flags_of_start, self._x64(True):
            returned = [_shaped(a) for a in outputs]
            of_jax = calls_host and callbacks.through_jax()
            place = None  # JAX does not serialize its callbacks.
            if not of_jax:
                place = executable_cache.place_of(
                    module, where, tuple(donated), options, mesh is not None
                )
            loaded = executable_cache.load(place, shapes, returned)
            run: Any = loaded and loaded[0]
            found: Any = run
            self._sizes = loaded and loaded[1]
            try:
                if found is None:
                    exported = _exported(name, module, shapes, returned)
                    run = client.jax().jit(
                        _program(callbacks.calling(exported) if of_jax else exported.call, name),
                        donate_argnums=tuple(donated),
                        keep_unused=True,
                        compiler_options=dict(options or {}) or None,
                        **only,
                    )
                    found = run.lower(*shapes).compile()
                    _forget_lowered()
                    if place is not None:
                        self._sizes = _sizes(found)
                        executable_cache.keep(place, found, self._sizes)
            except Exception as error:  # of many classes, by cause
                raise compile_error(name, str(error)) from error
        self._compiled = found
        described = avals, placements, tuple(donated), options, mesh
        self._run = run_barrier.together(
            name, found if placements else run, found, module, described
        )
        # XLA finds an array that it is given twice when some of several devices run the program
        # already, and the next one to donate an array waits for ever.
        self._checked = frozenset(donated) if placements else frozenset[int]()
        # With JAX 0.7.1 programs of several processes hang on the CPU if one overtakes another.
        self._calls_host, self._waits = calls_host, calls_host or run_barrier.is_needed()
        self._is_alone = self._waits or bool(placements)  # See `launches`.

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Run on tensors, wherever they are."""
        if not self._x64.value:  # JAX would compute in 32 bits.
            with self._x64(True):
                return self(inputs)
        try:
            arrays = [x._jax_array for x in inputs] or self._unused
        except AttributeError:
            arrays = [array_of(x if type(x) is Array else self._upload(x)) for x in inputs]
        if self._checked:
            check_given_once(arrays, self._checked, self._name)
        if self._is_alone:
            with launches:
                return self._wait(arrays) if self._waits else self._launch(arrays)
        return self._launch(arrays)

    def _launch(self, arrays: Sequence[jax.Array]) -> list[torch.Tensor]:
        try:
            return self._tensors(self._run(*arrays))
        except (RuntimeError, ValueError) as error:
            raise self._named(error) from error

    def _named(self, error: Exception) -> XfuncError:
        if any(clash in str(error) for clash in _CLASHES):
            fail_given_twice(self._name)
        return run_error(self._name, str(error))

    def _wait(self, arrays: Sequence[jax.Array]) -> list[torch.Tensor]:
        if not self._calls_host:
            return self._tensors(self._run_to_end(arrays))
        # If a call fails in one process, all raise.
        found = processes.agreed(self._name, lambda: (None, self._run_to_end(arrays)))
        return self._tensors(found[:-1])

    def _run_to_end(self, arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
        failures.clear()
        try:
            result = client.jax().block_until_ready(self._run(*arrays))
        except (RuntimeError, ValueError) as error:
            if failures:
                raise failures[0] from None
            raise self._named(error) from error
        if self._calls_host and failures:  # on several devices: see NOTE [a call that fails]
            raise failures[0]
        return result

    def optimised(self) -> CompilerOutput:
        """XLA's analysis of the program."""
        (module,) = self._compiled.runtime_executable().hlo_modules()
        sizes = self._sizes or _sizes(self._compiled)
        read = Module.from_bytes(module.as_serialized_hlo_module_proto())
        for computation in read.proto.computations:
            for i in computation.instructions:
                i.metadata.op_name = _WITHIN.sub("", i.metadata.op_name)
        memory = MemoryAnalysis(**sizes)
        return CompilerOutput(read, dataclasses.replace(memory, peak_memory_in_bytes=_peak(memory)))


def _peak(memory: MemoryAnalysis) -> int | None:
    """The bytes allocated at once; newer jaxlib omits temporaries from its figure for a CPU."""
    used = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes
    said, shared = memory.peak_memory_in_bytes, memory.alias_size_in_bytes
    if said is None or shared is None or None in used:
        return said
    return max(said, sum(n for n in used if n is not None) - shared)


def _sizes(compiled: jax.stages.Compiled) -> dict[str, int | None]:
    """The memory that a compiled program takes, by the fields of `MemoryAnalysis`."""
    found = compiled.memory_analysis()
    return {f.name: getattr(found, f.name, None) for f in dataclasses.fields(MemoryAnalysis)}


def _sorts(module: Module) -> Iterator[int]:
    """The bytes of each sort of several arrays."""
    for computation in module.proto.computations:
        for i in computation.instructions:
            if i.opcode == "sort" and i.shape.element_type == pb.TUPLE:
                yield Shape.from_proto(i.shape).bytes


def _program(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function for JAX to compile: profiles show the program under its name."""

    def program(*arrays: Any) -> Any:
        return call(*arrays)

    # JAX does so where it names the module, but not where it names operations.
    program.__name__ = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)
    return program


def _shaped(aval: Aval, where: object = None) -> jax.ShapeDtypeStruct:
    dtype = client.numpy_dtype(aval.dtype)
    return client.jax().ShapeDtypeStruct(aval.shape, dtype, sharding=where)


def _forget_lowered() -> None:
    """Have JAX keep no program that is lowered longer than its function: JAX 0.12 does.

    Its cache of what was simplified refers to the programs themselves by weak references, and to
    the results, which are the same programs, by strong ones.
    """
    cache = _simplified()
    if cache is not None:
        cache.cache_clear()


@functools.cache
def _simplified() -> Any:
    from jax._src.interpreters import pxla

    return getattr(pxla, "_dce_jaxpr", None)


def _exported(
    name: str,
    module: Module,
    avals: Sequence[jax.ShapeDtypeStruct],
    outputs: Sequence[jax.ShapeDtypeStruct],
) -> export.Exported:
    """See NOTE [the way into JAX]."""
    jax = client.jax()
    program = printer.stablehlo_bytecode(module)
    arguments = tuple(avals)
    trivial = _trivial()
    # Releases from 2026 on have these, and read them.
    named = {"_in_named_shardings": len(avals), "_out_named_shardings": len(outputs)}
    return dataclasses.replace(
        trivial,
        **{field: (None,) * n for field, n in named.items() if hasattr(trivial, field)},
        fun_name=name,
        nr_devices=jax.device_count(),
        in_tree=jax.tree.structure((arguments, {})),
        in_avals=tuple(jax.core.ShapedArray(a.shape, a.dtype) for a in avals),
        in_shardings_hlo=(None,) * len(avals),
        out_tree=jax.tree.structure(list(outputs)),
        out_avals=tuple(jax.core.ShapedArray(a.shape, a.dtype) for a in outputs),
        out_shardings_hlo=(None,) * len(outputs),
        module_kept_var_idx=tuple(range(len(avals))),
        mlir_module_serialized=program,
    )


@functools.cache
def _trivial() -> export.Exported:
    jax = client.jax()
    from jax import export

    return export.export(jax.jit(lambda x: [x]))(jax.ShapeDtypeStruct((), bool))
