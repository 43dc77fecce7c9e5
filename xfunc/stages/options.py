"""The options with which a function is traced, apart from its arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeAlias

from xfunc.cache.key import Static
from xfunc.program.call import Call
from xfunc.program.program import TracedProgram
from xfunc.stages.compiler_options import CompilerOptions
from xfunc.tree import Function

Fixed: TypeAlias = tuple[tuple[int, object], ...]
"""Leaves of the arguments that are not arrays, by position."""


# A named tuple, since one is made at each call of a function with static or donated arguments.
class Options(NamedTuple):
    """How a staged function is found, traced and applied.

    Attributes:
        static: arguments that were taken out, as part of the key; see `Static`.
        fixed: leaves that are compared by value; see `Fixed`.
        extra_deps: other dependencies of the program, by value; tensors in them are treated like
            tensors that the function holds.
        call: traced instead of the function (with static arguments put back).
        donated: returns the flat arguments to donate.
        zeros: see `TracedProgram.joint`.
        primitive: how the program is applied.
        effects_allowed: whether the caller delivers the effects: see `Entry.result`.
        compiler: compiler options by name; functions that differ in them are staged separately.
    """

    static: Static | None = None
    fixed: Fixed = ()
    extra_deps: tuple[tuple[Hashable, object], ...] = ()
    call: Function | None = None
    donated: Callable[[], frozenset[int]] = frozenset
    zeros: frozenset[int] = frozenset()
    primitive: Callable[[TracedProgram], Call] = Call
    effects_allowed: bool = False
    compiler: CompilerOptions = ()

    @property
    def is_usual(self) -> bool:
        """Whether they add nothing to the key of a call."""
        return self.static is None and not self.fixed and not self.extra_deps and self.call is None


PLAIN = Options()
