"""Callbacks to Python with values of a running program.

NOTE [effects are outputs]: a runtime may have no host callbacks. So the values for a callback
become additional outputs of the program, through every transform, and the callback is called after
the program has finished.

An `Effect` describes these tensors: the arguments of one call (`Callback`), those of many at once
(`Batched`), or those of each step of a loop or of each device (`LoopEffects`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch

from xfunc import tree
from xfunc.backends import processes
from xfunc.errors import UnsupportedOpError, fail
from xfunc.torchlib import functorch
from xfunc.trace import tracing

Tensor = torch.Tensor


class Effect(Protocol):
    """Something to do with tensors of a program after it has run."""

    @property
    def size(self) -> int:
        """The number of tensors it takes."""
        ...

    @property
    def functions(self) -> tuple[Callable[..., object], ...]:
        """The functions that it calls."""
        ...

    def deliver(self, values: Sequence[Tensor]) -> None:
        """Do it, with CPU tensors."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Callback:
    """One call ``fun(*args, **kwargs)``; `fixed` are the non-tensor leaves of the arguments."""

    fun: Callable[..., object]
    structure: tree.Structure
    fixed: tuple[tuple[int, object], ...]

    @property
    def size(self) -> int:
        return self.structure.num_leaves - len(self.fixed)

    @property
    def functions(self) -> tuple[Callable[..., object], ...]:
        return (self.fun,)

    def deliver(self, values: Sequence[Tensor]) -> None:
        leaves: list[object] = list(values)
        for i, x in self.fixed:
            leaves.insert(i, x)
        args, kwargs = tree.unflatten(self.structure, leaves)
        self.fun(*args, **kwargs)


@dataclasses.dataclass(frozen=True, eq=False)
class Batched:
    """An effect for each example of a batch; the batch axis of tensor k is ``dims[k]``."""

    effect: Effect
    dims: tuple[int | None, ...]

    @property
    def size(self) -> int:
        return self.effect.size

    @property
    def functions(self) -> tuple[Callable[..., object], ...]:
        return self.effect.functions

    def deliver(self, values: Sequence[Tensor]) -> None:
        pairs = list(zip(values, self.dims, strict=True))
        n = next(v.shape[d] for v, d in pairs if d is not None)
        for i in range(n):
            self.effect.deliver([v if d is None else v.select(d, i) for v, d in pairs])


@dataclasses.dataclass(frozen=True, eq=False)
class LoopEffects:
    """The effects of each step of a loop, or of each of several devices, one after the other.

    Their tensors are stacked along a new first axis.
    """

    effects: tuple[Effect, ...]
    count: int
    reverse: bool = False

    @property
    def size(self) -> int:
        return sum(e.size for e in self.effects)

    @property
    def functions(self) -> tuple[Callable[..., object], ...]:
        return tuple(f for e in self.effects for f in e.functions)

    def deliver(self, values: Sequence[Tensor]) -> None:
        steps = range(len(values[0]) if values else self.count)
        for i in reversed(steps) if self.reverse else steps:
            here = iter([v[i] for v in values])
            for effect in self.effects:
                effect.deliver([next(here) for _ in range(effect.size)])


@dataclasses.dataclass(eq=False)
class EffectScope:
    """The effects of one run of a function, and their tensors.

    Attributes:
        depth: how many levels of torch.func were active around the run.
    """

    depth: int
    effects: list[Effect] = dataclasses.field(default_factory=list)
    tensors: list[Tensor] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def collected(allowed: bool) -> Iterator[EffectScope]:
    """Collect the effects of the function that runs in the block.

    If effects are not `allowed`, having one raises.
    """
    trace = tracing.current()
    assert trace is not None
    found, before = EffectScope(len(functorch.levels())), trace.effects
    trace.effects = found if allowed else None
    try:
        yield found
    finally:
        trace.effects = before


class _Thread(threading.local):
    silent = False


_thread = _Thread()


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Suppress effects in the block, because its code has run before."""
    _thread.silent = True
    try:
        yield
    finally:
        _thread.silent = False


def emit(effect: Effect, tensors: Sequence[Tensor]) -> None:
    """Add an effect: inside a trace it happens when the program runs, outside immediately."""
    trace = tracing.current()
    if trace is None:
        if _thread.silent:
            return
        effect, tensors = _peel(effect, tensors, 0)
        with functorch.bottom_level():  # Transforms would wrap the tensors again.
            effect.deliver([t.detach().cpu() for t in tensors])
        return
    if trace.effects is None:
        fail(
            UnsupportedOpError,
            "a callback (xf.debug) is in a branch, a while loop or a custom rule, and its "
            "values cannot leave the program from there",
            "return the value, and print it outside; or run under xf.disable_jit().",
            function=trace.name,
        )
    found: EffectScope = trace.effects
    lifted = [trace.lift(t).detach() for t in tensors]  # no gradient flows into a callback
    effect, tensors = _peel(effect, lifted, found.depth)
    trace.register(tensors)
    found.effects.append(effect)
    found.tensors += tensors


def take(effects: Sequence[Effect], outputs: Sequence[Tensor]) -> list[Tensor]:
    """Add effects on the last outputs of a program; returns the other outputs."""
    n = len(outputs) - sum(e.size for e in effects)
    is_outside = tracing.current() is None
    rest = iter([processes.whole(x) if is_outside else x for x in outputs[n:]])
    for effect in effects:
        emit(effect, [next(rest) for _ in range(effect.size)])
    return list(outputs[:n])


def _peel(effect: Effect, tensors: Sequence[Tensor], depth: int) -> tuple[Effect, list[Tensor]]:
    """The same without the wrappers of the levels of torch.func from `depth` on."""
    inner = list(tensors)
    for level in reversed(functorch.level_numbers()[depth:]):
        peeled = [functorch.peel(t, level) for t in inner]
        inner = [t for t, _ in peeled]
        dims = tuple(d for _, d in peeled)
        if any(d is not None for d in dims):
            effect = Batched(effect, dims)
    return effect, inner
