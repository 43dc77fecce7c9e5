"""A script in place of the process that compiles ahead of time, and what it is asked to compile."""

import sys

import pytest
import torch

import xfunc as xf
from xfunc.aot import client, compilers, topology_of
from xfunc.aot.compilers import Compiler
from xfunc.aot.request import Request

V6E = topology_of("v6e-1")
HERE = Compiler(sys.executable, ("0.7.1", "0.7.1", "0.0.21"))
MEMORY = {
    "argument_size_in_bytes": 7,
    "output_size_in_bytes": 5,
    "temp_size_in_bytes": 3,
    "alias_size_in_bytes": 2,
    "host_temp_size_in_bytes": 1,
}
MADE = {"memory": MEMORY, "cost": {"flops": 1.0}}

ANSWERS = """
import json, os, sys, zipfile
with zipfile.ZipFile(sys.argv[1] + "/result.zip", "w") as archive:
    archive.writestr("report.json", json.dumps({report!r}))
    archive.writestr("executable", json.dumps(dict(os.environ)))
    archive.writestr("hlo.pb", b"")
    archive.writestr("hlo.txt", {text!r})
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XFUNC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Put a script in place of the worker."""

    def replace(script):
        path = tmp_path / "script.py"
        path.write_text(script)
        monkeypatch.setattr(client, "_WORKER", path)
        monkeypatch.setattr(compilers, "_installed", lambda: HERE.versions)

    return replace


def request(module=b"module", topology=V6E, options=None):
    return Request(module, (), (), (), topology, options or {})


def compile_it(compiler=HERE, timeout=None, **asked):
    return client.result_of(request(**asked), "step", compiler, timeout)


SHAPES = [xf.ShapeDtypeStruct(s, torch.float32) for s in ((8, 8), (4, 8, 8), (3,))]


def program(x, w, unused):
    def body(x, w):
        return torch.tanh(x @ w), None

    again = xf.checkpoint(lambda y: torch.exp(torch.sin(y)).sum())
    policy = xf.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")
    value, grads = xf.value_and_grad(
        lambda w: again(xf.scan(body, x, w, checkpoint_policy=policy)[0])
    )(w)
    return value, w - grads


def lower():
    return xf.jit(program, donate_argnums=1).lower(*SHAPES)


@pytest.fixture
def asked(monkeypatch):
    """The requests that are made, which are all answered with `MADE`."""
    found = []

    def answer(request, name, compiler, timeout):
        found.append(request)
        return client.Result(MADE, b"", b"", "", request)

    monkeypatch.setattr("xfunc.aot.compiled.result_of", answer)
    monkeypatch.setattr(compilers, "_installed", lambda: HERE.versions)
    return found
