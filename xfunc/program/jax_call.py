"""`call_jax`: a function written in JAX, such as a Pallas kernel, as one operation.

JAX lowers the function to HLO, which becomes part of the program that is being traced.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from xfunc.backends import active
from xfunc.backends.pjrt import client
from xfunc.core.avals import Aval, aval_of
from xfunc.errors import CompileError, UnsupportedOpError, fail, format_error
from xfunc.hlo import Module
from xfunc.hlo.edit import renumber
from xfunc.program.bind import bind
from xfunc.program.primitive import Dims, Primitive, ReverseRule, Tensor
from xfunc.trace import tracing
from xfunc.trace.lowering import HloProgram

_WIDE = (torch.int64, torch.uint64, torch.float64, torch.complex128)


def call_jax(
    fun: str | Callable[..., Any],
    *args: Tensor | None,
    platform: str | None = None,
    **static: bool | int | float | str,
) -> tuple[Tensor, ...]:
    """The results of a JAX function, as part of the function that is being traced.

    It has no derivative and no batch rule: give it a derivative with `custom_vjp`. On a mesh, call
    it in a `shard_map`. JAX lowers it once for each kind of arguments.

    Args:
        fun: takes arrays and returns arrays; or its name, ``"module:function"``, which is imported
            at the call.
        args: its arguments by position; None is passed on.
        platform: the target, ``"tpu"``, ``"cuda"`` or ``"cpu"``; None: the devices that run
            programs now. A Pallas kernel for TPUs can be lowered for the CPU only if it is
            interpreted.
        static: its arguments by keyword.

    Returns:
        Its results, flat. As usual in JAX, numbers that it makes have 32 bits, unless an argument
        has 64.

    Raises:
        CompileError: JAX does not find or does not lower the function.
        UnsupportedOpError: the call is not in a traced function, or is differentiated or batched.
    """
    name = fun if isinstance(fun, str) else f"{fun.__module__}:{fun.__qualname__}"
    if tracing.current() is None:
        fail(
            UnsupportedOpError,
            f"{name} is called outside a traced function",
            "call it in a function that is given to xf.jit.",
        )
    avals = tuple(None if a is None else aval_of(a) for a in args)
    platform = platform or _platform()
    lowering = _lowered(fun, name, avals, platform, tuple(sorted(static.items())))
    return tuple(bind(JaxCall(lowering), [a for a in args if a is not None]))


_RULE = "give it a rule with xf.custom_vjp, which serves for the first derivative in reverse mode."


@dataclasses.dataclass(frozen=True)
class JaxCall(Primitive):
    """The primitive: a program that was made elsewhere; see `Primitive`."""

    lowering: HloProgram

    @property
    def outputs(self) -> tuple[Aval, ...]:
        return self.lowering.outputs

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        return self.lowering.apply(args)

    def reverse_rule(self, wrt: tuple[bool, ...]) -> ReverseRule:
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


def _platform() -> str:
    found = active.runtime().platform()
    return "cuda" if found == "gpu" else found


@functools.lru_cache(1024)
def _lowered(
    fun: str | Callable[..., Any],
    name: str,
    avals: tuple[Aval | None, ...],
    platform: str,
    static: tuple[tuple[str, object], ...],
) -> HloProgram:
    jax = _library()
    given = tuple(a for a in avals if a is not None)
    structs = [
        None if a is None else jax.ShapeDtypeStruct(a.shape, str(a.dtype)[len("torch.") :])
        for a in avals
    ]

    def call(*xs: object) -> list[Any]:
        return jax.tree.leaves(target(*xs, **dict(static)))

    try:
        with client.x64()(any(a.dtype in _WIDE for a in given)):
            target = _imported(fun) if isinstance(fun, str) else fun
            jitted = jax.jit(call, keep_unused=True)
            if platform == "tpu":
                # Exported first: only then are Pallas kernels in a form that older libtpus read.
                export = importlib.import_module("jax.export").export
                jitted = jax.jit(export(jitted, platforms=[platform])(*structs).call)
            lowered = jitted.trace(*structs).lower(lowering_platforms=(platform,))
            hlo = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        text = f"JAX could not lower {name} for the platform {platform!r}; it said: {said}"
        raise CompileError(format_error(text, "fix the function or its arguments.")) from error
    found = [Aval(tuple(x.shape), getattr(torch, str(x.dtype))) for x in lowered.out_info]
    return HloProgram.of(name, _as_ours(hlo), given, found)


def _library() -> Any:
    """JAX, which must not start the TPU if torch_xla holds it."""
    if active.runtime().name == active.NAMES[0] and not client.has_started():
        client.library().config.update("jax_platforms", "cpu")
    return client.jax()


def _imported(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _as_ours(hlo: bytes) -> Module:
    """JAX's module, with the ids that every XLA reads, and without its table of stack frames."""
    module = Module.from_bytes(hlo)
    renumber(module.proto)
    for computation in module.proto.computations:
        for i in computation.instructions:
            i.metadata.DiscardUnknownFields()
    return module
