"""`xfunc.backends.processes`: work that fails in one of them."""

from __future__ import annotations

import pytest

from tests.support.fresh import Server
from tests.support.processes import free_port

PROGRAM = """
import sys
import xfunc as xf
from tests.support.processes import raised
from xfunc.backends import active
address, index = sys.argv[1:]
def no_result():
    raise ArithmeticError("no result")
xf.distributed.initialize(address, 2, int(index))
if index == "1":
    active.runtime().block = no_result
print(raised(lambda: xf.distributed.sync_global_devices("after work")).splitlines()[0])
"""


@pytest.fixture
def pair(fresh: Server) -> list[str]:
    address, env = f"127.0.0.1:{free_port()}", {"JAX_PLATFORMS": "cpu", "CPU_NUM_DEVICES": "1"}
    running = [fresh.start(PROGRAM, address, k, env=env) for k in range(2)]
    return [process.wait().stdout.splitlines()[-1] for process in running]


@pytest.mark.slow
def test_sync_global_devices_after_failed_work(pair: list[str]) -> None:
    other, own = pair
    assert own == "ArithmeticError: no result"
    assert other.startswith("RuntimeError: sync_global_devices failed in process 1: ArithmeticErr")
