"""Compiled programs on disk, found by their HLO.

JAX's own cache needs JAX's lowering, which takes longer than loading the program. So a program is
stored under a digest of its HLO and of its other dependencies, and a process that finds it there
bypasses JAX. Programs of several processes are left to JAX's cache, which has one of them write.

The compiler's memory figures are stored with it: of a loaded program, XLA only knows the sizes of
arguments and results.

A program from JAX's cache must not be stored: serialised again by XLA (jaxlib 0.7.1), it loads, but
does not run. So only one of the two caches is in use: see `client.folder_of_programs`.
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
    """The path of a module's program; None if programs are not stored.

    The user's scopes and lines do not count: a comment above a function changes all lines below.

    Args:
        module: its HLO, as it is compiled.
        parts: further dependencies of the program, apart from the machine and the installed
            versions.
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
    """The target of the machine code, and the compiler's version."""
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


_CPUS = "/proc/cpuinfo"  # of Linux; on ARM it is called "Features"
