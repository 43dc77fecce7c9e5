"""What `import xfunc` loads, and under which names the package may be imported."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter, with the top of the checkout first on its path."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_import_loads_neither_torch_xla_nor_jax():
    heavy = ("torch_xla", "_XLAC", "jax", "jaxlib", "libtpu")
    done = run(f"import sys, xfunc; print(*[name for name in {heavy} if name in sys.modules])")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.parametrize("folder", ["transforms", "sharding"])
def test_folders_have_one_name(folder):
    done = run(f"import sys, xfunc.{folder}; print([m for m in sys.modules if m == {folder!r}])")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("folder", ["transforms", "sharding"])
def test_stray_import_is_refused(folder):
    done = run(f"import {folder}")
    assert done.returncode == 1, f"`import {folder}` went through:\n{done.stderr}"
    last = done.stderr.rstrip().splitlines()[-1]
    assert re.search(rf"^ImportError: .*xfunc\.{folder}", last), done.stderr
