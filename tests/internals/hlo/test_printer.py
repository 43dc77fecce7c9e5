"""The printer of modules."""

from __future__ import annotations

import pytest

from tests.support.fresh import Server

pytestmark = pytest.mark.quick


def test_module_printed_before_any_trace(fresh: Server) -> None:
    code = """if True:
        import torch, xfunc as xf
        from xfunc.graph import build
        from xfunc.graph.graph import Graph
        from xfunc.graph.node import array_type
        from xfunc.hlo import Module
        from xfunc.hlo.write import write
        before = torch.nn.GRU, torch.nn.utils.clip_grad_norm_
        x = build.parameters([array_type(torch.float32, (2,))])
        print("HloModule m" in str(Module.from_bytes(write(Graph("m", x, x)))))
        print(before == (torch.nn.GRU, torch.nn.utils.clip_grad_norm_))
    """
    done = fresh.run(code)
    assert done.stdout.split() == ["True", "True"], done.stderr
