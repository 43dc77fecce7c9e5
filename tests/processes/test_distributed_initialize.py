"""`xf.distributed.initialize`: its arguments, the environment, and how processes end after it."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.fresh import Server
from tests.support.processes import free_port


def test_initialize_after_backend_start_raises() -> None:
    before = os.environ.get("XFUNC_BACKEND", "torch_xla")
    xf.config.set_backend("pjrt")
    xf.block_until_ready(xf.jit(torch.sin)(torch.ones(2)))
    try:
        with pytest.raises(RuntimeError, match=r"came too late(.|\n)*Hint: call it at the start"):
            xf.distributed.initialize("localhost:1", 1, 0)
    finally:
        xf.config.set_backend(before)
    assert not xf.distributed.is_initialized()


@pytest.mark.parametrize(
    ("arguments", "kind", "problem"),
    [
        (("127.0.0.1", 1, 0), ValueError, "coordinator_address is '127.0.0.1', which is not a"),
        (("127.0.0.1:x", 1, 0), ValueError, "coordinator_address is '127.0.0.1:x'"),
        ((1234, 1, 0), TypeError, "coordinator_address is 1234"),
        (("127.0.0.1:1", "2", 0), TypeError, "num_processes is '2', not a valid int"),
        (("127.0.0.1:1", 0, 0), ValueError, "num_processes is 0, not a valid int"),
        (("127.0.0.1:1", 2, -1), ValueError, "process_id is -1, not a valid int"),
        (("127.0.0.1:1", 2, 2), ValueError, "process_id is 2, and num_processes is 2"),
    ],
)
def test_initialize_invalid_arguments(arguments: Any, kind: type[Exception], problem: str) -> None:
    with pytest.raises(kind, match=rf"initialize: {problem}(.|\n)*Hint: "):
        xf.distributed.initialize(*arguments)
    assert not xf.distributed.is_initialized()


ALONE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "RANK": "0", "WORLD_SIZE": "1"}


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("RANK", "x", "RANK is 'x' in the environment"),
        ("WORLD_SIZE", "", "WORLD_SIZE is '' in the environment"),
        ("MASTER_PORT", "y", "MASTER_PORT is 'y' in the environment"),
        ("RANK", "1", "process_id is 1, and num_processes is 1"),
    ],
)
def test_initialize_invalid_environment(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, problem: str
) -> None:
    for key, text in {**ALONE, name: value}.items():
        monkeypatch.setenv(key, text)
    with pytest.raises(ValueError, match=rf"initialize: {problem}(.|\n)*Hint: "):
        xf.distributed.initialize()
    assert not xf.distributed.is_initialized()


def test_initialize_arguments_override_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in ALONE.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match="process_id is 3, and num_processes is 1"):
        xf.distributed.initialize(process_id=3)
    monkeypatch.setenv("RANK", "5")
    with pytest.raises(ValueError, match="process_id is 5, and num_processes is 4"):
        xf.distributed.initialize(num_processes=4)


UNEVEN = """
import sys, torch, xfunc as xf
address, index = sys.argv[1:]
xf.distributed.initialize(address, 2, int(index))
mesh = xf.make_mesh((3,), ("data",))
split = xf.NamedSharding(mesh, xf.P("data"))
mine = xf.sharding.process_local_indices(split, (6,))[0]
x = xf.make_array_from_process_local_data(split, mine + 1.0)
y = xf.device_put(torch.arange(6.0), split)
print(mine.tolist(), xf.jit(lambda x, y: x @ y)(x, y).item())
"""


def test_initialize_uneven_device_counts(fresh: Server) -> None:
    address, running = f"127.0.0.1:{free_port()}", []
    for index, devices in enumerate((2, 1)):
        env = {"JAX_PLATFORMS": "cpu", "CPU_NUM_DEVICES": str(devices)}
        running.append(fresh.start(UNEVEN, address, index, env=env))
    for process, mine in zip(running, ([0, 1, 2, 3], [4, 5]), strict=True):
        done = process.wait()
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1] == f"{mine} 70.0"


TERMINATED = """
import os, signal, sys, time
import xfunc as xf
address, catch, leave = sys.argv[1:]
if int(catch):
    signal.signal(signal.SIGTERM, lambda *_: print("caught", flush=True))
xf.distributed.initialize(address, 1, 0)
if int(leave):
    xf.distributed.shutdown()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.1)
print("alive", flush=True)
"""


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("leave", [0, 1])
@pytest.mark.parametrize(
    ("catch", "status", "printed"), [(0, -15, []), (1, 0, ["caught", "alive"])]
)
def test_initialize_keeps_sigterm_handling(
    fresh: Server, catch: int, status: int, printed: list[str], leave: int
) -> None:
    address = f"127.0.0.1:{free_port()}"
    done = fresh.run(TERMINATED, address, catch, leave, env={"JAX_PLATFORMS": "cpu"})
    assert done.returncode == status, done.stdout + done.stderr
    lines = [x for x in done.stdout.splitlines() if "Gloo" not in x]
    assert lines == printed


LEFT_ALONE = """
import os, sys, torch, xfunc as xf
address, number = sys.argv[1], int(sys.argv[2])
xf.distributed.initialize(address, 2, number)
split = xf.NamedSharding(xf.make_mesh((2,), "x"), xf.P("x"))
x = xf.make_array_from_process_local_data(split, torch.ones(2, 4))
total = xf.jit(lambda x: (x / x.sum()).sum())
for step in range(1000):
    try:
        total(x).item()
    except xf.errors.ExecutionError as error:
        print(error, flush=True)
        os._exit(7)
    if number == 1:
        os._exit(8)
"""


def test_execution_error_after_end_of_other_process(fresh: Server) -> None:
    address = f"127.0.0.1:{free_port()}"
    env = {"JAX_PLATFORMS": "cpu", "CPU_NUM_DEVICES": "1"}
    running = [fresh.start(LEFT_ALONE, address, k, env=env) for k in range(2)]
    alone, other = (process.wait() for process in running)
    assert other.returncode == 8
    if alone.returncode == 69:  # It was ended before its program noticed.
        assert "error: process 1 is gone: " in alone.stderr
    else:
        assert alone.returncode == 7, alone.stdout + alone.stderr
        assert "<lambda> failed while it ran: " in alone.stdout
        assert "Hint: another process has ended" in alone.stdout


@pytest.mark.parametrize(
    ("arguments", "kind", "problem"),
    [
        ({"local_device_ids": "0,1"}, TypeError, "local_device_ids is '0,1'"),
        ({"local_device_ids": [0, "1"]}, TypeError, "local_device_ids is '1'"),
        ({"local_device_ids": [0, -1]}, ValueError, "local_device_ids is -1"),
        ({"initialization_timeout": "5"}, TypeError, "initialization_timeout is '5'"),
        ({"initialization_timeout": 0}, ValueError, "initialization_timeout is 0"),
    ],
)
def test_initialize_invalid_device_ids_or_timeout(
    arguments: Any, kind: type[Exception], problem: str
) -> None:
    with pytest.raises(kind, match=rf"initialize: {problem}, not a valid int(.|\n)*Hint: pass an"):
        xf.distributed.initialize("127.0.0.1:1", 1, 0, **arguments)
    assert not xf.distributed.is_initialized()


REFUSED = """
import sys, torch, xfunc as xf
try:
    xf.distributed.initialize(sys.argv[1], 2, 1, initialization_timeout=1)
except RuntimeError as error:
    print(error)
print(xf.distributed.is_initialized(), torch.distributed.is_initialized())
xf.distributed.initialize(sys.argv[1], 1, 0)  # It may try again.
print(xf.process_count())
"""


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{free_port()}"


def test_initialize_after_failed_initialize(fresh: Server, address: str) -> None:
    done = fresh.run(REFUSED, address, env={"JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "Gloo" not in line]
    assert lines[0].startswith(f"xf.distributed.initialize: no process 0 answers at {address}")
    assert "in <module>" in lines[1]
    assert lines[2].startswith("Hint: start as many processes as num_processes says")
    assert lines[3:] == ["False False", "1"]
