"""A fork of a process whose devices run says so, instead of waiting for threads that it lacks."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.support.fresh import ROOT, Server

CUT_OFF = "RuntimeError: xfunc was used in a process that was forked"

# Each child is killed after a minute; nothing that it does takes long.
BEGIN = """
import os, signal, sys, threading
import torch
import xfunc as xf

f = xf.jit(lambda x: x * 2)
x = torch.ones(3)
y = f(x)
w = torch.ones(3, requires_grad=True)
z = (f(w) ** 2).sum()
loaded = xf.export.deserialize(xf.export.serialize(f.lower(x)))
compiled = f.lower(x).compile()

def child(do):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            print(do(), flush=True)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""

USES = {
    "a call again": "f(x)",
    "a call with its own result": "f(y)",
    "a new shape": "f(torch.ones(5))",
    "a new function": "xf.vmap(lambda x: x + 1)(x)",
    "a trace": "xf.jit(lambda x: x + 3).lower(x)",
    "scan": "xf.scan(lambda c, x: (c + x, c), torch.zeros(()), x)",
    "device_put": "xf.device_put(x)",
    "backward": "torch.autograd.grad(z, w)",
    "an exported program": "loaded(x)",
    "a compiled program": "compiled(x)",
    "another backend": "xf.config.set_backend('pjrt')",
    "devices": "xf.devices()",
}
OF_TORCH_XLA = {
    "reading": "y.tolist()",
    "printing": "repr(y)",
    "an operation": "(y + 1).tolist()",
    "moving": "x.to(y.device)",
}


@pytest.mark.sample(12, seed=0)
@pytest.mark.parametrize("use", USES)
def test_fork_uses_of_xfunc_raise(use: str, fresh: Server) -> None:
    code = BEGIN + f"assert child(lambda: {USES[use]}) == 0\nassert f(x).tolist() == [2, 2, 2]"
    found = fresh.run(code)
    assert found.returncode == 0, found.stderr
    if use == "backward" and "Autograd-and-Fork" in found.stdout:  # torch's own refusal
        return
    assert CUT_OFF in found.stdout
    assert "Hint: start worker processes afresh" in found.stdout
    assert 'multiprocessing_context="spawn"' in found.stdout


@pytest.mark.sample(2, seed=0)
@pytest.mark.torch_xla
@pytest.mark.parametrize("use", OF_TORCH_XLA)
def test_fork_uses_of_device_tensors_raise(use: str, fresh: Server) -> None:
    found = fresh.run(BEGIN + f"assert child(lambda: {OF_TORCH_XLA[use]}) == 0")
    assert found.returncode == 0, found.stderr
    assert CUT_OFF in found.stdout


def test_fork_eager_torch_works(fresh: Server) -> None:
    code = """
def eager():
    with xf.disable_jit():
        return f(x).tolist()
assert child(eager) == 0
assert child(lambda: (x + 5).tolist()) == 0
"""
    found = fresh.run(BEGIN + code)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split("\n")[:2] == ["[2.0, 2.0, 2.0]", "[6.0, 6.0, 6.0]"]


def test_fork_inside_traced_function(fresh: Server) -> None:
    code = """
def forks(x):
    assert child(lambda: f(x)) == 0
    return x * 3
assert xf.jit(forks)(x).tolist() == [3, 3, 3]
"""
    found = fresh.run(BEGIN + code)
    assert found.returncode == 0, found.stderr
    assert CUT_OFF in found.stdout


def test_fork_before_devices_start(fresh: Server) -> None:
    code = BEGIN.partition("y = f(x)")[0] + BEGIN[BEGIN.index("def child") :]
    found = fresh.run(code + "assert child(lambda: f(x).tolist()) == 0")
    assert found.returncode == 0, found.stderr
    assert found.stdout == "[2.0, 2.0, 2.0]\n"


# A whole interpreter: where it ends, the clients of the devices end too.
ENDS: dict[str, tuple[str, int]] = {
    "with SystemExit": ("raise SystemExit(5)", 5),
    "plainly": ("sys.exit()", 0),
    "with a status": ("sys.exit(3)", 3),
    "with an error": ("raise ValueError", 1),
    "after an error of xfunc": ("f(x)", 1),
    "without what it held": ("del f, y, z, loaded, compiled; sys.exit(4)", 4),
}


@pytest.mark.sample(18, seed=0)
@pytest.mark.parametrize("end", ENDS)
def test_fork_exit_status(end: str) -> None:
    do, status = ENDS[end]
    code = f"""
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    print("written at the end", end="")
    {do}
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == {status}
"""
    found = _python(BEGIN + code)
    assert found.returncode == 0, found.stderr
    assert found.stdout == "written at the end"


WORKERS = """
import torch
import xfunc as xf

f = xf.jit(lambda x: x * 2)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, i):
        return f(torch.ones(3) * i).cpu()

def batches(method):
    loader = torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context=method)
    return [b.tolist() for b in loader]

if __name__ == "__main__":
    f(torch.ones(3))
    try:
        batches("fork")
    except RuntimeError as error:
        print(error)
    print(batches("spawn"))
"""


@pytest.mark.slow
def test_fork_data_loader_worker_raises(tmp_path: os.PathLike[str]) -> None:
    file = os.path.join(tmp_path, "workers.py")
    with open(file, "w") as out:
        out.write(WORKERS)
    found = _run([file])
    assert found.returncode == 0, found.stderr
    assert CUT_OFF.partition(": ")[2] in found.stdout
    assert re.search(r"workers\.py:\d+ in __getitem__: return f", found.stdout)
    assert found.stdout.endswith("[[[0.0, 0.0, 0.0]], [[2.0, 2.0, 2.0]]]\n")


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return _run(["-c", code])


def _run(args: list[str]) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *args], env=env, capture_output=True, text=True, timeout=240, check=False
    )
