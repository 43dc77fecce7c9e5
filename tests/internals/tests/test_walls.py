"""Tests of behaviour use the public face only; those of internals lie in `tests/internals`."""

from __future__ import annotations

import ast
import contextlib
import importlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import xfunc as xf

TESTS = Path(__file__).parents[2]
PUBLIC = {
    *(f"xfunc.{name}" for name in xf.__all__ if isinstance(getattr(xf, name), ModuleType)),
    *("xfunc", "xfunc.export.__main__", "xfunc.aot.__main__"),
}
IMPORT = re.compile(
    r"from\s+(xfunc[\w.]*)\s+import\s+(?:\(([^)]*)\)|([^\n;]+))|import\s+(xfunc[\w.]*)"
)
FOREIGN = {"torch", "torch_xla", "numpy", "os", "atexit", "K8sCluster"}  # not ours
PROTOCOLS = {"_asdict", "_base", "_fields", "_make", "_replace", "_repr_html_"}  # Python's, torch's


def behaviour_files() -> list[Path]:
    """All sources of tests but those in `internals`, where internals may be used."""
    return [f for f in sorted(TESTS.rglob("*.py")) if TESTS / "internals" not in f.parents]


def imported_internals(source: str) -> Iterator[str]:
    """Modules that are not public, imported in a source or in code in its strings."""
    for package, group, line, module in IMPORT.findall(source):
        if (package or module) not in PUBLIC:
            yield package or module
            continue
        for name in re.findall(r"(\w+)(?: as \w+)?", group or line):
            value = getattr(importlib.import_module(package), name, ModuleType("unknown"))
            if isinstance(value, ModuleType) and f"{package}.{name}" not in PUBLIC:
                yield f"{package}.{name}"


def private_names(source: str) -> Iterator[str]:
    """Attributes with an underscore that the file does not define, of anything but torch.

    Those that are set by name (``monkeypatch.setattr(x, "_a", ...)``) and those in code in strings
    count as well.
    """
    nodes = [*ast.walk(ast.parse(source))]
    own = {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)} | PROTOCOLS
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name("self"), attr=name, ctx=ast.Store()):
                own.add(name)
            case ast.AnnAssign(target=ast.Name(name)):
                own.add(name)
    for node in nodes:
        match node:
            case ast.Attribute(value, name) if is_private(name) and name not in own:
                if ast.unparse(value).partition(".")[0] not in FOREIGN:
                    yield ast.unparse(node)
            case ast.Call(args=[target, ast.Constant(str(name)), *_]) if is_private(name):
                if ast.unparse(node.func).endswith("setattr") and name not in own:
                    yield f"{ast.unparse(target)}.{name}"
            case ast.Constant(str(text)) if "\n" in text:
                with contextlib.suppress(SyntaxError):
                    yield from private_names(textwrap.dedent(text))


def is_private(name: str) -> bool:
    """Whether a name begins with one underscore."""
    return re.match(r"_[^_]", name) is not None


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
        ("from xfunc.remat import min_cut", ["xfunc.remat"]),
        ("from xfunc.sharding import (\n    P,\n    storage,\n)", ["xfunc.sharding.storage"]),
        ("import xfunc.cache.programs", ["xfunc.cache.programs"]),
        ("CODE = '''\nfrom xfunc.backends.pjrt import client\n'''", ["xfunc.backends.pjrt"]),
        ("x._replace(a=1); torch._C.f(); xf.jit(f)._staged", ["xf.jit(f)._staged"]),
        ("class A:\n    def _f(self): ...\na._f()", []),
        ("monkeypatch.setattr(train, '_noise', 1)", ["train._noise"]),
        ("CODE = '''\n    train._noise = 1\n    '''", ["train._noise"]),
    ],
)
def test_use_of_internals_is_found(source: str, expected: list[str]) -> None:
    assert [*imported_internals(source), *private_names(source)] == expected
