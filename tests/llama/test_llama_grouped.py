"""`grouped.layout` gives each row of an expert a place; products of matrices by groups of rows."""

import pytest
import torch

import xfunc as xf
from examples.llama import grouped


@pytest.mark.parametrize(
    ("tokens", "choices", "matrices", "block"),
    [(1, 1, 1, 1), (7, 2, 3, 4), (300, 5, 4, 16), (1024, 3, 6, 64)],
)
def test_layout_places_every_row(tokens: int, choices: int, matrices: int, block: int) -> None:
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


def test_product_gradient_transposes_no_stack() -> None:
    """libtpu would do that for all layers at once, and keep the result."""

    def run(x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        where = grouped.layout(chosen, 6, 4)
        return grouped.product(grouped.to_blocks(x, where), weights, where).square().sum()

    shapes = (torch.zeros(9, 40), torch.zeros(6, 24, 40), torch.zeros(9, 2, dtype=torch.int64))
    text = xf.jit(xf.grad(run, (0, 1))).lower(*shapes).as_text()
    assert "[6,24,40]" in text
    assert "[6,40,24]" not in text
