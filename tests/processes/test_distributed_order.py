"""Processes that run different programs, or in another order, are told so."""

from __future__ import annotations

import re

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

def scaled(x): return x.sum() * 3
def shifted(x): return x.sum() + 5
def shown(x): return xf.pure_callback(lambda v: v + 1, x.sum(), x.sum()) + x.sort()[0].sum()

if index == "0":  # What is only traced makes no difference.
    xf.jit(shown).lower(torch.ones(3))
assert xf.jit(shown)(x).item() == 241
both = [xf.jit(scaled), xf.jit(shifted)]
assert [f(x).item() for f in both] == [360, 125]
print("in step", flush=True)
if how == "another order":
    [f(x) for f in (both if index == "0" else reversed(both))]
if how == "one more" and index == "0":
    both[0](x)
if how == "another program":
    f = xf.jit(lambda x, n=int(index): x.sum() * n)
    for _ in range(2):
        try:
            f(x)
        except RuntimeError as error:
            print(error, flush=True)
    def scaled(x): return x.sum() * 3
    xf.jit(scaled)(x)
    raise KeyError("in all")
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


def test_distributed_another_program_of_a_name_raises(fresh: Server) -> None:
    for status, said, why in run(fresh, "another program"):
        assert status == 1, said + why
        each = said.partition("in step\n")[2]
        assert each.count("is another program in this process than in process") == 2, said + why
        assert each.count("Hint: call the same functions, with the same shapes, in the same") == 2


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        (
            "another order",
            r"run \d+ of a program that communicates was (shifted in process 1 and scaled"
            "|scaled in process 1 and shifted) in process 0: call the same functions",
        ),
        ("one more", "process 0 runs scaled, which communicates, and process 1 came to its end"),
    ],
)
def test_distributed_later_runs_out_of_step_end_processes(
    fresh: Server, how: str, wanted: str
) -> None:
    for status, said, why in run(fresh, how):
        assert status == 69, said + why
        assert "in step" in said
        assert re.search(rf"^error: {wanted}.* ends too: restart", why, re.MULTILINE), why
