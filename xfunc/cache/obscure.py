"""Code that reaches what its names do not tell, or draws numbers without our seeing it.

The digest of a function (`xfunc.cache.digest`) has what names in its code lead to. A program traced
through the code described here is not for another process.

NOTE [sets]: a set of text is in another order in each process. The digest has such a set in no
order, if it is the value of a variable or of an attribute; then code may only ask what it contains.
What becomes of sets that code makes itself is not known.
"""

from __future__ import annotations

import dis
import functools
import operator
import types
from collections.abc import Collection
from typing import NamedTuple

_NAMES = frozenset(
    "getattr hasattr vars globals locals dir attrgetter methodcaller eval exec compile "
    "__dict__ __getattribute__ __globals__ __builtins__ __annotations__ __subclasses__ __hash__ "
    "__dir__ __import__ import_module reload modules _getframe currentframe gc inspect "
    "default_rng RandomState SeedSequence SystemRandom".split()
)
# These builtins differ between processes; as attributes, the names are the user's.
_BUILTINS = frozenset(["id", "hash"])
_QUESTIONS = frozenset(["isdisjoint", "issubset", "issuperset"])
_LOCAL = frozenset("LOAD_FAST LOAD_CONST LOAD_CLOSURE".split())  # no variables of elsewhere
_ORDER = "the order of a set is another in each process"
# Code that calls one of these by another name would not be recognised.
_FUNCTIONS = {
    id(x)
    for x in (
        *(getattr, hasattr, vars, globals, locals, dir, eval, exec, compile, __import__, id, hash),
        *(operator.attrgetter, operator.methodcaller),
    )
}


def is_obscure(x: object) -> bool:
    """Whether a function makes the code that calls it obscure."""
    return id(x) in _FUNCTIONS


def has_fixed_order(x: Collection[object]) -> bool:
    """Whether a set is in the same order in each process: the hashes of text and addresses vary."""
    return len(x) < 2 or all(type(e) in (bool, int, float, complex) for e in x)


def obscured_by(
    code: types.CodeType, namespace: dict[str, object], sets: Collection[str] = ()
) -> str:
    """What makes a function obscure; "" if nothing does.

    Args:
        code: the function's.
        namespace: its globals.
        sets: the names of sets without an order: see NOTE [sets].
    """
    if code.co_name == "__hash__":  # Only those who ask for a hash see what it is made of.
        return ""
    found = _read(code)
    for word in found.words:
        return word
    for name in found.alone:
        if isinstance(namespace.get(name), types.ModuleType):
            return f"the module {name} as a value"
    for name in found.spread:
        if name in sets or (name == "getattr" and sets):
            return f"{name}: {_ORDER}"
    return ""


class _Found(NamedTuple):
    """What is obscure in code.

    Attributes:
        words: what always is.
        alone: the globals of which it does not take an attribute at once.
        spread: the variables and attributes that it does not only ask what they contain.
    """

    words: list[str]
    alone: list[str]
    spread: list[str]


@functools.lru_cache(16384)
def _read(code: types.CodeType) -> _Found:
    found = _Found([], [], [])
    steps = [s for s in dis.get_instructions(code) if s.opname not in ("PUSH_NULL", "CACHE")]
    for step, then in zip(steps, [*steps[1:], None], strict=True):
        found.words.extend(filter(None, [_word(step, then)]))
        takes = then is not None and then.opname in ("LOAD_ATTR", "LOAD_METHOD")
        if _is_global(step) and not takes:
            found.alone.append(step.argval)
        if step.opname.startswith("LOAD_") and step.opname not in _LOCAL and not _is_asked(then):
            found.spread.append(step.argval)
    return found


def _is_global(step: dis.Instruction) -> bool:
    return step.opname in ("LOAD_GLOBAL", "LOAD_NAME")


def _is_asked(then: dis.Instruction | None) -> bool:
    """Whether what was just loaded is a set that is only asked what it contains."""
    return then is not None and (then.opname == "CONTAINS_OP" or then.argval in _QUESTIONS)


def _word(step: dis.Instruction, then: dis.Instruction | None) -> str:
    """What is obscure in a step of a function, given the next one; "" for most.

    ``getattr(self, name)`` is not: the digest of an object has all its attributes.
    """
    what = step.argval
    if isinstance(what, str) and step.opname.startswith(("LOAD_", "IMPORT_")):
        if what == "getattr" and then is not None and then.argval == "self":
            return ""
        if what in _NAMES or (what in _BUILTINS and _is_global(step)):
            return what
    is_set = isinstance(what, frozenset) and not has_fixed_order(what)
    return f"a set: {_ORDER}" if is_set and not _is_asked(then) else ""
