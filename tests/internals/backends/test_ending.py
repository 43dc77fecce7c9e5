"""`xfunc.backends.failures`: how long a process waits for the others at its end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.processes.test_distributed_ending import PROGRAM, ends
from tests.support.fresh import Server
from tests.support.processes import free_port
from xfunc.backends import failures

IMPATIENT = f"""
import sys
from xfunc.backends import failures
if sys.argv[2] == "1":
    failures._PATIENCE = failures._SHORT = 0.1
{PROGRAM}
"""


def test_ending_waits_for_limited_time(fresh: Server) -> None:
    (first, _, said), (second, _, why) = ends(fresh, "early", IMPATIENT)
    assert (first, second) == (failures.LOST, failures.LOST), said + why
    assert "process 1 failed: it came to its end 0.1 seconds ago, and others did not." in said
    assert "error: the others did not end within 0.1 seconds." in why


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ("status", 3, "it exited with status 3, and others did not end within 0.1 seconds."),
        ("another hook", 1, "KeyError: 'another hook'."),
    ],
)
def test_ending_by_status_or_other_hook_is_told(how: str, status: int, reason: str) -> None:
    address, env = f"127.0.0.1:{free_port()}", {**os.environ, "JAX_PLATFORMS": "cpu"}
    commands = [[sys.executable, "-c", IMPATIENT, address, str(k), how] for k in range(2)]
    running = [
        subprocess.Popen(c, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for c in commands  # The server of the other tests catches SystemExit itself.
    ]
    (_, said), (_, why) = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [failures.LOST, status], said + why
    assert f"process 1 failed: {reason}" in said
