"""Private names of torch, JAX and jaxlib: all that our source uses are listed, and are there."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.fresh import Server
from xfunc.backends.pjrt import private as of_jax
from xfunc.torchlib import private as of_torch

ROOT = Path(__file__).parents[3]
PACKAGES = ("torch", "jax", "jaxlib")
LEFT_OUT = ("backends/torch_xla/", "hlo/hlo_pb2.py")  # an extra of one release; generated
OF_OTHERS = {
    "_CFunctionType", "_Environ", "_Pointer", "_asdict", "_current_frames", "_exit", "_fields",
    "_getframe", "_GenericAlias", "_inst", "_lru_cache_wrapper",  # Python's own
    "_acquire_restore", "_at_fork_reinit", "_is_owned", "_release_save",  # of its locks
    "_XLAC", "_xla_runtime_is_initialized",  # torch_xla's, where somebody has imported it
}  # fmt: skip
OPERATIONS = "torch.ops.aten."  # whose names are part of torch's format of programs
LISTS: tuple[tuple[Mapping[str, tuple[str, ...]], Mapping[str, str]], ...] = (
    (of_torch.NAMES, of_torch.SOME),
    (of_jax.NAMES, of_jax.SOME),
)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith(("__", "_xfunc_"))


def has_private_part(dotted: str) -> bool:
    return any(map(is_private, dotted.split(".")))


def listed() -> list[str]:
    return [n for names, some in LISTS for n in (*(n for g in names.values() for n in g), *some)]


class Uses(ast.NodeVisitor):
    """The private names in a source: whole, or ``.name`` where it does not say of what."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.defined: set[str] = set()  # names of functions, classes, variables and attributes
        self._imported: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            whole = alias.name if alias.asname else alias.name.partition(".")[0]
            self._imported[alias.asname or whole] = whole
            self._add(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            self._imported[alias.asname or alias.name] = whole
            self._add(whole)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.defined.add(node.name)
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.defined.add(node.name)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self.defined.add(node.id)

    def visit_keyword(self, node: ast.keyword) -> None:  # vars(self).update(_level=level)
        if node.arg:
            self.defined.add(node.arg)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        match node:
            case ast.Attribute(ast.Name("self" | "cls"), name, ast.Store()):
                self.defined.add(name)
        whole = self._dotted(node)
        if whole is None:
            if is_private(node.attr):
                self.found.add(f".{node.attr}")
            self.generic_visit(node)
        else:
            self._add(whole)

    def visit_Call(self, node: ast.Call) -> None:
        match node:
            case ast.Call(
                ast.Name("getattr" | "hasattr" | "setattr"), [_, ast.Constant(str(n)), *_]
            ):
                self._add_attribute(n)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        match node:
            case ast.Subscript(ast.Call(ast.Name("vars")), ast.Constant(str(name))):
                self._add_attribute(name)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and re.fullmatch(r"[a-z]+(\.\w+)+", node.value):
            self._add(node.value)

    def _add(self, whole: str) -> None:
        if whole.partition(".")[0] in PACKAGES and has_private_part(whole):
            self.found.add(whole)

    def _add_attribute(self, name: str) -> None:
        if is_private(name):
            self.found.add(f".{name}")

    def _dotted(self, node: ast.expr) -> str | None:
        """The whole name of an attribute of a module, or of something in one."""
        match node:
            case ast.Name(name):
                return self._imported.get(name)
            case ast.Call(ast.Name("jax" | "library") | ast.Attribute(attr="jax" | "library")):
                return "jax"  # `xfunc.backends.pjrt.client`
            case ast.Attribute(value, name):
                whole = self._dotted(value)
                return whole and f"{whole}.{name}"
        return None


def source_files() -> list[Path]:
    files = [f for d in ("xfunc", "transforms", "sharding") for f in (ROOT / d).rglob("*.py")]
    lists = {Path(str(m.__file__)) for m in (of_torch, of_jax)}
    return [f for f in files if f not in lists and not any(p in f.as_posix() for p in LEFT_OUT)]


@functools.cache
def uses() -> frozenset[str]:
    found, ours = set[str](), set(OF_OTHERS)
    for file in source_files():
        visitor = Uses()
        visitor.visit(ast.parse(file.read_text(encoding="utf-8")))
        found |= visitor.found
        ours |= visitor.defined
    return frozenset(u for u in found if u[1:] not in ours and not u.startswith(OPERATIONS))


def are_same(used: str, name: str) -> bool:
    """Whether one is the other, or something in it."""
    if used.startswith("."):
        return name.endswith(used)
    return used == name or used.startswith(f"{name}.") or name.startswith(f"{used}.")


def test_private_names_are_listed() -> None:
    names = listed()
    unknown = sorted(u for u in uses() if not any(are_same(u, name) for name in names))
    assert unknown == [], "list them in xfunc/torchlib/private.py, xfunc/backends/pjrt/private.py"


def test_private_names_listed_are_used() -> None:
    sources = "".join(f.read_text(encoding="utf-8") for f in source_files())

    def is_used(name: str) -> bool:
        last = name.rpartition(".")[2]
        by_name = is_private(last) and f'"{last}"' in sources
        return by_name or any(are_same(u, name) for u in uses())

    assert [n for n in listed() if not is_used(n)] == []
    assert all(map(has_private_part, listed()))


@pytest.mark.quick
def test_private_names_of_the_installed_versions(fresh: Server) -> None:
    """Those that every supported release has, and that the installed ones lack, are printed."""
    code = """if True:
        import warnings
        import importlib, sys, types
        from importlib.metadata import version

        def find(name):
            parts = name.split(".")
            found = importlib.import_module(parts[0])
            for k, part in enumerate(parts[1:], 2):
                if not hasattr(found, part):
                    importlib.import_module(".".join(parts[:k]))
                found = getattr(found, part)
            return found

        warnings.simplefilter("ignore")  # of modules that are deprecated as a whole
        for name in sys.argv[1:]:
            try:
                if isinstance(find(name), types.ModuleType):
                    print(name, "is a module: list what is used of it")
            except (ImportError, AttributeError):
                package = name.partition(".")[0]
                print(name, "is gone from", package, version(package))
    """
    names = [n for groups, _ in LISTS for group in groups.values() for n in group]
    done = fresh.run(code, *names)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
