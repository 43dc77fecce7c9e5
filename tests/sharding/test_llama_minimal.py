"""The example in one file on a mesh."""

import torch

import xfunc as xf
from examples.llama import minimal
from xfunc import NamedSharding, P

C = minimal.Config(layers=2, width=32, hidden=64, seq=16)


def test_minimal_step_on_a_mesh_equals_one_device() -> None:
    rows = next(minimal.batches(8, C))
    params = xf.device_get(xf.jit(minimal.init, static_argnums=1)(xf.random.key(0), C))
    state = xf.device_get(xf.jit(minimal.optimizer(10).init)(params))
    mesh = xf.make_mesh((8,), ("data",))
    last = xf.tree.map(lambda p: NamedSharding(mesh, P(*[None] * (p.ndim - 1), "data")), params)
    put = xf.device_put(params, last)
    there = xf.jit(minimal.optimizer(10).init)(put)
    given = xf.device_put(rows, NamedSharding(mesh, P("data")))
    for _ in range(2):
        params, state, loss = minimal.train_step(params, state, rows, c=C, steps=10)
        put, there, same = minimal.train_step(put, there, given, c=C, steps=10)
        torch.testing.assert_close(xf.device_get(same), xf.device_get(loss))
    # Adam divides by the size of a gradient, however small that is.
    torch.testing.assert_close(xf.device_get(put), xf.device_get(params), rtol=1e-4, atol=5e-4)
