"""Why a call missed the cache: how its key differs from the nearest earlier key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xfunc import tree
from xfunc.cache.key import Key, Static
from xfunc.core.avals import Aval, short
from xfunc.core.guards import State
from xfunc.core.paths import path_of

_MOST_LINES, _MOST_CHARACTERS = 6, 100


def differences(known: Sequence[Key], new: Key, names: Sequence[str]) -> str:
    """The differences from the nearest known key, one per line."""
    nearest = min(reversed(known), key=lambda old: _distance(old, new))
    lines = list(_lines(nearest, new, names))
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES - 1 :] = [f"... and {len(lines) - _MOST_LINES + 1} more"]
    return "\n".join(lines)


def _distance(old: Key, new: Key) -> tuple[int, int]:
    fields = sum(a != b for a, b in zip(old, new, strict=True))
    if len(old.avals) != len(new.avals):
        return fields, 2 * len(new.avals)
    pairs = zip(old.avals, new.avals, strict=True)
    return fields, sum((a[0] != b[0]) + (a[1] != b[1]) for a, b in pairs)


def _lines(old: Key, new: Key, names: Sequence[str]) -> Iterator[str]:
    if old.values != new.values:
        yield f"a value that the function holds changed: {difference(old.values, new.values)}"
    had, has = _by_path(old, names), _by_path(new, names)
    for path, x in has.items():
        if path not in had:
            yield f"{path} is new: {_shown(x)}"
        elif had[path] != x:
            verb = "changed" if isinstance(x, Aval) and isinstance(had[path], Aval) else "went"
            yield f"{path} {verb} from {_shown(had[path])} to {_shown(x)}"
    yield from (f"{path} is gone: {_shown(x)}" for path, x in had.items() if path not in has)
    if old.tree != new.tree and had.keys() == has.keys():
        yield from _nodes(old.tree, new.tree, names)
    if old.static != new.static:
        yield from _static(old.static, new.static, names)
    if old.modes != new.modes:
        yield f"a global mode changed: {difference(old.modes, new.modes)}"


def _by_path(key: Key, names: Sequence[str]) -> dict[str, object]:
    """The leaves of the arguments: avals, or values for leaves that are not arrays."""
    paths = [path_of(a, names) for a in key.tree.accessors()]
    fixed = {i: value for i, value in key.extra_deps if isinstance(i, int)}
    avals = iter(key.avals)
    result: dict[str, object] = {
        p: fixed[i] if i in fixed else Aval(*next(avals)) for i, p in enumerate(paths)
    }
    result.update((label, value) for label, value in key.extra_deps if isinstance(label, str))
    return result


def _nodes(old: tree.Structure, new: tree.Structure, names: Sequence[str]) -> Iterator[str]:
    """Containers of another kind, around the same leaves."""

    def walk(a: tree.Structure, b: tree.Structure, path: str) -> Iterator[str]:
        if a == b:
            return
        pairs = list(zip(a.children(), b.children(), strict=False))
        if a.type is not b.type or len(a.children()) != len(b.children()) or not pairs:
            yield f"{path} changed from {_kind(a)} to {_kind(b)}"
        elif all(c == d for c, d in pairs):
            yield f"{path} ({_kind(b)}) changed in what its class keeps beside its leaves"
        for entry, (c, d) in zip(b.entries(), pairs, strict=False):
            yield from walk(c, d, f"{path}[{entry!r}]")

    (old_args, old_kwargs), (args, kwargs) = old.children(), new.children()
    for i, (a, b) in enumerate(zip(old_args.children(), args.children(), strict=False)):
        yield from walk(a, b, names[i] if i < len(names) else f"argument {i}")
    for name, a, b in zip(kwargs.entries(), old_kwargs.children(), kwargs.children(), strict=False):
        yield from walk(a, b, str(name))
    if len(old_args.children()) != len(args.children()) or old_kwargs.entries() != kwargs.entries():
        yield "arguments without leaves were added or left out, or are given by keyword now"


def _kind(node: tree.Structure) -> str:
    return "a leaf" if node.is_leaf() else getattr(node.type, "__name__", str(node.type))


def _static(old: Static | None, new: Static | None, names: Sequence[str]) -> Iterator[str]:
    had, has = ({w: (t, v) for w, t, v in given or ()} for given in (old, new))
    for where in {**had, **has}:
        label = names[where] if isinstance(where, int) and where < len(names) else where
        a, b = (f.get(where, (None, "not given")) for f in (had, has))
        if a != b:
            values = [_cut(repr(v) if t else str(v)) for t, v in (a, b)]
            yield f"the static argument {label} went from {values[0]} to {values[1]}"


def difference(old: object, new: object, path: str = "") -> str:
    """The first place where two values differ, and both values there."""
    if isinstance(old, State) and isinstance(new, State):
        return difference(old.value, new.value, path)
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        named = len(new) == 2 and isinstance(new[0], str) and old[0] == new[0]
        for a, b in zip(old, new, strict=True):
            if a != b:
                return difference(a, b, f"{path}.{new[0]}" if named else path)
    place = f" in {path.lstrip('.')}" if path else ""
    return f"{_plain(old)} -> {_plain(new)}{place}"


def _shown(x: object) -> str:
    return short(x) if isinstance(x, Aval) else _plain(x)


def _plain(x: object) -> str:
    """A value of `xfunc.cache.identity` as the user knows it."""
    if isinstance(x, tuple) and len(x) == 2 and isinstance(x[0], type):
        kind, content = x
        if isinstance(content, (tuple, list)):
            return f"another {kind.__name__}"
        return _cut(repr(content) if not isinstance(content, str) or kind is str else content)
    return _cut(str(x))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "..."
