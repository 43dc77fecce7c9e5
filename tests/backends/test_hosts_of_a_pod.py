"""Which runtime joins the hosts of a TPU pod; stand-ins are the chips and what torch_xla says."""

from __future__ import annotations

import pytest

from tests.backends.test_launchers import port
from tests.support.fresh import Server

WHO_JOINS = """
import glob, os, sys
found = glob.glob
glob.glob = lambda pattern: ["/dev/accel0"] if pattern == "/dev/accel*" else found(pattern)
import xfunc as xf
from xfunc.backends import active
from xfunc.backends.pjrt import client
from xfunc.backends.torch_xla import backend
backend.make_runtime().process_count = lambda: 1
client.join = lambda *given: (print("JAX joins", flush=True), os._exit(0))
if sys.argv[1]:
    xf.config.set_backend(sys.argv[1])
xf.distributed.initialize("127.0.0.1:0" + sys.argv[2], 1, 0)
print(active.chosen(), "joins", active.tracer().has_started())
"""


def who_joins(fresh: Server, backend: str, variables: dict[str, str | None]) -> str:
    """What is said by a process that is told `backend`, with variables (None: unset)."""
    unset = [name for name, value in variables.items() if value is None]
    code = f"import os\nfor name in {unset}: os.environ.pop(name, None)\n" + WHO_JOINS
    env = {name: value for name, value in variables.items() if value is not None}
    env = {"JAX_PLATFORMS": "cpu", "XFUNC_BACKEND": "", **env}
    done = fresh.run(code, backend, port(), env=env)
    return (done.stdout.splitlines() or [done.stderr.strip()])[-1]


@pytest.mark.torch_xla
@pytest.mark.parametrize("device", ["TPU", None])
@pytest.mark.parametrize(
    ("backend", "variable"), [("torch_xla", ""), ("", "torch_xla"), ("", "auto")]
)
def test_torch_xla_does_where_it_is_chosen(
    fresh: Server, backend: str, variable: str, device: str | None
) -> None:
    variables = {"XFUNC_BACKEND": variable, "PJRT_DEVICE": device}
    assert who_joins(fresh, backend, variables) == "torch_xla joins False"


@pytest.mark.parametrize(
    ("backend", "variable", "device"),
    [
        ("", "", None),
        ("", "", "TPU"),
        ("", "pjrt", None),
        ("", "torch_xla", "CPU"),  # torch_xla's CPU is one process.
    ],
)
def test_else_jax_does(fresh: Server, backend: str, variable: str, device: str | None) -> None:
    variables = {"XFUNC_BACKEND": variable, "PJRT_DEVICE": device}
    assert who_joins(fresh, backend, variables) == "JAX joins"
