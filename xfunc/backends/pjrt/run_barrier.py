"""The runs of programs that communicate between processes, which must run the same.

NOTE [meeting]: on the CPU, XLA connects the devices of a group when a program first uses it, and
gives up after 30 seconds. A process may be later than that: it may be reading data. So before the
first run they wait for each other through torch's process group, for up to its 30 minutes. They
also find out there if they are about to run different programs, or have run different ones before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NoReturn

from xfunc.backends import calls, processes
from xfunc.backends.pjrt.client import jax, platform
from xfunc.errors import fail
from xfunc.hlo import Module
from xfunc.hlo.fingerprint import fingerprint
from xfunc.hlo.spmd.collectives import exchanges


def is_needed() -> bool:
    """Whether programs that communicate have to begin together."""
    return platform() == "cpu" and jax().process_count() > 1


def together(
    name: str, run: Callable[..., Any], compiled: Any, module: Module | None, described: object
) -> Callable[..., Any]:
    """A program of JAX with counted runs, if it communicates between processes.

    The processes begin it together the first time, if they have to.

    Args:
        name: of the user's function, for messages.
        run: calls the program.
        compiled: the program.
        module: its source, if that is not described.
        described: its further sources, as a text that is equal in all processes.
    """
    if jax().process_count() == 1 or not _communicates(compiled):
        return run
    text = f"{module and fingerprint(module)} {described} {name}"
    program = hashlib.sha256(text.encode()).hexdigest()
    begun = not is_needed()

    def call(*arrays: Any) -> Any:
        nonlocal begun
        if begun:
            calls.own.add(name, program)
        else:
            _meet(name, program)
            begun = True
        return run(*arrays)

    return call


def _meet(name: str, program: str) -> None:
    """Begin a program together with the other processes."""
    before = calls.own.add(name, program, meets=True)
    try:
        processes.agreed(name, lambda: (calls.own.last, None), differ=_differ)
    except BaseException:
        calls.own.fail(before)
        raise
    calls.own.begin()


def _differ(name: str, own: calls.Call, its: calls.Call, k: int) -> NoReturn:
    if own.number != its.number:
        text = (
            f"{name} is called after {own.number - 1} runs of programs that communicate in this "
            f"process, and after {its.number - 1} in process {k}"
        )
    elif own.program != its.program:
        text = f"{name} is another program in this process than in process {k}"
    else:
        text = f"other programs were run in this process than in process {k}, before {name}"
    fail(RuntimeError, text, f"{calls.HINT}.")


def _communicates(compiled: Any) -> bool:
    """Whether a program exchanges data between processes."""
    (module,) = compiled.runtime_executable().hlo_modules()
    read = Module.from_bytes(module.as_serialized_hlo_module_proto())
    owners = [d.process_index for d in jax().devices()]
    return any(len({owners[k] for k in group}) > 1 for group in exchanges(read, len(owners)))
