"""Which runtime joins processes: on TPU pods, which are stood in for, and beside a torch group."""

from __future__ import annotations

import pytest

from tests.support.fresh import Server
from tests.support.processes import free_port

pytestmark = pytest.mark.quick

WHO_JOINS = """
import glob, os, sys
found = glob.glob
glob.glob = lambda pattern: ["/dev/accel0"] if pattern == "/dev/accel*" else found(pattern)
import xfunc as xf
from xfunc.backends import active, forks
from xfunc.backends.pjrt import client
from xfunc.backends.torch_xla import backend
backend.make_runtime().process_count = lambda: 1
client.join = lambda *given: (print("JAX joins", flush=True), os._exit(0))
if sys.argv[1]:
    xf.config.set_backend(sys.argv[1])
xf.distributed.initialize("127.0.0.1:0" + sys.argv[2], 1, 0)
print(active.selected(), "joins", forks.is_torch_xla_running())
"""


def who_joins(fresh: Server, backend: str, variables: dict[str, str | None]) -> str:
    """What is said by a process that is told `backend`, with variables (None: unset)."""
    unset = [name for name, value in variables.items() if value is None]
    code = f"import os\nfor name in {unset}: os.environ.pop(name, None)\n" + WHO_JOINS
    env = {name: value for name, value in variables.items() if value is not None}
    env = {"JAX_PLATFORMS": "cpu", "XFUNC_BACKEND": "", **env}
    done = fresh.run(code, backend, free_port(), env=env)
    return (done.stdout.splitlines() or [done.stderr.strip()])[-1]


@pytest.mark.torch_xla
@pytest.mark.parametrize("device", ["TPU", None])
@pytest.mark.parametrize(("backend", "variable"), [("torch_xla", ""), ("", "torch_xla")])
def test_initialize_hosts_joined_by_torch_xla(
    fresh: Server, backend: str, variable: str, device: str | None
) -> None:
    variables = {"XFUNC_BACKEND": variable, "PJRT_DEVICE": device}
    assert who_joins(fresh, backend, variables) == "torch_xla joins False"


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize(
    ("backend", "variable", "device"),
    [
        ("", "", None),
        ("", "", "TPU"),
        ("", "pjrt", None),
        ("", "auto", "TPU"),
        # torch_xla's CPU is one process.
        pytest.param("", "torch_xla", "CPU", marks=pytest.mark.torch_xla),
    ],
)
def test_initialize_hosts_joined_by_jax(
    fresh: Server, backend: str, variable: str, device: str | None
) -> None:
    variables = {"XFUNC_BACKEND": variable, "PJRT_DEVICE": device}
    assert who_joins(fresh, backend, variables) == "JAX joins"


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
print(xf.distributed.is_initialized(), active.selected())
if how == "pod" and rank:
    raise KeyError("on a pod")
torch.distributed.barrier()
"""


@pytest.mark.sample(6, seed=0)
@pytest.mark.parametrize(
    ("how", "said", "statuses"),
    [
        ("same", "True pjrt", [0, 0]),
        ("swapped", "False None", [0, 0]),
        pytest.param("pod", "True torch_xla", [69, 1], marks=pytest.mark.torch_xla),
    ],
)
def test_initialize_beside_torch_process_group(
    fresh: Server, how: str, said: str, statuses: list[int]
) -> None:
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
