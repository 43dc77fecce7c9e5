"""The tables of docs/coming-from-jax.md name all of xfunc's public names, and no others."""

import ast
import inspect
import re
import types
from pathlib import Path

import pytest

import xfunc as xf

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "coming-from-jax.md").read_text(encoding="utf-8")
OTHER = (ROOT / "docs" / "coming-from-torch-xla.md").read_text(encoding="utf-8")
ROWS = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| ")]
NAMED = {name for row in ROWS for cell in row[1:] for name in re.findall(r"`xf\.([\w.]+)", cell)}


def public_names() -> set[str]:
    """What `xfunc/__init__.py` re-exports, and the functions of the modules among it.

    The common names of `xf.sharding` are on `xf` too, and count there.
    """
    source = (ROOT / "xfunc" / "__init__.py").read_text(encoding="utf-8")
    imports = [node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom)]
    names = {alias.asname for node in imports for alias in node.names if alias.asname}
    found = set()
    for name in names:
        value = getattr(xf, name)
        inside = members(value) if isinstance(value, types.ModuleType) else ()
        found |= {f"{name}.{member}" for member in inside} or {name}
    return {n for n in found if n.rpartition(".")[0] != "sharding" or not hasattr(xf, n[9:])}


def members(module: types.ModuleType) -> set[str]:
    """The public functions of a module; of a module of errors, the errors."""
    wanted = inspect.isclass if module is xf.errors else inspect.isfunction
    own = (ast.parse(inspect.getsource(module))).body
    made_here = {node.name for node in own if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for node in own:
        if isinstance(node, ast.ImportFrom):
            made_here |= {alias.asname for alias in node.names if alias.asname}
    return {n for n, _ in inspect.getmembers(module, wanted) if n in made_here and n[0] != "_"}


# On no page: the base class, and what only xfunc itself calls.
ELSEWHERE = {"errors.XfuncError", "tree.adopt"}


def test_the_tables_name_every_public_name() -> None:
    assert public_names() - NAMED - ELSEWHERE == set()


@pytest.mark.parametrize("name", sorted(NAMED))
def test_every_name_exists(name: str) -> None:
    value = xf
    for part in name.split("."):
        value = getattr(value, part)


def test_names_on_the_page_for_torch_xla_exist() -> None:
    for name in re.findall(r"\bxf\.([\w.]*\w)", OTHER):
        value = xf
        for part in name.split("."):
            value = getattr(value, part)


def test_the_tables_are_found() -> None:
    assert {"jit", "grad", "scan", "tree.map", "errors.LeakError"} <= NAMED
    assert {"jit", "checkpoint_policies.nothing_saveable", "tree.register"} <= public_names()
