"""Scatters and gathers of sharded arrays, whose shardings XLA's partitioner has to reconcile."""

from __future__ import annotations

import pytest
import torch

import xfunc as xf
from xfunc.sharding import Mesh, NamedSharding, P, make_mesh


@pytest.fixture(params=["default", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "shardy":
        request.getfixturevalue("pjrt")
        monkeypatch.setattr(xf.config, "use_shardy_partitioner", True)


def put(x: torch.Tensor, mesh: Mesh, spec: P) -> torch.Tensor:
    return xf.device_put(x, NamedSharding(mesh, spec))


# The partitioner mistakes each of these for a scatter that it can divide along the positions.
WRONG = [
    ((2, 2, 2), (2, 16, 16), (2, 16, 16), 0, P("b", None, "a"), P(), P(None, "c", ("b", "a"))),
    ((2, 2, 2), (4, 4), (4, 8), 1, P(("b", "c")), P("c", ("b", "a")), P(("b", "a"), "c")),
    ((2, 2, 2), (8, 4, 4), (2, 4, 4), 0, P("c", None, "b"), P(None, "ac"), P("c", None, "b")),
    ((4, 2), (4, 16, 8), (8, 16, 8), 0, P(None, None, "a"), P("a", "b"), P(None, "b")),
]


@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize(("sizes", "base", "shape", "dim", "x", "i", "v"), WRONG)
def test_scatter_of_operands_sharded_apart(
    sizes: tuple[int, ...],
    base: tuple[int, ...],
    shape: tuple[int, ...],
    dim: int,
    x: P,
    i: P,
    v: P,
) -> None:
    mesh = make_mesh(sizes, tuple("abc"[: len(sizes)]))
    i = P(*(tuple(s) if isinstance(s, str) else s for s in i))
    random = torch.Generator().manual_seed(0)
    index = torch.randint(base[dim], shape, generator=random)
    args = torch.zeros(base), index, torch.randint(-9, 9, shape, generator=random).float()
    placed = [put(t, mesh, spec) for t, spec in zip(args, (x, i, v), strict=True)]

    def f(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        return [x.scatter_add(dim, i, v), x.scatter_reduce(dim, i, v, "amax")]

    for found, want in zip(xf.jit(f)(*placed), f(*args), strict=True):
        assert torch.equal(found.cpu(), want)
