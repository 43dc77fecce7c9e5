"""What only Linux, glibc or 64-bit CPython has, taken away: the results are the same."""

from __future__ import annotations

import builtins
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from examples.llama.train import allocation
from tests.backends.test_lapack import RECTANGULAR, check
from tests.support.fresh import ROOT
from xfunc.backends import lapack, memory_maps, scipy_lapack
from xfunc.backends.pjrt import executable_cache

FORK = """
import os, signal
import torch
import xfunc as xf
from xfunc.backends import forks

class Libc:  # macOS has no on_exit
    def __getattr__(self, name):
        raise AttributeError(name)

forks._libc = Libc()
f = xf.jit(lambda x: x * 2)
assert f(torch.ones(3)).tolist() == [2, 2, 2]
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    print("written at the end", end="")
    raise SystemExit(5)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
"""


@pytest.fixture
def without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    own = builtins.open

    def open_(file: Any, *args: Any, **options: Any) -> Any:
        if str(file).startswith("/proc/"):
            raise FileNotFoundError(file)
        return own(file, *args, **options)

    monkeypatch.setattr(builtins, "open", open_)


@pytest.mark.usefixtures("without_proc")
def test_memory_maps_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_maps, "map_limit", memory_maps.map_limit.__wrapped__)
    assert memory_maps.map_limit() == 0
    for limit in (lambda: 0, lambda: 100):  # the limit may be there without the maps
        monkeypatch.setattr(memory_maps, "map_limit", limit)
        for _ in range(17):
            memory_maps.check_maps("f", "call xf.clear_caches()")


@pytest.mark.usefixtures("without_proc")
def test_kept_programs_without_proc_are_of_this_machine() -> None:
    assert executable_cache._cpu() == platform.node()


def test_kept_programs_are_of_the_instructions_of_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd aes\n")
    monkeypatch.setattr(executable_cache, "_CPUS", str(file))
    assert executable_cache._cpu() == "Features\t: fp asimd aes\n"
    file.write_text("processor\t: 0\n")
    assert executable_cache._cpu() == platform.node()


@pytest.mark.usefixtures("pjrt")
def test_fork_exit_status_without_on_exit() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=240, check=False,
        cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "written at the end"


@pytest.mark.parametrize("name", ["svd", "qr", "eigh", "cholesky", "solve", "solve_triangular"])
def test_lapack_without_openmp_and_openblas(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of macOS's own library cannot be set; those of torch may be out of reach."""
    monkeypatch.setattr(lapack, "_openmp", object())
    monkeypatch.setattr(scipy_lapack, "_thread_count", scipy_lapack._thread_count.__wrapped__)
    monkeypatch.setattr(scipy_lapack.ctypes, "PyDLL", lambda _: object())
    count, put = scipy_lapack._thread_count()
    put(5)
    assert count() == 1
    check(RECTANGULAR[name], torch.randn(5, 4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("system", "functions"), [("darwin", {"gnu_get_libc_version": None}), ("linux", {})]
)
def test_keep_memory_without_glibc(
    system: str, functions: dict[str, None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(allocation.ctypes, "CDLL", lambda _: SimpleNamespace(**functions))
    assert not allocation.keep_memory()
