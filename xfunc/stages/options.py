"""The options with which a function is traced, besides its arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from xfunc.program.call import Call
from xfunc.program.program import Program
from xfunc.stages.compiler_options import CompilerOptions


# A named tuple, since one is made at each call of a function with static or donated arguments.
class Options(NamedTuple):
    """How a staged function is found, traced and applied.

    Attributes:
        static: arguments that were taken out, a part of the key: ``(where, type, value)`` of each.
        fixed: leaves of the arguments that are not arrays, by position; they count by value.
        beside: other dependencies of the program, by value; tensors in them are treated like
            tensors that the function holds.
        call: what to trace instead of the function (with static arguments put back).
        donated: gives the flat arguments to donate.
        zeros: see `Program.joint`.
        primitive: how the program is applied.
        effects_allowed: whether the caller has the effects: see `Entry.result`.
        compiler: options of the compiler, by name; functions that differ in them are staged apart.
    """

    static: tuple[tuple[int | str, type, Any], ...] | None = None
    fixed: tuple[tuple[int, Any], ...] = ()
    beside: tuple[tuple[Hashable, Any], ...] = ()
    call: Callable[..., Any] | None = None
    donated: Callable[[], frozenset[int]] = frozenset
    zeros: frozenset[int] = frozenset()
    primitive: Callable[[Program], Call] = Call
    effects_allowed: bool = False
    compiler: CompilerOptions = ()


PLAIN = Options()
