"""Which of a host's GPUs a process takes; the processes of these tests have the CPU instead."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.fresh import Server
from tests.support.processes import free_port
from xfunc.backends import cluster_env
from xfunc.backends.pjrt import client

pytestmark = pytest.mark.quick

TORCHRUN = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "RANK": "5", "WORLD_SIZE": "8"}
SECOND = {**TORCHRUN, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
OF_SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_NODELIST": "127.0.0.1",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
}
OF_MPI = {
    "OMPI_MCA_orte_hnp_uri": "40960000.0;tcp://127.0.0.1:34567",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
NAMES = (
    "CUDA_VISIBLE_DEVICES",
    "JAX_LOCAL_DEVICE_IDS",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "SLURM_STEP_TASKS_PER_NODE",
)


@pytest.mark.parametrize(
    ("variables", "given", "expected"),
    [
        (TORCHRUN, None, None),
        (SECOND, None, [1]),
        ({**SECOND, "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}, None, None),  # all of the host's
        (SECOND, [2, 3], [2, 3]),
        (SECOND, 2, [2]),
        ({**SECOND, "JAX_LOCAL_DEVICE_IDS": "2,3"}, None, [2, 3]),
        ({**SECOND, "JAX_LOCAL_DEVICE_IDS": "2,3"}, 0, [0]),
        ({**SECOND, "CUDA_VISIBLE_DEVICES": "4,5,6,7"}, None, [1]),
        ({**SECOND, "CUDA_VISIBLE_DEVICES": "5"}, None, [0]),
        ({**SECOND, "CUDA_VISIBLE_DEVICES": "GPU-5a"}, None, [0]),
        (OF_SLURM, None, [1]),
        ({**OF_SLURM, "CUDA_VISIBLE_DEVICES": "5"}, None, [0]),  # --gpus-per-task=1
        ({**OF_SLURM, "CUDA_VISIBLE_DEVICES": "5"}, 1, [1]),
        ({**OF_SLURM, "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, None, None),
        ({**OF_SLURM, "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1"}, 0, [0]),
        ({**OF_SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(x4)"}, None, [1]),
        ({**OF_SLURM, "SLURM_STEP_TASKS_PER_NODE": "1,2"}, None, [1]),
        ({**OF_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, None, [1]),
        ({**OF_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, None, None),
    ],
)
def test_launchers_local_device_ids(
    variables: dict[str, str],
    given: int | Sequence[int] | None,
    expected: list[int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (*SECOND, *OF_SLURM, *OF_MPI, *NAMES):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(client, "kind_of_devices", lambda: "accelerators")
    assert cluster_env.find(None, None, None, given, 1)[1] == expected


def test_launchers_cpu_is_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECOND.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(client, "kind_of_devices", lambda: "the CPU")
    assert cluster_env.find(None, None, None, None, 1)[1] is None


def test_launchers_invalid_jax_local_device_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_LOCAL_DEVICE_IDS", "0,b")
    with pytest.raises(ValueError, match=r"JAX_LOCAL_DEVICE_IDS is '0,b'(.|\n)*Hint: set it to"):
        cluster_env.find(None, None, None, None, 1)


JOINED = """
import sys, xfunc as xf
from xfunc.backends.pjrt import client
client.kind_of_devices = lambda: "accelerators"
xf.distributed.initialize(local_device_ids=[*map(int, sys.argv[1:])] or None)
from jax._src.xla_bridge import CUDA_VISIBLE_DEVICES
print(CUDA_VISIBLE_DEVICES.value)
"""


def test_initialize_gives_jax_one_gpu_per_torchrun_process(fresh: Server) -> None:
    env = {**TORCHRUN, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "JAX_PLATFORMS": "cpu"}
    env |= {"MASTER_PORT": str(free_port()), "JAX_LOCAL_DEVICE_IDS": "", "CUDA_VISIBLE_DEVICES": ""}
    running = [fresh.start(JOINED, env={**env, "RANK": k, "LOCAL_RANK": k}) for k in "01"]
    for k, process in enumerate(running):
        done = process.wait()
        assert done.stdout.splitlines()[-1:] == [str(k)], done.stderr


@pytest.mark.parametrize(("given", "variable"), [("3", ""), ("", "2,5"), ("3", "2,5")])
def test_initialize_gives_jax_chosen_device_ids(fresh: Server, given: str, variable: str) -> None:
    env = {**SECOND, "RANK": "0", "WORLD_SIZE": "1", "JAX_PLATFORMS": "cpu"}
    env |= {"MASTER_PORT": str(free_port()), "JAX_LOCAL_DEVICE_IDS": variable}
    done = fresh.run(JOINED, *given.split(), env=env)
    assert done.stdout.splitlines()[-1:] == [given or variable], done.stderr
