"""Host calls of several devices as on an accelerator: JAX's own callbacks, here on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import xfunc as xf
from xfunc.backends.pjrt import callbacks
from xfunc.sharding import P

pytestmark = pytest.mark.usefixtures("pjrt")
Tensor = torch.Tensor
LIKE = xf.ShapeDtypeStruct((16,), torch.float32)


@pytest.mark.parametrize("shardy", [False, True], ids=["gspmd", "shardy"])
@pytest.mark.parametrize("sent", [False, True], ids=["gpu", "tpu"])
def test_pjrt_callbacks_calling_devices(
    sent: bool, shardy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "through_jax", lambda: True)
    monkeypatch.setattr(callbacks, "are_sent", lambda: sent)
    monkeypatch.setattr(xf.config, "use_shardy_partitioner", shardy)
    seen: list[tuple[int, ...]] = []

    def note(x: Tensor) -> Tensor:
        seen.append(tuple(x.shape))
        if x.max() > 100:
            raise ArithmeticError("too large")
        return x + 1

    def of(kind: str, x: Tensor) -> Tensor:
        if kind.startswith("each"):
            part = xf.ShapeDtypeStruct((2,), x.dtype)
            one = xf.io_callback if kind == "each, with an effect" else xf.pure_callback
            call = xf.shard_map(
                lambda x: one(note, part, x),
                mesh=mesh,
                in_specs=P("x"),
                out_specs=P("x"),
            )
            return call(x)
        once = xf.io_callback if kind == "effect" else xf.pure_callback
        return once(note, LIKE, x)

    mesh = xf.make_mesh((8,), ("x",))
    x = torch.arange(16.0)
    given = xf.device_put(x, xf.NamedSharding(mesh, P("x")))
    wanted = {
        "effect": [(16,)],
        "whole": [(16,)] * (1 if sent else 8),
        "each": [(2,)] * 8,
        "each, with an effect": [(2,)] * 8,
    }
    for kind, shapes in wanted.items():
        f = xf.jit(lambda x, kind=kind: of(kind, x))
        seen.clear()
        assert xf.device_get(f(given)).tolist() == (x + 1).tolist()
        xf.block_until_ready(None)
        assert seen == shapes, kind
        with pytest.raises(ArithmeticError, match="too large"):
            f(xf.device_put(7 * x, xf.NamedSharding(mesh, P("x"))))


LIBTPU = """
import dataclasses, jax, torch, xfunc as xf
from jax.experimental import topologies
from xfunc.backends.pjrt import callbacks, client, executable, shardings
from xfunc.sharding import P
count = client.jax().device_count()
devices = topologies.get_topology_desc("v6e:2x2", "tpu").devices[:count]
made, exported = [], executable._exported
def noted(*args):
    made.append(exported(*args))
    return made[-1]
executable._exported = noted
callbacks.through_jax = callbacks.are_sent = lambda: True
x = torch.arange(4.0)
plus = lambda x: xf.pure_callback(lambda x: x + 1, x, x)
twice = xf.jit(plus)
programs = [
    lambda x: twice(twice(x)),
    lambda x: x + xf.io_callback(lambda: torch.ones(4), x),
    lambda x: xf.scan(lambda c, _: (plus(c), None), x, length=3)[0],
]
if count > 1:
    mesh = xf.make_mesh((count,), ("x",))
    part = xf.ShapeDtypeStruct((1,), torch.float32)
    call = lambda x: xf.pure_callback(lambda x: x + 1, part, x)
    programs.append(xf.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
from jax._src.sharding_impls import GSPMDSharding
where = GSPMDSharding.get_replicated(tuple(devices))
if count == 1:
    where = jax.sharding.SingleDeviceSharding(devices[0])
for program in programs:
    made.clear()
    xf.block_until_ready(xf.jit(program)(x))
    for each in made:
        run = callbacks.calling(dataclasses.replace(each, platforms=("tpu",)))
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=where) for a in each.in_avals]
        with client.x64()(True), shardings.partitioner(shardy=False):
            text = jax.jit(run, keep_unused=True).lower(*shapes).compile().as_text()
    print(text.count("is_host_transfer=true") // 2)
"""


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("count", [1, 4])
def test_pjrt_callbacks_compile_with_libtpu(count: int) -> None:
    """It refuses a channel that is used twice, and a call that may be anywhere."""
    path = os.pathsep.join(p for p in sys.path if p)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TPU_", "XLA_", "JAX_"))}
    settings = {
        "PYTHONPATH": path,
        "XFUNC_BACKEND": "pjrt",
        "CPU_NUM_DEVICES": str(count),
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v6e-4",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
    done = subprocess.run(
        [sys.executable, "-c", LIBTPU], env=kept | settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["4", "2", "2", "2"][: 3 + (count > 1)]
