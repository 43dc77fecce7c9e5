"""`grouped.layout` gives each row of an expert a place; products of matrices by groups of rows."""

import pytest
import torch

import xfunc as xf
from examples.llama.model import grouped


@pytest.mark.parametrize(
    ("tokens", "choices", "matrices", "block"),
    [(1, 1, 1, 1), (7, 2, 3, 4), (300, 5, 4, 16), (1024, 3, 6, 64)],
)
def test_layout_places_every_row(tokens: int, choices: int, matrices: int, block: int) -> None:
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(-1, matrices + 1, (tokens, choices), generator=generator)
    where = xf.device_get(xf.jit(lambda c: grouped.layout(c, matrices, block))(chosen))
    places = where.places
    here = (chosen >= 0) & (chosen < matrices)
    assert torch.equal(places.here, here)
    rows, where_to = torch.arange(chosen.numel())[here.flatten()], places.place[here]
    assert where_to.unique().numel() == rows.numel() == places.filled.sum()
    assert torch.equal(places.source[where_to].long(), rows)
    assert places.filled[where_to].all()
    assert torch.equal(where.matrix[where_to // block].long(), chosen[here])
    # The rows of a matrix follow each other in their order, in as few blocks as hold them.
    for matrix in range(matrices):
        mine = places.place[chosen == matrix]
        assert torch.equal(mine - mine[:1], torch.arange(mine.numel()))
    counts = torch.stack([(chosen == k).sum() for k in range(matrices)])
    assert where.used == ((counts + block - 1) // block).sum()


@pytest.mark.parametrize("size", [1, 5, 64, 300])
def test_queues_hold_every_row_in_some_round(size: int) -> None:
    kinds = 4
    chosen = torch.randint(kinds, (100, 3), generator=torch.Generator().manual_seed(0))

    def part(chosen: torch.Tensor, start: torch.Tensor) -> grouped.Places:
        return grouped.queues(grouped.by_kind(chosen, kinds), size, start)

    of_round, seen = xf.jit(part), torch.zeros(300, dtype=torch.int64)
    for start in range(0, 300, size):
        found = xf.device_get(of_round(chosen, torch.tensor(start)))
        rows = found.source[found.filled].long()
        seen[rows] += 1
        assert torch.equal(found.here.flatten().nonzero()[:, 0], rows.sort().values)
        assert torch.equal(found.source[found.place[found.here]].long(), rows.sort().values)
        assert torch.equal(found.place[found.here] // size, chosen[found.here])
    assert (seen == 1).all()


def test_product_gradient_transposes_no_stack() -> None:
    """libtpu would do that for all layers at once, and keep the result."""

    def run(x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        where = grouped.layout(chosen, 6, 4)
        return grouped.product(grouped.to_places(x, where.places), weights, where).square().sum()

    shapes = (torch.zeros(9, 40), torch.zeros(6, 24, 40), torch.zeros(9, 2, dtype=torch.int64))
    text = xf.jit(xf.grad(run, (0, 1))).lower(*shapes).as_text()
    assert "[6,24,40]" in text
    assert "[6,40,24]" not in text
