"""The first run of a program that communicates between processes, which they begin together.

NOTE [meeting]: on the CPU, XLA connects the devices of a group when a program first uses it, and
gives up after 30 seconds. A process may be later than that: it may be reading data. So before the
first run they wait for each other through torch's process group, for up to its 30 minutes. They
also find out there if they are about to run different programs, which would never end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xfunc.backends import processes
from xfunc.backends.pjrt.client import jax, platform
from xfunc.hlo import Module
from xfunc.hlo.spmd.collectives import exchanges


def is_needed() -> bool:
    """Whether programs that communicate have to begin together."""
    return platform() == "cpu" and jax().process_count() > 1


def together(name: str, run: Callable[..., Any], compiled: Any) -> Callable[..., Any]:
    """A program of JAX that the processes begin together the first time, if they have to.

    Args:
        name: of the user's function, for messages.
        run: calls the program.
        compiled: the program.
    """
    if not is_needed() or not _communicates(compiled):
        return run
    begun = False

    def call(*arrays: Any) -> Any:
        nonlocal begun
        if not begun:
            processes.agreed(name, lambda: (None, None))
            begun = True
        return run(*arrays)

    return call


def _communicates(compiled: Any) -> bool:
    """Whether a program exchanges data between processes."""
    (module,) = compiled.runtime_executable().hlo_modules()
    read = Module.from_bytes(module.as_serialized_hlo_module_proto())
    owners = [d.process_index for d in jax().devices()]
    return any(len({owners[k] for k in group}) > 1 for group in exchanges(read, len(owners)))
