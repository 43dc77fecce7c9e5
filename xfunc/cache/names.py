"""The names that code contains: what it looks up, and what it imports."""

from __future__ import annotations

import dis
import functools
import types
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
        mentioned: all of those names but the globals, each once.
    """

    looked_up: tuple[str, ...]
    attributes: tuple[str, ...]
    by_text: tuple[str, ...]
    imports: tuple[Import, ...]
    mentioned: dict[str, None]


_BY_TEXT = frozenset("getattr hasattr vars globals attrgetter __dict__ __getattribute__".split())


@functools.lru_cache(16384)
def names_in(code: types.CodeType) -> Names:
    """The names in code."""
    looked_up: dict[str, None] = {}
    attributes: dict[str, None] = {}
    texts: dict[str, None] = {}
    imports: dict[Import, None] = {}
    level: Any = None  # the argument before the last one
    last: Any = None
    for i in dis.get_instructions(code):
        if i.opname == "IMPORT_NAME":
            imports[Import(i.argval, level)] = None
        if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            looked_up[i.argval] = None
        elif isinstance(i.argval, str) and i.opname not in ("LOAD_CONST", "RETURN_CONST"):
            attributes[i.argval] = None
        elif i.opname == "MATCH_CLASS":  # The names of the attributes were loaded just before.
            attributes.update(dict.fromkeys(last))
        level, last = last, i.argval
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
