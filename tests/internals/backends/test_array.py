"""`xfunc.backends.pjrt.array`: what torch writes to tensors of JAX's runtime."""

from __future__ import annotations

from tests.support.fresh import Server


def test_array_sees_writes_of_torch_collectives(fresh: Server) -> None:
    """Programs did not see what they had written: their schemas do not say so."""
    code = """
import os, torch, torch.distributed as dist, xfunc as xf
xf.config.set_backend("pjrt")
dist.init_process_group("gloo", store=dist.HashStore(), world_size=1, rank=0)
made = lambda: xf.jit(lambda x: x + 1)(torch.zeros(2))
seen = lambda x: xf.jit(lambda x: x * 1)(x).tolist()
x, five = made(), torch.full((2,), 5.0)
dist.all_gather([x], five)
assert seen(x) == x.tolist() == [5, 5]
whole = made()
gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # before 2.13
gather(whole, five)
assert seen(whole) == whole.tolist() == [5, 5]
for write in (dist.all_reduce, lambda x: dist.broadcast(x, 0)):
    x = made()
    write(x)
    assert x._looked_at._array is None  # torch's memory counts from now on
    assert seen(x) == [1, 1]
"""
    done = fresh.run(code)
    assert done.returncode == 0, done.stderr
