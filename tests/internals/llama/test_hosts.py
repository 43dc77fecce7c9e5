"""`examples.llama.parallel.hosts` where the hosts of a pod, and other processes, are replaced."""

from __future__ import annotations

from typing import Any

import pytest

import xfunc as xf
from examples.llama import options
from examples.llama.config import Run
from examples.llama.parallel import hosts
from tests.backends.test_launchers import ANSWERS
from tests.support.fresh import Server
from tests.support.processes import free_port as port

JOINED = """
from examples.llama.parallel import hosts
hosts._has_tpu = lambda: True
hosts.join()
import xfunc as xf
print(xf.process_index(), xf.process_count(), xf.distributed.is_initialized(), hosts.are_several())
hosts.leave()
"""


def test_join_connects_the_hosts_of_a_pod_through_jax(fresh: Server) -> None:
    at, running = str(port()), []
    for k in range(2):
        env = {"TEST_PORT": at, "TEST_INDEX": str(k), "JAX_PLATFORMS": "cpu"}
        env |= {"XFUNC_BACKEND": "pjrt", "CPU_NUM_DEVICES": "1"}
        running.append(fresh.start(ANSWERS["Cloud TPU"] + JOINED, env=env))
    for k, process in enumerate(running):
        done = process.wait()
        assert done.stdout.splitlines()[-1:] == [f"{k} 2 True True"], done.stderr


def test_join_on_a_single_tpu_host(fresh: Server) -> None:
    """JAX knows of no other hosts; the program runs as one process."""
    env = {"JAX_PLATFORMS": "cpu", "XFUNC_BACKEND": "pjrt", "CPU_NUM_DEVICES": "1"}
    done = fresh.run(JOINED, env=env)
    assert done.stdout.splitlines() == ["0 1 False False"], done.stderr


@pytest.mark.parametrize(
    ("backend", "chips", "count", "asks", "joins"),
    [
        ("pjrt", True, 2, False, True),
        ("pjrt", False, 1, False, False),
        ("torch_xla", True, 2, True, True),
        ("", True, 2, False, True),
        ("", False, 1, False, False),
    ],
)
def test_join_asks_only_torch_xla_for_the_process_count(
    backend: str,
    chips: bool,
    count: int,
    asks: bool,
    joins: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did: list[str] = []
    monkeypatch.setenv("XFUNC_BACKEND", backend)
    monkeypatch.setattr(hosts, "_has_tpu", lambda: chips)
    monkeypatch.setattr(xf, "process_count", lambda: did.append("ask") or count)
    monkeypatch.setattr(xf.distributed, "initialize", lambda: did.append("join"))
    hosts.join()
    assert did == ["ask"] * asks + ["join"] * joins


def test_check_same_settings_and_data_name_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of many processes, and many values."""
    said: list[Any] = []
    monkeypatch.setattr(hosts, "_of_all", lambda own: [own, *said])
    hosts.check_same_settings(Run())
    said += [options.texts(Run(seed=k // 4)) for k in range(9)]
    with pytest.raises(
        hosts.ProcessesDifferError,
        match=r"^seed is 0 in process 0, and 1 in process 5; seed is 0 in process 0, and 1 in "
        r"process 6; seed is 0 in process 0, and 1 in process 7: give all processes the same",
    ):
        hosts.check_same_settings(Run())
    said[:] = [{"text of the data": "b" * 99}]
    with pytest.raises(
        hosts.ProcessesDifferError,
        match=r"^text of the data is a in process 0, and b{80}\.\.\. in process 1: let all",
    ):
        hosts.check_same_data({"text": "a"})
