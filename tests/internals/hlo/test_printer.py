"""The printer of modules."""

from __future__ import annotations

import pytest

from tests.support.fresh import Server

pytestmark = pytest.mark.quick


def test_module_printed_before_any_trace(fresh: Server) -> None:
    code = """if True:
        import torch, xfunc as xf
        from xfunc.hlo import Builder, Shape
        before = torch.nn.GRU, torch.nn.utils.clip_grad_norm_
        b = Builder("m")
        body = b.computation("m")
        x = body.parameter(Shape(torch.float32, (2,)))
        print("HloModule m" in str(b.build(body.build(body.tuple([x])))))
        print(before == (torch.nn.GRU, torch.nn.utils.clip_grad_norm_))
    """
    done = fresh.run(code)
    assert done.stdout.split() == ["True", "True"], done.stderr
