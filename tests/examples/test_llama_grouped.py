"""Where the rows of each expert are put."""

import pytest
import torch

import xfunc as xf
from examples.llama import grouped


@pytest.mark.parametrize(
    ("tokens", "choices", "matrices", "block"),
    [(1, 1, 1, 1), (7, 2, 3, 4), (300, 5, 4, 16), (1024, 3, 6, 64)],
)
def test_every_row_has_a_place(tokens: int, choices: int, matrices: int, block: int) -> None:
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(-1, matrices + 1, (tokens, choices), generator=generator)
    where = xf.device_get(xf.jit(lambda c: grouped.layout(c, matrices, block))(chosen))
    here = (chosen >= 0) & (chosen < matrices)
    assert torch.equal(where.here, here)
    rows, places = torch.arange(chosen.numel())[here.flatten()], where.place[here]
    assert places.unique().numel() == rows.numel() == where.filled.sum()
    assert torch.equal(where.source[places].long(), rows)
    assert where.filled[places].all()
    assert torch.equal(where.matrix[places // block].long(), chosen[here])
    # The rows of a matrix follow each other in their order, in as few blocks as hold them.
    for matrix in range(matrices):
        mine = where.place[chosen == matrix]
        assert torch.equal(mine - mine[:1], torch.arange(mine.numel()))
    counts = torch.stack([(chosen == k).sum() for k in range(matrices)])
    assert where.used == ((counts + block - 1) // block).sum()
