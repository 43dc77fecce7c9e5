"""On the CPU, a client needs more threads than devices: xfunc sees to it, or says so."""

import pytest

from tests.support.fresh import Server


def test_nproc_is_raised_for_several_devices(fresh: Server) -> None:
    """With a thread for each device, or fewer, collectives would deadlock."""
    program = """
import os, torch, xfunc as xf
mesh = xf.make_mesh((8,), "x")
x = xf.device_put(torch.ones(8, 8), xf.NamedSharding(mesh, xf.P("x")))
f = xf.jit(lambda a: (a @ a.T).sum() + (a.T @ a).mean())
for _ in range(20):
    y = f(x)
print(y.item(), os.environ["NPROC"])
"""
    for given in ("8", "1000"):
        done = fresh.run(program, env={"CPU_NUM_DEVICES": "8", "NPROC": given})
        assert done.returncode == 0, done.stderr
        value, threads = done.stdout.split()
        assert float(value) == 520.0
        assert int(threads) == max(int(given), 32)


def test_set_cpu_devices_after_import_of_jax(fresh: Server) -> None:
    program = """
import sys, jax, xfunc as xf
xf.config.set_compilation_cache_dir(sys.argv[1])
xf.config.set_cpu_devices(8)
xf.config.set_backend("pjrt")
print(xf.device_count(), jax.device_count())
"""
    done = fresh.run(program, "/nowhere")
    assert (done.returncode, done.stdout) == (0, "8 8\n"), done.stderr


@pytest.mark.torch_xla
def test_torch_xla_started_with_too_few_threads(fresh: Server) -> None:
    program = """
import torch_xla
torch_xla._XLAC._xla_num_global_devices()
import xfunc as xf
xf.make_mesh((8,), "x")
"""
    done = fresh.run(program, env={"CPU_NUM_DEVICES": "8", "NPROC": "2"})
    assert done.returncode == 1
    assert "torch_xla started before xfunc, with 8 CPU devices and too few threads" in done.stderr
    assert "set the environment variable NPROC=32" in done.stderr
