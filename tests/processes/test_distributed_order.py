"""Processes that call different functions are told so."""

from __future__ import annotations

import pytest

from tests.support.fresh import Server
from tests.support.processes import free_port

PROGRAM = """
import sys
import torch, xfunc as xf

port, index, how = sys.argv[1:]
xf.distributed.initialize(f"127.0.0.1:{port}", 2, int(index))
mesh = xf.make_mesh((2, 2), ("host", "device"))
whole = torch.arange(16.0).reshape(4, 4)
over = lambda *spec: xf.NamedSharding(mesh, xf.P(*spec))

def total(x): return x.sum()
def rows(x): return x.sum(1)
def columns(x): return x.sum(0)
def twice(x): return x * 2

x = xf.device_put(whole, over("host", "device"))
if how == "different":
    xf.jit([total, columns][int(index)])(x)
if how == "a call":
    [xf.distributed.process_allgather, xf.distributed.broadcast_one_to_all][int(index)](whole)
if how == "a program":
    [xf.jit(total), xf.distributed.process_allgather][int(index)](x)
for f in (twice, rows, total, columns, total):
    jitted = xf.jit(f)
    for _ in range(2):
        jitted(x)
if index == "0":  # Nobody else is needed.
    assert xf.jit(total)(torch.ones(3)).item() == 3
for _ in range(2):
    moved = xf.device_put(x, over("device", "host"))
assert xf.distributed.process_allgather(moved).equal(whole)
"""


def run(fresh: Server, how: str, code: str = PROGRAM) -> list[tuple[int, str, str]]:
    port = free_port()
    env = {"CPU_NUM_DEVICES": "2", "XFUNC_BACKEND": "pjrt"}
    running = [fresh.start(code, port, k, how, env=env) for k in range(2)]
    done = [process.wait() for process in running]
    return [(d.returncode, d.stdout, d.stderr) for d in done]


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize(
    ("how", "first", "second"),
    [
        ("different", "total", "columns"),
        ("a call", "process_allgather", "broadcast_one_to_all"),
        ("a program", "total", "process_allgather"),
    ],
)
def test_distributed_different_calls_raise(
    fresh: Server, how: str, first: str, second: str
) -> None:
    (status, _, said), (other, _, why) = run(fresh, how)
    assert {status, other} <= {1, 69}, said + why
    text = f"RuntimeError: {first} was called in this process, and {second} in process 1"
    assert text in said
    assert "Hint: call the same functions in the same order in all processes." in said
