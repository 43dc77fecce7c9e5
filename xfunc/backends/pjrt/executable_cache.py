"""Compiled programs on disk, found by their HLO.

JAX's own cache is asked for what JAX has lowered, which takes longer than to load what it finds. So
a program is stored under a digest of its HLO and of everything else that it was compiled for, and
the process that finds it there need not pass it through JAX at all. Programs of several processes
are left to JAX's cache, which knows which of them writes.

What the compiler said of its memory is stored with it: XLA knows no more of a program that it has
loaded than the sizes of its arguments and results.

A program that comes from JAX's cache must not be stored: what XLA (jaxlib 0.7.1) makes of it loads,
but does not run. So only one of the two caches is in use: see `client.folder_of_programs`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pickle
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xfunc.backends.pjrt import client
from xfunc.core import archive
from xfunc.hlo import Module
from xfunc.hlo import hlo_pb2 as pb

if TYPE_CHECKING:
    import jax

_SUM = hashlib.sha256().digest_size
_WHAT_LOADING_RAISES = (
    *(OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError),
    *(EOFError, ImportError, OverflowError, pickle.UnpicklingError),
)


def place_of(module: Module, *parts: object) -> Path | None:
    """Where the program of a module is stored; None if programs are not.

    The user's scopes and lines do not count: a comment above a function changes all lines below.

    Args:
        module: its HLO, as it is compiled.
        parts: what else the program depends on, but for the machine and what is installed.
    """
    folder = client.folder_of_programs()
    if folder is None:
        return None
    found = hashlib.sha256(_without_lines(module).to_bytes())
    found.update(repr((parts, os.environ.get("XLA_FLAGS"), _machine())).encode())
    return folder / f"{found.hexdigest()}.compiled"


def load(
    place: Path | None,
    arguments: Sequence[jax.ShapeDtypeStruct],
    outputs: Sequence[jax.ShapeDtypeStruct],
) -> tuple[jax.stages.Compiled, dict[str, int | None]] | None:
    """The program that is stored there and its sizes, or None; a damaged file counts as none."""
    if place is None:
        return None
    from jax.experimental import serialize_executable

    structure = client.jax().tree.structure
    try:
        data = place.read_bytes()
        if data[:_SUM] != _sum(place, data[_SUM:]):
            return None
        head, _, program = data[_SUM:].partition(b"\n")
        sizes = json.loads(head)  # First: an older file has none, and its program does not load.
        trees = structure((tuple(arguments), {})), structure(list(outputs))
        return serialize_executable.deserialize_and_load(program, *trees), sizes
    except _WHAT_LOADING_RAISES:
        return None


def keep(
    place: Path | None, compiled: jax.stages.Compiled, sizes: Mapping[str, int | None]
) -> None:
    """Store a program and its sizes there, if JAX can."""
    if place is None:
        return
    from jax.experimental import serialize_executable

    try:
        data, _, _ = serialize_executable.serialize(compiled)
    except (RuntimeError, ValueError, NotImplementedError):
        return
    data = json.dumps(sizes).encode() + b"\n" + data
    archive.keep(place, _sum(place, data) + data, "compiled programs")


def _sum(place: Path, data: bytes) -> bytes:
    """A checksum, under which the program of one file is not taken for that of another."""
    return hashlib.sha256(place.stem.encode() + data).digest()


def _without_lines(module: Module) -> Module:
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    for computation in proto.computations:
        for i in computation.instructions:
            i.ClearField("metadata")
    return Module(proto)


@functools.cache
def _machine() -> tuple[Any, ...]:
    """What machine code is made for, and by what."""
    jax = client.jax()
    backend = jax.devices()[0].client
    versions = jax.__version__, jax.lib.__version__, backend.platform_version
    devices = [(d.id, d.device_kind) for d in jax.devices()]
    return (*versions, backend.platform, devices, platform.machine(), _cpu())


def _cpu() -> str:
    """The instructions that the CPU knows, or else the name of the machine that has it."""
    with contextlib.suppress(OSError, StopIteration), open(_CPUS, encoding="utf-8") as file:
        return next(line for line in file if line.startswith(("flags", "Features")))
    return platform.node()


_CPUS = "/proc/cpuinfo"  # of Linux; "Features" is what it says of ARM's
