"""Processes that come together, and that end: `initialize`, groups of torch, and signals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.fresh import Server
from tests.support.processes import free_port
from xfunc.backends import active


def test_it_is_too_late_when_the_backend_has_started() -> None:
    before = active.runtime().name
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
def test_invalid_arguments(arguments: Any, kind: type[Exception], problem: str) -> None:
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
def test_invalid_environment(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, problem: str
) -> None:
    for key, text in {**ALONE, name: value}.items():
        monkeypatch.setenv(key, text)
    with pytest.raises(ValueError, match=rf"initialize: {problem}(.|\n)*Hint: "):
        xf.distributed.initialize()
    assert not xf.distributed.is_initialized()


def test_arguments_count_more_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_devices_may_be_fewer_in_one(fresh: Server) -> None:
    address, running = f"127.0.0.1:{free_port()}", []
    for index, devices in enumerate((2, 1)):
        env = {"JAX_PLATFORMS": "cpu", "CPU_NUM_DEVICES": str(devices)}
        running.append(fresh.start(UNEVEN, address, index, env=env))
    for process, mine in zip(running, ([0, 1, 2, 3], [4, 5]), strict=True):
        done = process.wait()
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1] == f"{mine} 70.0"


BESIDE_A_GROUP = """
import os, sys, torch, xfunc as xf
from xfunc.backends import active
torch.distributed.init_process_group("gloo")
rank, how, address = int(os.environ["RANK"]), *sys.argv[1:]
if how == "pod":  # Here torch's own runtime would connect them.
    where = active.use("torch_xla")
    where.process_count, where.process_index = lambda: 2, lambda: rank
    os.environ["PJRT_DEVICE"] = "TPU"
try:
    xf.distributed.initialize(*([address, 2, 1 - rank] if how == "swapped" else []))
except RuntimeError as error:
    print(error)
print(xf.distributed.is_initialized(), active.chosen())
if how == "pod" and rank:
    raise KeyError("on a pod")
torch.distributed.barrier()
"""


@pytest.mark.parametrize(
    ("how", "said", "statuses"),
    [
        ("same", "True pjrt", [0, 0]),
        ("swapped", "False None", [0, 0]),
        pytest.param("pod", "True torch_xla", [69, 1], marks=pytest.mark.torch_xla),
    ],
)
def test_a_group_of_torch_exists(fresh: Server, how: str, said: str, statuses: list[int]) -> None:
    env = {"JAX_PLATFORMS": "cpu", "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2"}
    env |= {"MASTER_PORT": str(free_port()), "XFUNC_BACKEND": ""}
    address = f"127.0.0.1:{free_port()}"
    running = [
        fresh.start(BESIDE_A_GROUP, how, address, env={**env, "RANK": str(k)}) for k in range(2)
    ]
    done = [process.wait() for process in running]
    for each in done:
        assert each.stdout.splitlines()[-1] == said, each.stdout + each.stderr
        problem = "process 0 of 2 of torch's process group was told that it is process 1 ("
        assert (problem in each.stdout) == (how == "swapped")
    assert [each.returncode for each in done] == statuses
    if how == "pod":
        assert "error: process 1 failed: KeyError: 'on a pod'" in done[0].stderr


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


@pytest.mark.parametrize("leave", [0, 1])
@pytest.mark.parametrize(
    ("catch", "status", "printed"), [(0, -15, []), (1, 0, ["caught", "alive"])]
)
def test_sigterm_does_what_it_did(
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


def test_the_other_process_ends(fresh: Server) -> None:
    address = f"127.0.0.1:{free_port()}"
    env = {"JAX_PLATFORMS": "cpu", "CPU_NUM_DEVICES": "1"}
    running = [fresh.start(LEFT_ALONE, address, k, env=env) for k in range(2)]
    alone, other = (process.wait() for process in running)
    assert (alone.returncode, other.returncode) == (7, 8), alone.stdout + alone.stderr
    assert "<lambda> failed while it ran: " in alone.stdout
    assert "Hint: another process has ended" in alone.stdout
