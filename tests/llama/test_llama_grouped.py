"""`grouped.layout` gives each row of an expert a place; products of matrices by groups of rows."""

import pytest
import torch

import xfunc as xf
from examples.llama.model import grouped, kernels


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


@pytest.mark.parametrize("kernel", [False, True])
def test_product_matches_each_row_with_its_matrix(
    kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One matrix has no rows, and some rows have no matrix."""
    monkeypatch.setattr(kernels, "PLATFORM", "cpu")
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(-1, 6, (50, 3), generator=generator)
    chosen[chosen == 2] = 3
    sizes = (50, 40), (5, 24, 40), (50, 3, 24)
    x, weights, ct = (torch.randn(size, generator=generator) for size in sizes)

    def ours(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        where = grouped.layout(chosen, 5, 8, kernel=kernel)
        made = grouped.product(grouped.to_places(x, where.places), weights, where)
        return (grouped.from_places(made, where.places) * ct).sum()

    def plain(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        of_rows = torch.einsum("ti,tcoi->tco", x, weights[chosen.clamp(0, 4)])
        here = (chosen >= 0) & (chosen < 5)
        return (of_rows * ct * here[..., None]).sum()

    got = xf.device_get(xf.jit(xf.value_and_grad(ours, (0, 1)))(x, weights))
    grads, value = torch.func.grad_and_value(plain, (0, 1))(x, weights)
    torch.testing.assert_close(got, (value, grads), rtol=5e-6, atol=5e-5)
    assert not got[1][1][2].any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "dtype", "chip"),
    [
        ((4096, 14336), torch.bfloat16, "v5e"),
        ((14336, 4096), torch.float32, "v6e"),
        ((2048, 16), torch.bfloat16, "v6e"),
        ((16, 768), torch.float32, "v5e"),
    ],
    ids=str,
)
def test_product_by_kernel_compiles_for_tpus(
    sizes: tuple[int, int], dtype: torch.dtype, chip: str
) -> None:
    """Its tiles fit into the memory of a core, also for the few features of adapters."""

    def run(x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        where = grouped.layout(chosen, 4, 256, kernel=True)
        return grouped.product(grouped.to_places(x, where.places), weights, where).square().sum()

    into, out = sizes
    shapes = xf.ShapeDtypeStruct((1024, into), dtype), xf.ShapeDtypeStruct((4, out, into), dtype)
    chosen = xf.ShapeDtypeStruct((1024, 2), torch.int64)
    lowered = xf.jit(xf.grad(run, (0, 1))).lower(*shapes, chosen)
    text = lowered.compile(target=f"tpu:{chip}:1x1").as_text()
    assert text is not None
    assert text.count('custom_call_target="tpu_custom_call"') == 3
