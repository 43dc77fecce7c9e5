"""The program on the hosts of a TPU pod, which are stood in for."""

from __future__ import annotations

import pytest

import xfunc as xf
from examples.llama import hosts
from tests.backends.test_launchers import ANSWERS, port
from tests.support.fresh import Server

JOINED = """
from examples.llama import hosts
hosts._has_tpu = lambda: True
hosts.join()
import xfunc as xf
print(xf.process_index(), xf.process_count(), xf.distributed.is_initialized(), hosts.are_several())
hosts.leave()
"""


def test_jax_connects_the_hosts_of_a_pod(fresh: Server) -> None:
    at, running = str(port()), []
    for k in range(2):
        env = {"TEST_PORT": at, "TEST_INDEX": str(k), "JAX_PLATFORMS": "cpu"}
        env |= {"XFUNC_BACKEND": "pjrt", "CPU_NUM_DEVICES": "1"}
        running.append(fresh.start(ANSWERS["Cloud TPU"] + JOINED, env=env))
    for k, process in enumerate(running):
        done = process.wait()
        assert done.stdout.splitlines()[-1:] == [f"{k} 2 True True"], done.stderr


def test_a_tpu_by_itself(fresh: Server) -> None:
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
        ("", True, 2, True, True),
        ("", False, 1, True, False),
    ],
)
def test_only_torch_xla_is_asked_for_the_hosts(
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
