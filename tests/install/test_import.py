"""What `import xfunc` loads, and under which names the package may be imported."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import xfunc as xf

ROOT = Path(__file__).parents[2]


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter, with the top of the checkout first on its path."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules that xfunc loads."""
    done = run("import sys, xfunc, xfunc.transforms, xfunc.sharding; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_import_loads_neither_torch_xla_nor_jax(loaded):
    assert {"xfunc", "torch"} <= loaded
    assert not loaded & {"torch_xla", "_XLAC", "jax", "jaxlib", "libtpu"}


@pytest.mark.slow
def test_llama_train_step_traced_without_sympy():
    """Its import would take longer than the trace.

    Newer torch imports it at the first operation on a class of tensors.
    """
    own = """
import sys, torch
class Own(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return torch.ones(2)
torch.ops.aten.sin(torch.Tensor._make_wrapper_subclass(Own, (2,)))
print("sympy" in sys.modules)
"""
    code = """
import sys
import xfunc as xf
from examples.llama import model, train
from examples.llama.model.plan import Plan
from examples.llama.parallel.sharding import Sharding

plan = Plan(attention="dense", sharding=Sharding.of({"fsdp": 8}, abstract=True))
recipe = train.Recipe(model.PUBLISHED["llama3.1-405b"], steps=100, plan=plan)
state, batch = train.abstract_state(recipe), train.abstract_batch(recipe, 8, 128)
print(len(train.train_step.lower(state, batch, recipe=recipe).as_text()), "sympy" in sys.modules)
"""
    done = run(code)
    assert done.returncode == 0, done.stderr
    size, loads_sympy = done.stdout.split()
    assert int(size) > 10_000
    assert loads_sympy == run(own).stdout.strip()


@pytest.mark.parametrize("folder", ["transforms", "sharding"])
def test_import_gives_each_folder_one_name(folder, loaded):
    assert f"xfunc.{folder}" in loaded
    assert folder not in loaded


@pytest.mark.parametrize("folder", ["transforms", "sharding"])
def test_import_of_stray_folder_is_refused(folder):
    done = run(f"import {folder}")
    assert done.returncode == 1, f"`import {folder}` went through:\n{done.stderr}"
    last = done.stderr.rstrip().splitlines()[-1]
    assert re.search(rf"^ImportError: .*xfunc\.{folder}", last), done.stderr


def test_dir_lists_public_names():
    assert dir(xf) == sorted(xf.__all__)
    assert all(hasattr(xf, name) for name in xf.__all__)
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert xf.__version__ == listed


def test_architecture_page_matches_import_layers():
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    order = [re.findall(r"xfunc\.(\w+)", layer) for layer in layers["contracts"][0]["layers"]]
    page = (ROOT / "docs/architecture.md").read_text()
    rows = [
        re.findall(r"`(\w+)(?:/|\.py)`", row) for row in re.findall(r"^\| (`[^|]*)\|", page, re.M)
    ]
    named = [name for row in rows for name in sorted(row)]
    assert named == [name for layer in _joined(order, rows) for name in sorted(layer)]


def _joined(order: list[list[str]], rows: list[list[str]]) -> list[list[str]]:
    """The layers, those that share a row of the page as one."""
    row_of = {name: i for i, row in enumerate(rows) for name in row}
    found: dict[int, list[str]] = {}
    for layer in order:
        for name in layer:
            found.setdefault(row_of[name], []).append(name)
    assert list(found) == sorted(found)
    return list(found.values())
