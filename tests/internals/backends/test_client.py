"""`xfunc.backends.pjrt.client`: JAX as a library that may be missing."""

from __future__ import annotations

import inspect
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.fresh import Server
from xfunc.backends.pjrt import client

pytestmark = pytest.mark.usefixtures("pjrt")


def test_client_library_without_jax_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r"needs JAX(.|\n)*pip install jax"):
        inspect.unwrap(client.library)()


WAITS = """
import os
from xfunc.backends.pjrt import client
before = os.environ["XLA_FLAGS"]
client.jax().jit(lambda x: x + 1)(1)
assert os.environ["XLA_FLAGS"].startswith(before)
assert "timeout" not in os.environ["XLA_FLAGS"]  # torch_xla reads it later, and does not know it
"""


def test_client_waits_for_devices_that_are_late(fresh: Server, tmp_path: Path) -> None:
    """XLA would end the process on a machine that is too busy to run a device's thread."""
    flags = {"XLA_FLAGS": f"--xla_dump_to={tmp_path}", "CPU_NUM_DEVICES": "8"}
    done = fresh.run(WAITS, env=flags)
    assert done.returncode == 0, done.stderr
    (options,) = {file.read_text() for file in tmp_path.glob("*.debug_options")}
    waits = "xla_cpu_collective_call_terminate_timeout_seconds: 1000000000" in options
    # Before, no flag of XLA says how long devices wait for each other.
    assert waits == (tuple(map(int, version("jaxlib").split(".")[:2])) >= (0, 8))
