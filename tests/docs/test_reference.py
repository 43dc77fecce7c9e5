"""The API reference has every public name, with a docstring and an example that uses it.

The examples run with those of the other pages (`test_docs.py`).
"""

import importlib
import inspect
import re
import types
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import NoReturn

import pytest

import xfunc as xf

pytestmark = pytest.mark.quick

PAGES = sorted((Path(__file__).parents[2] / "docs" / "reference").glob("*.md"))


def public() -> Iterator[str]:
    """Every public name, as a user writes it."""
    for name in xf.__all__:
        yield f"xf.{name}"
        module = getattr(xf, name)
        if isinstance(module, types.ModuleType):
            yield from (f"xf.{name}.{inner}" for inner in names_of(module))


def names_of(module: types.ModuleType) -> list[str]:
    """What a public module offers beside what `xf` offers itself."""
    if hasattr(module, "__all__"):
        return module.__all__
    assert module.__file__ is not None
    # `from a import b as b` is how a package or module that only re-exports says what is public.
    source = Path(module.__file__).read_text(encoding="utf-8")
    names = [b for a, b in re.findall(r"\b(\w+) as (\w+)\b", source) if a == b]
    assert names, f"{module.__name__} does not say what is public"
    return [n for n in names if getattr(xf, n, None) is not getattr(module, n)]


def sections() -> dict[str, str]:
    """The text below the heading of each name."""
    found = {}
    for page in PAGES:
        for section in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            heading, _, text = section.partition("\n")
            for name in re.findall(r"`([^`]+)`", heading):
                assert name not in found, f"{page.name}: {name} has two sections"
                found[name] = text
    return found


SECTIONS = sections()


@pytest.mark.parametrize("name", list(public()))
def test_reference_public_name_has_example(name):
    assert name in SECTIONS, f"docs/reference has no section `{name}`"
    code = "".join(re.findall(r"```python.*?```", SECTIONS[name], re.DOTALL))
    assert code, f"the section of {name} has no example"
    last = name.rpartition(".")[2]
    if not isinstance(getattr(xf, last, None), types.ModuleType):
        assert re.search(rf"\b{last}\b", code, re.IGNORECASE), code


@pytest.mark.parametrize("name", list(SECTIONS))
def test_reference_section_object_has_docstring(name):
    path = re.sub(r"^xf\b", "xfunc", name)
    module, _, last = path.rpartition(".")
    found = getattr(importlib.import_module(module), last)
    if isinstance(found, types.ModuleType) or callable(found):
        assert inspect.getdoc(found)


def returning() -> Iterator[str]:
    """The public functions that return something."""
    for name in public():
        found = attrgetter(name.removeprefix("xf."))(xf)
        if callable(found) and not inspect.isclass(found):
            result = inspect.signature(found).return_annotation
            if result not in (None, "None", NoReturn, "NoReturn"):
                yield name


@pytest.mark.parametrize("name", list(returning()))
def test_reference_public_function_docstring_says_what_it_returns(name):
    doc = inspect.getdoc(attrgetter(name.removeprefix("xf."))(xf)) or ""
    assert re.search(r"^Returns:\n    \S", doc, re.MULTILINE), f"{name}: no Returns section"
