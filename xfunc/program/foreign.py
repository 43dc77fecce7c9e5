"""`call_jax`: a function written in JAX, such as a Pallas kernel, as one operation.

JAX lowers the function to HLO, which becomes part of the program that is being traced.

NOTE [JAX lowers in a process of its own]: on a host with TPUs, JAX claims the TPU as soon as it
lowers anything, even for another platform, but torch_xla already holds it. JAX without the TPU
refuses to lower kernels there, unless it finds no libtpu either. So it is started where none of
this matters, and what it does to its environment is lost with it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch

from xfunc.core import children
from xfunc.core.avals import Aval, aval_of, short
from xfunc.errors import CompileError, UnsupportedOpError, fail
from xfunc.hlo import Module
from xfunc.hlo.edit import renumber
from xfunc.program.bind import bind
from xfunc.program.primitive import Dims, Pair, Primitive, Tensor
from xfunc.trace import tracing
from xfunc.trace.lowering import Lowering


def call_jax(
    fun: str, *args: Tensor | None, platform: str, **static: bool | int | float | str
) -> tuple[Tensor, ...]:
    """The results of a JAX function, as part of the function that is being traced.

    It has no derivative and no batch rule: give it a derivative with `custom_vjp`. On a mesh, call
    it in a `shard_map`. JAX is started once for each kind of arguments; what it makes of them is
    kept as long as the process.

    Args:
        fun: ``"module:function"``. The function takes arrays and returns a tuple of arrays. It is
            named and not passed because its module is for JAX to import, not for this process.
        args: its arguments by position; None is passed on.
        platform: what it is lowered for, ``"tpu"``, ``"cuda"`` or ``"cpu"``. A Pallas kernel for
            TPUs can be lowered for the CPU only if it is interpreted.
        static: its arguments by keyword.

    Raises:
        ImportError: JAX is not installed.
        TypeError: an argument has a type of 64 bits, which JAX does not use.
        CompileError: JAX does not find or does not lower the function, or takes ten minutes.
        UnsupportedOpError: the call is not in a traced function, or is differentiated or batched.
    """
    if tracing.current() is None:
        fail(
            UnsupportedOpError,
            f"{fun} is called outside a traced function",
            "call it in a function that is given to xf.jit.",
        )
    avals = tuple(None if a is None else aval_of(a) for a in args)
    for i, aval in enumerate(avals):
        if aval is not None and aval.dtype in (torch.int64, torch.float64, torch.complex128):
            fail(
                TypeError,
                f"argument {i} of {fun} is {short(aval)}, but JAX does not use 64-bit types",
                "convert it, with x.to(torch.int32) or x.float().",
            )
    lowering = _lowered(fun, avals, platform, tuple(sorted(static.items())))
    return tuple(bind(Foreign(lowering), [a for a in args if a is not None]))


_RULE = "give it a rule with xf.custom_vjp, which serves for the first derivative in reverse mode."


@dataclasses.dataclass(frozen=True)
class Foreign(Primitive):
    """The primitive: a program that was made elsewhere; see `Primitive`."""

    lowering: Lowering

    @property
    def outputs(self) -> tuple[Aval, ...]:
        return self.lowering.outputs

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        return self.lowering.apply(args)

    def pair(self, wrt: tuple[bool, ...]) -> Pair:
        self._refuse("differentiated", _RULE)

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        self._refuse("differentiated", _RULE)

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        self._refuse("differentiated", _RULE)

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        self._refuse("batched", "use jax.vmap inside of it, or xf.map in place of xf.vmap.")

    def _refuse(self, how: str, hint: str) -> NoReturn:
        problem = f"{self.lowering.name} is a function of JAX, which cannot be {how} here"
        fail(UnsupportedOpError, problem, hint)


_SECONDS = 600.0  # Most functions take a few, most of them to import JAX.


@functools.lru_cache(1024)
def _lowered(
    fun: str, avals: tuple[Aval | None, ...], platform: str, static: tuple[tuple[str, object], ...]
) -> Lowering:
    if importlib.util.find_spec("jax") is None:
        fail(
            ImportError,
            f"{fun} is a function of JAX, which is not installed",
            "pip install jax.",
        )
    request = {
        "fun": fun,
        "args": [
            None if a is None else [a.shape, str(a.dtype).removeprefix("torch.")] for a in avals
        ],
        "platform": platform,
        "static": dict(static),
    }
    # See NOTE [JAX lowers in a process of its own].
    command = [sys.executable, "-P", Path(__file__).with_name("jax_worker.py")]
    try:
        done = children.run(command, json.dumps(request).encode(), _environment(), _SECONDS)
    except subprocess.TimeoutExpired:
        fail(
            CompileError,
            f"JAX did not lower {fun} for the platform {platform!r} within {_SECONDS:g} s, so its "
            "process was ended",
            "lower it with jax.jit(...).lower(...) in a Python of its own, to see what it or its "
            "module waits for.",
        )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"]
        fail(
            CompileError,
            f"JAX could not lower {fun} for the platform {platform!r}; it said: {said[-1]}",
            "fix the function or its arguments.",
        )
    outputs, hlo = done.stdout.split(b"\n", 1)
    given = tuple(a for a in avals if a is not None)
    found = tuple(Aval(tuple(s), getattr(torch, d)) for s, d in json.loads(outputs))
    return Lowering.of(fun, _as_ours(hlo), given, found)


def _as_ours(hlo: bytes) -> Module:
    """JAX's module with ids as any XLA reads them.

    It refers no more to JAX's table of stack frames, which is no part of programs.
    """
    module = Module.from_bytes(hlo)
    renumber(module.proto)
    for computation in module.proto.computations:
        for i in computation.instructions:
            i.metadata.DiscardUnknownFields()
    return module


def _environment() -> dict[str, str]:
    """That of JAX's process: it imports what can be imported here, and knows of no TPU."""
    unwanted = ("JAX_", "XLA_FLAGS", "TPU_LIBRARY_PATH")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    return kept | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
