"""`per_chip`: the shapes of a program's values on one of many chips."""

import pytest
import torch

import xfunc as xf
from xfunc import NamedSharding, P
from xfunc.hlo.flat import inline_calls
from xfunc.hlo.spmd.shard import per_chip

MESH = xf.AbstractMesh((2, 4), ("x", "y"))


def S(*shape, spec):
    return xf.ShapeDtypeStruct(shape, torch.float32, NamedSharding(MESH, spec))


SHARES = {
    "elementwise": (lambda a, b: torch.sin(a) * b, ("x",), (None, "y"), (4, 2)),
    "once for each axis": (lambda a, b: a + b, ("x",), (None, "x"), (4, 8)),
    "matmul": (lambda a, b: a @ b, ("x",), (None, "y"), (4, 2)),
    "contracted": (lambda a, b: a @ b, (None, "x"), ("x", "y"), (8, 2)),
    "transpose": (lambda a, b: (a + b).T, ("x", "y"), (), (2, 4)),
    "sum": (lambda a, b: (a + b).sum(0), ("x", "y"), (), (2,)),
    "leading split": (lambda a, b: (a + b).reshape(2, 4, 8), (("x", "y"),), (), (1, 1, 8)),
    "merged": (lambda a, b: (a + b).reshape(64), ("x",), (), (32,)),
    "cat": (lambda a, b: torch.cat([a, b]), (None, "y"), (None, "y"), (16, 2)),
    "constraint": (
        lambda a, b: xf.with_sharding_constraint(a @ b, NamedSharding(MESH, P("y", "x"))),
        (),
        (),
        (2, 4),
    ),
    "rows": (lambda a, b: a[b[:, 0].long()], (None, "y"), ("x",), (4, 2)),
    "tied": (lambda a, b: xf.shard_as(torch.zeros(8, 8), a + b)[0], ("x", "y"), (), (4, 2)),
    "cond": (lambda a, b: xf.cond(b.sum() > 0, torch.sin, torch.cos, a), ("x",), (), (4, 8)),
    "not known": (lambda a, b: torch.linalg.cholesky(a @ b), ("x",), (), (8, 8)),
    "scan": (
        lambda a, b: xf.scan(lambda c, r: (c + r.sum(), c), b[0], a)[1],
        ("x",),
        (None, "y"),
        (8, 2),
    ),
}


@pytest.mark.parametrize("name", SHARES)
def test_per_chip_shape_of_result(name):
    f, a, b, expected = SHARES[name]
    module = xf.jit(f).lower(S(8, 8, spec=P(*a)), S(8, 8, spec=P(*b))).module
    root = per_chip(inline_calls(module)).entry.root
    assert (root.operands[0] if root.opcode == "tuple" else root).shape.dims == expected
