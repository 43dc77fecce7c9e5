"""Products take rows in the dimensions that they had before torch merged them."""

import pytest
import torch
import torch.nn.functional as F

from xfunc.hlo import Module, verify
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.passes.merged import keep_rows_apart

from .conftest import Lower, Run

pytestmark = pytest.mark.quick


def apart(module: Module, dims: int = 3, devices: int = 2) -> Module:
    """With rows that are divided in the second dimension of so many."""
    found = Module.from_bytes(module.to_bytes())
    for i in (i for c in found.proto.computations for i in c.instructions):
        if i.opcode == "parameter" and len(i.shape.dimensions) == dims:
            i.sharding.type = pb.OpSharding.OTHER
            i.sharding.tile_assignment_dimensions[:] = [1, devices, *[1] * (dims - 2)]
            i.sharding.tile_assignment_devices[:] = range(devices)
    keep_rows_apart(found.proto)
    for i in (i for c in found.proto.computations for i in c.instructions):
        i.ClearField("sharding")
    found = Module(found.proto)
    verify(found)
    return found


def products(module: Module) -> list[tuple[int, ...]]:
    return [i.shape.dims for c in module.computations for i in c.instructions if i.opcode == "dot"]


@pytest.mark.parametrize("lead", [(2, 3), (2, 1, 3)], ids=str)
def test_rows_of_a_product_stay_apart(lower: Lower, run: Run, lead: tuple[int, ...]) -> None:
    x = torch.arange(float(torch.Size(lead).numel() * 4)).reshape(*lead, 4) / 10
    w = torch.linspace(-1, 1, 20).reshape(5, 4)
    module = lower(lambda x, w: [F.linear(x, w).tanh()], [x, w])
    found = apart(module, len(lead) + 1)
    assert products(found) == [(*lead, 5)]
    assert products(apart(module, len(lead) + 1, 1)) == [(6, 5)]
    torch.testing.assert_close(run(found, [x, w]), [F.linear(x, w).tanh()])


@pytest.mark.parametrize("turned", [False, True])
def test_rows_that_a_product_sums_stay_apart(lower: Lower, run: Run, turned: bool) -> None:
    """The gradient of a weight; `g` has its features in heads."""
    x, g = torch.linspace(-1, 1, 24).reshape(2, 3, 4), torch.linspace(0, 2, 36).reshape(2, 3, 2, 3)

    def gradient(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        rows, cols = g.reshape(6, 6), x.reshape(6, 4)
        return cols.T @ rows if turned else rows.T @ cols

    module = lower(lambda x, g: [gradient(x, g)], [x, g])
    found = apart(module)
    (dot,) = [i for c in found.computations for i in c.instructions if i.opcode == "dot"]
    assert list(dot.proto.dot_dimension_numbers.lhs_contracting_dimensions) == [0, 1]
    torch.testing.assert_close(run(found, [x, g]), [gradient(x, g)])


def test_products_of_other_matrices_stay(lower: Lower) -> None:
    x = torch.zeros(2, 6, 2)
    across = lower(lambda x: [x.reshape(4, 6) @ x.reshape(6, 4)], [x])  # Rows are cut otherwise.
    assert products(apart(across)) == products(across) == [(4, 4)]
    batched = lower(lambda x: [x @ x.mT], [x])
    assert products(apart(batched)) == products(batched) == [(2, 6, 6)]
