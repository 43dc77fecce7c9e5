"""Calls like the last one.

NOTE [calls like the last one]: a loop calls a function with arguments of the same kinds, and
nothing around it changes. Then comparing each part with the last call's avoids building the key. An
unusual call (a trace, a gradient, another program found since) takes the general path,
`xfunc.stages.staging.run_staged`, which records the parts to compare next time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from xfunc import tree
from xfunc.backends import active
from xfunc.backends.donated import run_donating
from xfunc.backends.lock import lock
from xfunc.core import ambient
from xfunc.core.avals import AvalKey
from xfunc.core.guards import Guarded
from xfunc.core.matcher import matcher
from xfunc.torchlib import functorch
from xfunc.tree import Leaf, PyTree

if TYPE_CHECKING:
    from xfunc.cache.programs import LastHit
    from xfunc.stages.entry import Entry
    from xfunc.stages.staging import Staged

Guards: TypeAlias = tuple[tuple[Callable[[], Hashable], Hashable], ...]
MISSED: Any = object()
"""The result of `call` if a call is not like the last one."""

_acquire, _release, _refusing = lock.acquire, lock.release, lock.refusing
_any_requires_grad, _is_transformed = functorch.any_requires_grad, functorch.is_transformed


class FastPath:
    """The parts of the last call to compare with, and the program to run if all are equal.

    Args:
        caller: identifies who calls.
        entry: the program.
        structure: of the arguments.
        avals: of their leaves.
        modes: see `xfunc.core.ambient.plain_modes`.
        is_unchanged: whether the function's value is the same.
        guards: of the program, with their values.
        of_host: the leaves that were not data on the device.
    """

    __slots__ = (
        "avals",
        "avals_of",
        "caller",
        "donated",
        "executable",
        "guards",
        "inputs",
        "is_unchanged",
        "leaves_of",
        "modes",
        "name",
        "of_host",
        "run",
        "taken",
        "unflatten",
    )

    def __init__(
        self,
        caller: object,
        entry: Entry,
        structure: tree.Structure,
        avals: tuple[AvalKey, ...],
        modes: ambient.Modes,
        is_unchanged: Callable[[], bool],
        guards: Guards,
        of_host: Sequence[int],
    ):
        assert entry.executable is not None
        self.caller, n = caller, len(avals)
        are_leaves = structure == tree.structure_of_leaves(n)
        self.leaves_of = None if are_leaves else matcher(structure)
        where = active.runtime()
        self.avals, self.avals_of = avals, where.avals
        self.taken, self.of_host = where.taken, of_host
        self.modes, self.is_unchanged, self.guards = modes, is_unchanged, guards
        self.name, self.donated = entry.program.name, entry.donated
        self.executable, self.run = entry.executable, entry.executable.__call__
        inputs = entry.executable.inputs
        self.inputs = None if inputs == tuple(range(n)) else inputs
        self.unflatten = None if entry.out_tree.is_leaf() else entry.out_tree.unflatten


def call(staged: Staged, args: tuple[Leaf, ...], kwargs: dict[str, object]) -> PyTree:
    """The result of a call, if it is like the last one; else `MISSED`."""
    last: FastPath | None = staged.cache.latest.fast_path
    if last is None or last.caller is not staged.caller or _refusing:
        return MISSED
    if lock.is_shared:  # Only the guards change shared state here.
        return _call(last, staged, args, kwargs)
    if not _acquire(False):
        return MISSED
    try:
        return _call(last, staged, args, kwargs)
    finally:
        _release()


def _call(
    last: FastPath, staged: Staged, args: tuple[Leaf, ...], kwargs: dict[str, object]
) -> PyTree:
    leaves: Sequence[Leaf] | None = args
    if last.leaves_of is not None:
        leaves = last.leaves_of((args, kwargs))
        if leaves is None:
            return MISSED
    elif kwargs:
        return MISSED
    if not ambient.are_plain(last.modes):  # First: torch.jit.trace makes sizes tensors.
        return MISSED
    if _is_transformed():  # A copy of a tensor of the CPU would be wrapped.
        return MISSED
    if last.of_host:
        if len(leaves) != len(last.avals):
            return MISSED
        leaves, taken = list(leaves), last.taken
        for i in last.of_host:
            leaves[i] = taken(leaves[i])
    if (
        last.avals_of(leaves) != last.avals
        or not last.is_unchanged()
        or (_any_requires_grad(*leaves) and torch.is_grad_enabled())
        or (last.guards and not _are_same(last.guards))
    ):
        return MISSED
    staged.cache.hits += 1
    given: Any = [leaves[i] for i in last.inputs] if last.inputs else leaves
    if last.donated:
        outs = run_donating(last.executable, leaves, last.donated, last.name, given)
    else:
        outs = last.run(given)
    return outs[0] if last.unflatten is None else last.unflatten(outs)


def _are_same(guards: Guards) -> bool:
    """Whether guards have the same values."""
    if not _acquire(False):
        return False
    try:
        for guard, value in guards:  # noqa: SIM110 (a generator would cost more)
            if guard() != value:
                return False
        return True
    finally:
        _release()


def note(
    staged: Staged,
    latest: LastHit,
    entry: Entry,
    structure: tree.Structure,
    avals: tuple[AvalKey, ...],
    of_host: Sequence[int],
) -> None:
    """Record the parts of this call for the next comparison, if it was usual; see `FastPath`."""
    guards: Any = None
    if type(latest.entry) is Guarded:
        guards = latest.entry.only(entry)
    elif latest.entry is entry:
        guards = ()
    modes, check = ambient.plain_modes(), staged.function_value.check()
    if guards is None or modes is None or check is None or not entry.runs_alone():
        return
    latest.fast_path = FastPath(
        staged.caller, entry, structure, avals, modes, check, guards, of_host
    )
