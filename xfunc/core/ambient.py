"""The context of a call.

The mesh in use, the axes that a manual region is manual over, the named axes of vmaps, and a policy
in place of the user's.
"""

# pyright: reportPrivateUsage=false
# torch has no public names for the settings that `context_key` reads.
from __future__ import annotations

import contextlib
import dataclasses
import importlib
import threading
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import torch
from torch.autograd import forward_ad

from xfunc.core import device

if TYPE_CHECKING:  # These classes belong to other folders.
    from xfunc.backends.protocol import Executable
    from xfunc.hlo import Module
    from xfunc.program.named_axes import NamedAxis
    from xfunc.remat.policies import Policy
    from xfunc.sharding.manual import Region
    from xfunc.sharding.mesh import AbstractMesh


class TraceContext(NamedTuple):
    """The context of a call, as far as a trace depends on it."""

    mesh: AbstractMesh | None = None
    region: Region | None = None
    override: Override | None = None
    named_axes: tuple[NamedAxis, ...] = ()
    is_probe: bool = False
    asks_sizes: bool = False

    def __repr__(self) -> str:
        given = zip(self._fields, self, NOTHING, strict=True)
        return ", ".join(f"{n}={x!r}" for n, x, plain in given if x != plain) or "no context"


NOTHING = TraceContext()


Inspect: TypeAlias = Callable[
    [str, Callable[..., object], tuple[object, ...], dict[str, object], object], None
]


class _Thread(threading.local):
    ctx = NOTHING  # A default of the class is found much faster than a missing attribute.
    inspect: Inspect | None = None
    busy = 0  # how much else is going on: see `change_busy`
    is_plain = True  # All three are as they are here.


_thread = _Thread()


def key() -> TraceContext:
    """The context of calls in this thread; equal to `NOTHING` if there is none."""
    return _thread.ctx


def restore(ctx: TraceContext) -> TraceContext:
    """Restore a context that `key` returned; returns the previous one."""
    before = _thread.ctx
    _thread.ctx = ctx
    _note_whether_plain()
    return before


def is_busy() -> bool:
    """Whether a trace is open, or another activity noted by `change_busy`."""
    return _thread.busy != 0


def change_busy(by: int) -> None:
    """Note that something begins (1) or ends (-1) in this thread that calls have to respect."""
    _thread.busy += by
    _note_whether_plain()


def _note_whether_plain() -> None:
    _thread.is_plain = _thread.ctx == NOTHING and _thread.inspect is None and _thread.busy == 0


def inspector() -> Inspect | None:
    """The hook that sees the results of runs in this thread, or None."""
    return _thread.inspect


def inspect_results(inspect: Inspect | None) -> Inspect | None:
    """Call this hook after each run in this thread from now on; returns the previous hook.

    It receives the function's name, the function, its arguments and its result.
    """
    before = _thread.inspect
    _thread.inspect = inspect
    _note_whether_plain()
    return before


def mesh() -> AbstractMesh | None:
    """The mesh of the innermost `use_mesh` of this thread, or None."""
    return _thread.ctx.mesh


def set_mesh(new: AbstractMesh | None) -> AbstractMesh | None:
    """Use this mesh from now on; returns the previous one."""
    return restore(_thread.ctx._replace(mesh=new)).mesh


_known: list[AbstractMesh] = []
_MOST_KNOWN = 16


def known_meshes() -> list[AbstractMesh]:
    """The mesh in use, then the meshes of earlier shardings, latest first."""
    current = mesh()
    return [*([] if current is None else [current]), *_known]


def note_mesh(new: AbstractMesh) -> None:
    """Record that a sharding was made for this mesh."""
    if not _known or _known[0] is not new:
        _known[:] = [new, *(m for m in _known if m != new)][:_MOST_KNOWN]


def region() -> Region | None:
    """The innermost manual region (`shard_map`) that is being traced in this thread, or None."""
    return _thread.ctx.region


def set_region(new: Region | None) -> Region | None:
    """Enter this manual region; returns the previous one."""
    return restore(_thread.ctx._replace(region=new)).region


def named_axes() -> tuple[NamedAxis, ...]:
    """The named axes of the vmaps being traced in this thread, outermost first."""
    return _thread.ctx.named_axes


def set_named_axes(new: tuple[NamedAxis, ...]) -> None:
    """Use these named axes from now on."""
    restore(_thread.ctx._replace(named_axes=new))


@contextlib.contextmanager
def probing() -> Generator[None]:
    """Trace at sizes that no program will have: a mesh need not divide them."""
    before = restore(_thread.ctx._replace(is_probe=True)).is_probe
    try:
        yield
    finally:
        restore(_thread.ctx._replace(is_probe=before))


@contextlib.contextmanager
def asking_sizes() -> Generator[None]:
    """Trace for other sizes, too: see NOTE [questions about sizes] in
    `xfunc.core.size_questions`.
    """
    before = restore(_thread.ctx._replace(asks_sizes=True)).asks_sizes
    try:
        yield
    finally:
        restore(_thread.ctx._replace(asks_sizes=before))


def is_probe() -> bool:
    """Whether this thread traces only to probe sizes: the trace will not run."""
    return _thread.ctx.is_probe


Recompiled: TypeAlias = Callable[
    ["Executable", Callable[[], "Module"], Sequence[int], Callable[["Module"], "Executable"]],
    "Executable",
]


@dataclasses.dataclass(eq=False)
class Override:
    """A policy for all checkpoints and scans, whatever policies they were given.

    It is compared by identity: programs traced under one are not found under another, so each
    override learns whether it was used.

    Attributes:
        policy: the policy; None: each keeps its own.
        whole: whether functions that `grad` differentiates are wrapped in a checkpoint as well.
        recompiled: takes a program compiled for one CPU, a function that makes its HLO, its donated
            parameters and the function that compiled it; returns that program, or another to use in
            its place.
        asked: whether a checkpoint or a scan has been found.
    """

    policy: Policy | None
    whole: bool = False
    recompiled: Recompiled | None = None
    asked: bool = False


@contextlib.contextmanager
def overridden(new: Override | None) -> Generator[None]:
    """Use this policy in place of all others."""
    before = restore(_thread.ctx._replace(override=new)).override
    try:
        yield
    finally:
        restore(_thread.ctx._replace(override=before))


def override() -> Override | None:
    """The policy in place of all others in this thread, or None."""
    return _thread.ctx.override


def policy_for(own: Policy) -> Policy:
    """The policy of a checkpoint or scan that was given `own`."""
    override = _thread.ctx.override
    if override is None:
        return own
    override.asked = True
    return own if override.policy is None else override.policy


def recompiled() -> Recompiled | None:
    """See `Override.recompiled`; None: programs that are made now are used as compiled."""
    override = _thread.ctx.override
    return None if override is None else override.recompiled


def context_key() -> Hashable:
    """The settings of torch, and the context, that a trace depends on."""
    found: Hashable = torch.get_default_dtype()
    if torch._C._is_any_autocast_enabled():
        for kind in device.AUTOCAST:
            if torch.is_autocast_enabled(kind):
                found = (found, kind, torch.get_autocast_dtype(kind))
    if torch._C._get_deterministic_algorithms():
        found = (found, "deterministic")
    if _backend is not None:
        found = (found, _backend)
    ctx = _thread.ctx
    return found if ctx is NOTHING or ctx == NOTHING else (found, ctx)


Modes: TypeAlias = tuple[torch.dtype, str | None]


def plain_modes() -> Modes | None:
    """The parts of `context_key` if all other settings have their defaults; else None."""
    found = _dtype(), _backend
    return found if are_plain(found) else None


def are_plain(modes: Modes) -> bool:
    """Whether `plain_modes` are these."""
    dtype, backend = modes
    return (
        _thread.is_plain
        and not any(_HOOKS)
        and _dtype() is dtype
        and _backend is backend
        and _forward_mode._current_level < 0
        and not (_is_deterministic() or _is_autocast() or _modes() or _is_tracing())
    )


def global_hooks() -> list[object]:
    """The hooks of all modules and of all optimizers, which run in traced code."""
    return [hook for hooks in _HOOKS for hook in hooks.values()] if any(_HOOKS) else []


def _global_hooks_of(module: str) -> Iterator[dict[int, object]]:
    for name, hooks in vars(importlib.import_module(module)).items():
        if name.startswith("_global_") and isinstance(hooks, dict):
            yield cast("dict[int, object]", hooks)


_HOOKS = (
    *_global_hooks_of("torch.nn.modules.module"),
    *_global_hooks_of("torch.optim.optimizer"),
)
_forward_mode: Any = forward_ad
_dtype, _is_autocast = torch.get_default_dtype, torch._C._is_any_autocast_enabled
_is_deterministic = torch._C._get_deterministic_algorithms
_modes, _is_tracing = torch._C._len_torch_dispatch_stack, torch._C._is_tracing
_backend: str | None = None


def note_backend(name: str | None) -> None:
    """Record that programs run on another backend from now on; None: the default one."""
    global _backend
    _backend = name
