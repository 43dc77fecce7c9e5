"""Tests of behaviour use the public face only; those of internals lie in `tests/internals`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import xfunc as xf

TESTS = Path(__file__).parents[2]
PUBLIC = {
    *(f"xfunc.{name}" for name in xf.__all__),
    *("xfunc.sharding", "xfunc.stages", "xfunc.export.__main__", "xfunc.aot.__main__"),
}
INTERNAL = re.compile(r"(?:from|import)\s+(xfunc(?:\.\w+)+)|from\s+xfunc\s+import\s+([\w, ]+)")
FOLDERS = "backends cache core hlo ops program remat symbolic tools torchlib trace".split()
PROTOCOLS = {
    "_asdict",
    "_base",
    "_fields",
    "_make",
    "_replace",
    "_repr_html_",
}  # of Python and torch


def behaviour_files() -> list[Path]:
    """All sources of tests but those in `internals`, where internals may be used."""
    return [f for f in sorted(TESTS.rglob("*.py")) if TESTS / "internals" not in f.parents]


def imported_internals(source: str) -> Iterator[str]:
    """Modules that are not public, imported in a source or in code in its strings."""
    for module, names in INTERNAL.findall(source):
        if module and module not in PUBLIC:
            yield module
        yield from (f"xfunc.{n}" for n in re.split(r"[, ]+", names) if n in FOLDERS)


def private_names(source: str) -> Iterator[str]:
    """Attributes with an underscore that the file does not define, of anything but torch."""
    tree = ast.parse(source)
    own = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr):
            base = ast.unparse(node.value).partition(".")[0]
            if base not in ("torch", "os", "aten", "atexit") and node.attr not in own | PROTOCOLS:
                yield ast.unparse(node)


@pytest.mark.quick
def test_behaviour_tests_use_public_names_only() -> None:
    found = []
    for file in behaviour_files():
        source = file.read_text(encoding="utf-8")
        for name in (*imported_internals(source), *private_names(source)):
            found.append(f"{file.relative_to(TESTS)}: {name}")
    assert found == []


@pytest.mark.quick
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import xfunc as xf\nfrom xfunc.sharding import P", []),
        ("from xfunc.hlo import Module", ["xfunc.hlo"]),
        ("from xfunc import errors, trace", ["xfunc.trace"]),
        ("CODE = '''\nfrom xfunc.backends.pjrt import client\n'''", ["xfunc.backends.pjrt"]),
        ("x._replace(a=1); torch._C.f(); xf.jit(f)._staged", ["xf.jit(f)._staged"]),
        ("class A:\n    def _f(self): ...\na._f()", []),
    ],
)
def test_use_of_internals_is_found(source: str, expected: list[str]) -> None:
    assert [*imported_internals(source), *private_names(source)] == expected
