"""`xfunc.backends.torch_xla.strangers`: tensors of torch_xla that are not of xfunc's traces."""

from __future__ import annotations

import pytest

from tests.support.fresh import Server


@pytest.mark.slow
def test_lazy_tensors_held_by_graph_only(fresh: Server) -> None:
    """Python finds the objects of some, which are freed with the graph; torch warns if not told."""
    code = """
import gc, torch, torch_xla, warnings
warnings.simplefilter("error")
from xfunc.backends.torch_xla import strangers
import xfunc as xf

x = torch.ones(3, requires_grad=True)
saved = (x * 2).detach()
y = (x * saved).sum()
del saved
ones = torch.ones(3, device="xla")
graph = (ones.clone().requires_grad_() * (ones + 1)).sum()
xf.devices()
found = strangers.lazy_tensors()
del y, graph
gc.collect()
assert all(t.cpu().shape in ((), (3,)) for t in found)
del found
"""
    found = fresh.run(code)
    assert (found.returncode, found.stderr) == (0, "")
