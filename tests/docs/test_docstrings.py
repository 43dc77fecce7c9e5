"""Docstrings: their examples print the results shown, and they name the parameters that exist."""

import ast
import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

ROOT = Path(xf.__file__).parents[1]
FILES = [
    path
    for folder in ("xfunc", "transforms", "sharding")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not path.name.endswith("_pb2.py")
]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "xfunc" else ("xfunc", *parts))


@pytest.mark.parametrize(
    "name", [module_of(p) for p in FILES if ">>> " in p.read_text(encoding="utf-8")]
)
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    results = doctest.testmod(
        module, extraglobs={"xf": xf, "torch": torch}, optionflags=doctest.ELLIPSIS
    )
    assert results.attempted > 0
    assert results.failed == 0


def section(text: str, heading: str) -> set[str] | None:
    """The names that a section of a docstring describes."""
    found = re.search(rf"^{heading}:\n((?:    .*\n|\n)*)", text + "\n", re.MULTILINE)
    if found is None:
        return None
    lines = re.findall(r"^    (\*{0,2}\w[\w, *]*):", found[1], re.MULTILINE)
    return {name.strip().lstrip("*") for line in lines for name in line.split(",")}


def parameters(function: ast.FunctionDef) -> set[str]:
    given = function.args
    several = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {a.arg for a in several if a is not None}


def attributes(kind: ast.ClassDef) -> set[str]:
    """The names that a class or its methods bind."""
    found = {n.name for n in kind.body if isinstance(n, ast.FunctionDef)}
    for n in ast.walk(kind):
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
            found.add(n.id)
        elif isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store):
            found.add(n.attr)
    return found


def mistakes(path: Path) -> Iterator[str]:
    for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(n, (ast.FunctionDef, ast.ClassDef)):
            continue
        text = ast.get_docstring(n) or ""
        args = section(text, "Args")
        if isinstance(n, ast.ClassDef):
            methods = {m.name: m for m in n.body if isinstance(m, ast.FunctionDef)}
            taken = methods.get("__init__", methods.get("__new__"))
            yield from (
                f"{n.name} has no attribute {name}"
                for name in (section(text, "Attributes") or set()) - attributes(n)
            )
            known = attributes(n) if taken is None else parameters(taken)
        else:
            known = parameters(n)
        if args is None:
            continue
        yield from (f"{n.name} has no parameter {name}" for name in args - known)
        if isinstance(n, ast.FunctionDef):
            missing = {name for name in known - args - {"self", "cls"} if name[0] != "_"}
            yield from (f"{n.name} does not describe {name}" for name in missing)


def test_sections_name_what_exists() -> None:
    assert [f"{module_of(path)}: {m}" for path in FILES for m in sorted(mistakes(path))] == []
