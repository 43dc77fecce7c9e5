"""The names in code: its lookups and its imports."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple


class Import(NamedTuple):
    """A module in an import statement.

    Attributes:
        name: as written, without leading dots.
        level: how many leading dots there are.
    """

    name: str
    level: int

    def resolved(self, namespace: dict[str, object]) -> str:
        """Its whole name in a module with this namespace; "" if it has none."""
        if not self.level:
            return self.name
        package = namespace.get("__package__")
        parts = package.split(".") if isinstance(package, str) and package else []
        if len(parts) < self.level:
            return ""
        above = parts[: len(parts) - self.level + 1]
        return ".".join([*above, self.name] if self.name else above)


class Names(NamedTuple):
    """Names in code, nested code included.

    Attributes:
        looked_up: as globals.
        attributes: of anything.
        by_text: strings that the code may look up as names, if it uses a function for that.
        imports: the modules that it imports.
        mentioned: attributes and `by_text` together, each once.
    """

    looked_up: tuple[str, ...]
    attributes: tuple[str, ...]
    by_text: tuple[str, ...]
    imports: tuple[Import, ...]
    mentioned: dict[str, None]


_BY_TEXT = frozenset("getattr hasattr vars globals attrgetter __dict__ __getattribute__".split())


_EXTENDED, _IMPORT, _MATCH = map(
    dis.opmap.__getitem__, ("EXTENDED_ARG", "IMPORT_NAME", "MATCH_CLASS")
)
_OF_GLOBALS = frozenset(
    dis.opmap[n]
    for n in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    if n in dis.opmap
)
# By how many bits the number of a name is shifted: the rest says what else an instruction does.
_SHIFTS = {"LOAD_GLOBAL": 1, "LOAD_ATTR": int(sys.version_info >= (3, 12)), "LOAD_SUPER_ATTR": 2}
_NAMED = {k: _SHIFTS.get(dis.opname[k], 0) for k in dis.hasname}


def _named(code: types.CodeType) -> Iterator[tuple[int, str]]:
    """The opcodes of the instructions that have a name, with it; `dis` takes much longer."""
    high, names, read = 0, code.co_names, code.co_code
    for opcode, low in zip(read[::2], read[1::2], strict=True):
        if opcode in _NAMED:
            yield opcode, names[(high | low) >> _NAMED[opcode]]
        high = (high | low) << 8 if opcode == _EXTENDED else 0


def _add_imports(
    code: types.CodeType, imports: dict[Import, None], attributes: dict[str, None]
) -> None:
    """Add what code imports, and the attributes that its patterns name."""
    level: Any = None  # the argument before the last one
    last: Any = None
    for i in dis.get_instructions(code):
        if i.opcode == _IMPORT:
            imports[Import(i.argval, level)] = None
        elif i.opcode == _MATCH:  # The names were loaded just before.
            attributes.update(dict.fromkeys(last))
        level, last = last, i.argval


@functools.lru_cache(16384)
def names_in(code: types.CodeType) -> Names:
    """The names in code."""
    looked_up: dict[str, None] = {}
    attributes: dict[str, None] = {}
    texts: dict[str, None] = {}
    imports: dict[Import, None] = {}
    for opcode, name in _named(code):
        (looked_up if opcode in _OF_GLOBALS else attributes)[name] = None
    if not {_IMPORT, _MATCH}.isdisjoint(code.co_code[::2]):
        _add_imports(code, imports, attributes)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            inner = names_in(const)
            looked_up.update(dict.fromkeys(inner.looked_up))
            attributes.update(dict.fromkeys(inner.attributes))
            texts.update(dict.fromkeys(inner.by_text))
            imports.update(dict.fromkeys(inner.imports))
        elif isinstance(const, str) and const.isidentifier():
            texts[const] = None
    if _BY_TEXT.isdisjoint((*looked_up, *attributes)):
        texts.clear()
    return Names(
        *(tuple(looked_up), tuple(attributes), tuple(texts), tuple(imports)), attributes | texts
    )
