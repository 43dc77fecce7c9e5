"""Settings as nested frozen dataclasses: read from mappings and `key=value`, checked, written back.

A field's possible values come from its type, or from `CHOICES` of its class, and its description
from the class's ``Attributes:``. Fields in `DERIVED` of a class are no settings.
"""

import contextlib
import dataclasses
import difflib
import fnmatch
import functools
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import yaml

from .model.precision import PRECISIONS
from .model.sizes import CONFIGS, Config
from .tune.lora import nested

T = TypeVar("T")
NAMED: dict[type, Mapping[str, Any]] = {Config: CONFIGS}  # a name stands for the whole of it
_ARTICLES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


class SettingError(ValueError):
    """An unknown key, or a value that does not fit; the message says what would."""


def changed(settings: T, values: Any, path: str = "") -> T:
    """The settings, with values replaced by those of a nested mapping, `{"train": {"steps": 9}}`.

    `path` is where the settings are within others, for messages.

    Raises:
        SettingError: an unknown key, or a value of the wrong type or out of range.
    """
    if not isinstance(values, Mapping):
        raise SettingError(
            f"{path or 'settings'}: {values!r} is not a mapping: give keys with values"
        )
    kinds, new = _kinds(type(settings)), {}
    for key, value in values.items():
        if key not in kinds:
            raise SettingError(
                f"there is no setting {_join(path, key)}: {_known(key, kinds, path)}"
            )
        new[key] = _value(kinds[key], getattr(settings, key), value, _join(path, key))
    try:
        return dataclasses.replace(typing.cast(Any, settings), **new)
    except ValueError as error:
        raise SettingError(f"{path}: {error}" if path else str(error)) from error


def override(settings: T, pairs: Iterable[str]) -> T:
    """The settings, with values replaced by texts such as ``train.steps=100``.

    If a key is given twice, the last one wins. Otherwise their order does not matter: all are
    checked together, and a name, ``train.model=tiny``, comes before its parts,
    ``train.model.vocab=300``.
    """
    texts = dict(map(_pair, pairs))
    wholes = {path for path in texts if any(other.startswith(f"{path}.") for other in texts)}
    for first in (True, False):
        now = {path: text for path, text in texts.items() if (path in wholes) == first}
        settings = changed(settings, nested(now))
    return settings


def _pair(text: str) -> tuple[str, str]:
    path, equals, value = text.partition("=")
    if not equals:
        raise SettingError(f"cannot read {text!r}: write key=value, such as train.steps=100")
    return path, value


def plain(settings: Any) -> Any:
    """The settings as mappings, lists and scalars, from which `changed` can rebuild them."""
    if dataclasses.is_dataclass(settings):
        return {key: plain(getattr(settings, key)) for key in _kinds(type(settings))}
    return list(settings) if isinstance(settings, tuple) else settings


def texts(settings: Any, path: str = "") -> dict[str, str]:
    """Each setting's key, and its value as one would type it."""
    found: dict[str, str] = {}
    for key in _kinds(type(settings)):
        value, whole = getattr(settings, key), _join(path, key)
        found |= texts(value, whole) if dataclasses.is_dataclass(value) else {whole: _typed(value)}
    return found


class Setting(NamedTuple):
    """A setting as help shows it: its key, its value as one types it, and its description."""

    key: str
    value: str
    meaning: str
    choices: tuple[str, ...] = ()


def described(settings: Any, groups: Mapping[str, str], *, with_values: bool = True) -> str:
    """The settings in groups, each with its value and the first sentence of its description.

    A group has a title, and patterns of keys such as ``mesh.*``. A setting is in the first group
    with a pattern that matches.
    """
    rest, sections = list(_rows(settings)), []
    for title, patterns in groups.items():
        found = [s for one in patterns.split() for s in rest if fnmatch.fnmatchcase(s.key, one)]
        rest = [setting for setting in rest if setting not in found]
        sections.append(f"{title}:\n{_table(found, with_values)}")
    return "\n\n".join(sections)


def _table(settings: Sequence[Setting], with_values: bool) -> str:
    """A line for each setting, and one more for its choices."""
    heads = [f"{s.key}={s.value}" if with_values else s.key for s in settings]
    width = 4 + max(map(len, heads))
    rows: list[str] = []
    for head, setting in zip(heads, settings, strict=True):
        meaning = setting.meaning.partition(". ")[0].removesuffix(".")
        rows.append(f"{f'  {head}':{width}}{meaning}")
        if setting.choices:
            rows.append(f"{'':{width}}one of {', '.join(setting.choices)}")
    fill = textwrap.TextWrapper(
        100, subsequent_indent=" " * width, break_on_hyphens=False, break_long_words=False
    ).fill
    return "\n".join(map(fill, rows))


def _rows(settings: Any, path: str = "") -> Iterator[Setting]:
    kinds, meanings = _kinds(type(settings)), _meanings(type(settings))
    for key, kind in kinds.items():
        value, whole, meaning = getattr(settings, key), _join(path, key), meanings.get(key, "")
        if not dataclasses.is_dataclass(value):
            choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
            yield Setting(whole, _typed(value), meaning, choices)
            continue
        if names := NAMED.get(type(value)):
            yield Setting(whole, name_of(value), meaning, tuple(names))
        yield from _rows(value, whole)


def name_of(value: Any) -> str:
    """The name that stands for a whole value, if there is one."""
    names = NAMED.get(type(value), {})
    return next((name for name, known in names.items() if known == value), "")


def _typed(value: Any) -> str:
    """A value as one would type it."""
    text = yaml.safe_dump(plain(value), default_flow_style=True)
    return value if isinstance(value, str) else text.removesuffix("...\n").strip()


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


_hints = functools.cache(typing.get_type_hints)


def _kinds(cls: type) -> dict[str, Any]:
    """The type of each field that can be set; a family may have been registered since."""
    names = [field.name for field in dataclasses.fields(cls)]
    literal: Any = Literal
    choices = {name: literal[tuple(known)] for name, known in getattr(cls, "CHOICES", {}).items()}
    kinds = _hints(cls) | choices
    return {name: kinds[name] for name in names if name not in getattr(cls, "DERIVED", ())}


def _meanings(cls: type) -> dict[str, str]:
    """The descriptions of a class's fields, from its docstring."""
    text = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2]
    entries = re.split(r"^    (?=\w+: )", text, flags=re.MULTILINE)[1:]
    pairs = (entry.partition(": ") for entry in entries)
    return {name: " ".join(meaning.split()) for name, _, meaning in pairs}


def _known(name: object, known: Iterable[str], path: str = "") -> str:
    """What to do about an unknown name."""
    if name == "dtype" and not path:
        return f"use train.precision, one of {', '.join(PRECISIONS)}"
    near = difflib.get_close_matches(str(name), known := list(known), n=1)
    return f"did you mean {_join(path, near[0])}?" if near else f"use one of {', '.join(known)}"


def _value(kind: Any, old: Any, value: Any, path: str) -> Any:
    """A value of a field's type. A text is read as YAML unless the field takes texts."""
    # `Literal[...] | None` is a typing.Union.
    several = typing.get_origin(kind) in (types.UnionType, typing.Union)
    kinds = typing.get_args(kind) if several else (kind,)
    optional = types.NoneType in kinds
    if isinstance(value, str) and (str not in kinds or (optional and value == "null")):
        with contextlib.suppress(yaml.YAMLError):  # such as a pattern, *.txt
            value = yaml.safe_load(value)
    if value is None and optional:
        return None
    one: Any = next(k for k in kinds if k is not types.NoneType)
    if isinstance(value, str) and one in NAMED:
        if value not in NAMED[one]:
            raise SettingError(f"{path} is {value!r}: {_known(value, NAMED[one])}")
        return NAMED[one][value]
    if hasattr(one, "__dataclass_fields__"):
        return changed(old if isinstance(old, one) else one(), value, path)
    if typing.get_origin(one) is tuple:
        item = typing.get_args(one)[0]
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(_value(item, None, v, f"{path}[{i}]") for i, v in enumerate(values))
    if typing.get_origin(one) is Literal:
        choices = typing.get_args(one)
        if value not in choices:
            raise SettingError(f"{path} is {value!r}: {_known(value, choices)}")
        return value
    return _scalar(one, value, path, optional)


def _scalar(kind: type, value: Any, path: str, optional: bool) -> Any:
    if kind is float and not isinstance(value, bool):
        try:
            return float(value)  # texts too: YAML 1.1 reads 3e-4, which has no dot, as a text
        except (TypeError, ValueError):
            pass
    elif type(value) is kind:
        if kind is int and not -(2**63) <= value < 2**63:
            raise SettingError(f"{path} is {value}: use a number of at most 63 bits")
        return value
    wanted = _ARTICLES[kind] + (" or null" if optional else "")
    raise SettingError(f"{path} is {value!r}: give {wanted}")
