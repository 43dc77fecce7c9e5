"""Python functions that a program calls while it runs.

On the CPU, that is; on accelerators JAX brings their arguments: `xfunc.backends.pjrt.callbacks`.

A function is registered under a name, which an instruction of a program refers to. Its arguments
are arrays in XLA's own memory: it reads its operands, writes its results, and keeps neither.

NOTE [host calls and the interpreter's lock]: the function needs the interpreter's lock (the GIL),
and runs in a thread of XLA. torch_xla 2.9 holds that lock while it launches a program, and the
launch waits until the previous program has been launched completely: a deadlock. So a program that
calls functions must end before anything else is launched (`Executable`), and launches happen under
`xfunc.backends.lock.lock`, or under `launches` if that is shared. At exit nothing may still be
running: see `stop_at_exit`.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from xfunc.backends import ffi
from xfunc.backends.active import runtime
from xfunc.backends.lock import launches, lock
from xfunc.core.locations import user_location
from xfunc.errors import UnsupportedOpError, fail
from xfunc.graph import build
from xfunc.graph.build import CustomCall
from xfunc.graph.node import ArrayType, Node
from xfunc.hlo import Shape
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.attributes import acting
from xfunc.hlo.edit import constant, entry_of, fill, fresh_ids, instruction
from xfunc.hlo.spmd.annotations import SHARDING, gathered, is_region, run_on_one_device

TARGET = "xfunc_host_call"
"""The custom-call target of an instruction that calls a function."""
failures: list[Exception] = []
"""Exceptions from functions that programs called; the run that called them takes them from here."""
DTYPES = {
    1: torch.bool,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.uint8,
    7: torch.uint16,
    8: torch.uint32,
    9: torch.uint64,
    10: torch.float16,
    11: torch.float32,
    12: torch.float64,
    15: torch.complex64,
    16: torch.bfloat16,
    18: torch.complex128,
    19: torch.float8_e5m2,
    20: torch.float8_e4m3fn,
}
"""The dtypes of arguments and results, by XLA's numbers."""


class Memory(NamedTuple):
    """An array in XLA's memory, row by row."""

    address: int
    dtype: torch.dtype
    dims: list[int]

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.dims) * self.dtype.itemsize

    def tensor(self) -> torch.Tensor:
        """A tensor that shares this memory."""
        if not self.size:
            return torch.empty(self.dims, dtype=self.dtype)
        memory = (ctypes.c_char * self.size).from_address(self.address)
        return torch.frombuffer(memory, dtype=self.dtype).view(self.dims)


Function = Callable[[list[torch.Tensor], list[torch.Tensor]], None]
"""Takes operands and results, and writes the results."""
Direct = Callable[[list[Memory], list[Memory]], None]
"""The same for `Memory`."""
_functions: dict[str, Direct] = {}


def register(name: str, function: Function) -> None:
    """Let programs call a function by name; the last one registered under a name is called.

    Args:
        name: without quotes.
        function: called in a thread of XLA, in several at once if there are several devices.
            If it raises, so does the call of the program.
    """

    def direct(operands: list[Memory], results: list[Memory]) -> None:
        with lock.refused():
            function([m.tensor() for m in operands], [m.tensor() for m in results])

    _functions[name] = direct


def register_direct(name: str, function: Direct) -> None:
    """`register` a function that takes addresses and calls neither user code nor xfunc."""
    _functions[name] = function


def host_call(
    *operands: Node,
    name: str,
    result: ArrayType | Sequence[ArrayType],
    side_effect: bool = False,
) -> Node | list[Node]:
    """The result, or the results, of a registered function.

    Args:
        operands: arrays.
        name: the name that the function is registered under when the program runs.
        result: the type of its result, or of each of several.
        side_effect: call it even if nothing uses its result.
    """
    how = CustomCall(TARGET, _config(name), version=ffi.API_VERSION)
    more = acting() if side_effect else b""
    if isinstance(result, ArrayType):
        return Node("custom-call", result, operands, how, more=more)
    return build.several("custom-call", result, operands, how, more=more)


def _config(name: str) -> str:
    return f'{{name = "{name}"}}'


def become_host_call(proto: pb.HloInstructionProto, name: str) -> None:
    """Turn an instruction of any kind into a call of a registered function with its operands."""
    proto.opcode = "custom-call"
    proto.custom_call_target = TARGET
    proto.custom_call_api_version = ffi.API_VERSION
    proto.backend_config = _config(name).encode()


def call_once(proto: pb.HloModuleProto, *, every: bool = False) -> None:
    """Let only the first of several devices make the calls that have effects, in place.

    Each device makes those in a `shard_map`.

    The partitioner refuses calls without a device. Their arguments are gathered explicitly, since
    it warns when it gathers them itself.

    Args:
        proto: the module.
        every: whether the calls without effects are made by the first device too.
    """
    chosen_of = [
        (c, [i for i in c.instructions if _is_call(i) and (every or _has_effects(i))])
        for c in proto.computations
    ]
    if not any(calls for _, calls in chosen_of):
        return
    ids, manual = fresh_ids(proto), _in_regions(proto)
    for c, calls in chosen_of:
        if not calls:
            continue
        if c.id in manual:
            for i in calls:
                i.sharding.type = pb.OpSharding.MANUAL
            continue
        made: list[pb.HloInstructionProto] = []
        known = {i.id: i for i in c.instructions}
        chosen = {i.id for i in calls}
        for i in c.instructions:
            if i.id in chosen:
                run_on_one_device(i)
                whole = [gathered(known[k], next(ids)) for k in i.operand_ids]
                i.operand_ids[:] = [w.id for w in whole]
                made += whole
            made.append(i)
        fill(c, made)


def _is_call(i: pb.HloInstructionProto) -> bool:
    return i.custom_call_target == TARGET


def _has_effects(i: pb.HloInstructionProto) -> bool:
    return _is_call(i) and i.custom_call_has_side_effect


def _in_regions(proto: pb.HloModuleProto) -> set[int]:
    """The computations that run inside a manual region (`shard_map`)."""
    result = set[int]()
    for c in reversed(proto.computations):  # callers before callees
        if c.id in result or is_region(c):
            result.add(c.id)
            result.update(k for i in c.instructions for k in i.called_computation_ids)
    return result


def has_host_calls(proto: pb.HloModuleProto) -> bool:
    """Whether a module calls Python functions."""
    return bool(_called(proto))


def _called(proto: pb.HloModuleProto) -> list[str]:
    """The names of the functions that a module calls."""
    every = (i for c in proto.computations for i in c.instructions)
    return [i.backend_config.decode().split('"')[1] for i in every if _is_call(i)]


def refuse_host_calls(proto: pb.HloModuleProto, name: str, where: str) -> None:
    """Refuse a program that calls functions of this process, where they are out of reach.

    Args:
        proto: the module.
        name: of the program.
        where: where that is not possible, as the end of the message.

    Raises:
        UnsupportedOpError: it calls one.
    """
    called = _called(proto)
    if not called:
        return
    kind, _, routine = called[0].partition(" ")
    if kind == "lapack":
        problem = f"{name} needs LAPACK ({routine})"
        hint = "use a factorisation that XLA has: eigh, svd, lu, qr or cholesky."
    else:
        problem = f"{name} calls a function of Python while it runs"
        hint = "compute it by torch operations, or before or after the program."
    at = user_location()
    fail(UnsupportedOpError, f"{problem}, which is not possible {where}", hint, at=at)


# NOTE [a call that fails]: on one device, the program ends with an error. On several, it runs to
# completion and `Executable` raises afterwards: otherwise the other devices would wait in their
# next collective for the one that failed, and XLA would abort the process.


@ffi.HANDLER
def handler(pointer: ctypes._Pointer[ffi.Frame]) -> int:
    """The function that XLA calls. No exception may escape from it."""
    frame = pointer.contents
    try:
        if not ffi.asks_for_metadata(frame):
            _call(frame)
        return 0
    except BaseException as error:
        return ffi.error(frame, repr(error)) if ends_program(error) else 0


def ends_program(error: BaseException) -> bool:
    """Record the error of a call, for the run to raise; returns whether the program must end."""
    known = isinstance(error, Exception)
    failures.append(error if known else RuntimeError(f"a host call ended in {error!r}"))
    return runtime().device_count() == 1


def _call(frame: ffi.Frame) -> None:
    name = frame.attributes.items[0].contents
    operands, results = (
        [_memory(b.items[i].contents) for i in range(b.count)]
        for b in (frame.operands, frame.results)
    )
    call(ctypes.string_at(name.data, name.size).decode(), operands, results)


def call(name: str, operands: list[Memory], results: list[Memory]) -> None:
    """Call a registered function; if it raises, its results are zero."""
    try:
        _functions[name](operands, results)
    except BaseException:
        for r in results:
            r.tensor().zero_()  # See NOTE [a call that fails].
        raise


def _memory(buffer: ffi.Buffer) -> Memory:
    return Memory(buffer.data or 0, DTYPES[buffer.dtype], buffer.dims[: buffer.rank])


def stop_at_exit() -> None:
    """Keep other threads from running anything as soon as the interpreter exits."""
    atexit.register(_stop)


def _stop() -> None:
    lock.__enter__()
    lock.is_shared = False
    launches.acquire()
    if threading.active_count() > 1:
        # A thread that just left the lock may be in C++, freeing results. Python 3.11 to 3.13 end a
        # thread that comes back from there to an interpreter that is gone, and C++ ends the
        # process.
        time.sleep(0.1)


def add_end(proto: pb.HloModuleProto, count: int) -> None:
    """Add an output to a module, in place; once each of `count` devices has its part, all have
    ended.
    """
    entry = entry_of(proto)
    ids = fresh_ids(proto)
    end = constant(True, next(ids), torch.bool)
    made = [end]
    if count > 1:
        shape = Shape(torch.bool, (count,)).proto
        spread = instruction("broadcast", next(ids), shape, [end.id])
        end = instruction("custom-call", next(ids), shape, [spread.id])
        made += [spread, end]
        end.custom_call_target, end.custom_call_api_version = SHARDING, 1
        end.sharding.type = pb.OpSharding.OTHER
        end.sharding.tile_assignment_dimensions.append(count)
        end.sharding.tile_assignment_devices.extend(range(count))
    root = next(i for i in entry.instructions if i.id == entry.root_id)
    root.operand_ids.append(end.id)
    shapes = root.shape, entry.program_shape.result, proto.host_program_shape.result
    for shape in shapes:
        shape.tuple_shapes.add().CopyFrom(end.shape)
    others = (i for i in entry.instructions if i.id != root.id)
    fill(entry, [*others, *made, root])  # Operands come first.
