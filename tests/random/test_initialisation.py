"""Modules made inside traced functions, with `xf.random.implicit`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import xfunc as xf

Tensor = torch.Tensor


def _make(key: Tensor) -> dict[str, Tensor]:
    with xf.random.implicit(key):
        layers = {"linear": nn.Linear(64, 32), "embedding": nn.Embedding(50, 32, padding_idx=0)}
        return {
            f"{n}.{k}": p.detach()
            for n, layer in layers.items()
            for k, p in layer.named_parameters()
        }


def test_jit_of_the_initialisation_of_layers() -> None:
    made = xf.device_get(xf.jit(_make)(xf.random.key(0)))
    weight, rows = made["linear.weight"], made["embedding.weight"]
    assert 0.9 / 8 < weight.max() <= 1 / 8
    assert -1 / 8 <= weight.min() < -0.9 / 8
    assert made["linear.bias"].abs().max() <= 1 / 8
    assert not rows[0].any()
    assert abs(rows[1:].std() - 1) < 0.1
    again = xf.device_get(xf.jit(_make)(xf.random.key(0)))
    other = xf.device_get(xf.jit(_make)(xf.random.key(1)))
    torch.testing.assert_close(again, made)
    assert not torch.equal(other["linear.weight"], weight)


def test_initialisation_outside_of_traces_draws_the_same_numbers() -> None:
    """torch shows these to a mode as one call, and newer ones draw until all values lie within."""

    def make(key: Tensor) -> list[Tensor]:
        with xf.random.implicit(key):
            made = [*nn.Linear(4, 3).parameters(), *nn.Embedding(5, 2).parameters()]
            made += [nn.init.trunc_normal_(torch.empty(5)), nn.init.orthogonal_(torch.empty(3, 3))]
            return [p.detach() for p in made]

    want = xf.device_get(xf.jit(make)(xf.random.key(0)))
    torch.testing.assert_close(make(xf.random.key(0)), want)


def test_initialisation_with_a_generator_outside_of_traces() -> None:
    def draw() -> Tensor:
        return nn.init.trunc_normal_(torch.empty(5), generator=torch.Generator().manual_seed(0))

    with xf.random.implicit(xf.random.key(0)):
        found = draw()
    assert torch.equal(found, draw())


class _Own(nn.Module):
    """Parameters made and filled in the other ways that modules use."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled = nn.Parameter(torch.randn(3, 2) * 0.1)
        self.filled = nn.Parameter(torch.empty(3, 2))
        with torch.no_grad():
            self.filled.normal_()
            self.filled[0].fill_(7.0)
        self.data = nn.Parameter(torch.empty(4, 2))
        self.data.data[0].zero_()
        self.data.data.uniform_(-1, 1)
        self.data.data[1].zero_()


MODULES = {
    "layers": lambda: nn.Sequential(
        nn.Linear(3, 2), nn.Embedding(5, 2, padding_idx=0), nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
    ),
    "LSTM": lambda: nn.LSTM(2, 3),
    "transformer": lambda: nn.TransformerEncoderLayer(4, 2, 8),
    "own": _Own,
}


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("name", MODULES)
def test_vmap_of_the_initialisation_over_keys(name: str) -> None:
    def make(key: Tensor) -> dict[str, Tensor]:
        with xf.random.implicit(key):
            module = MODULES[name]()
        assert all(p.requires_grad and p.is_leaf for p in module.parameters())
        return {k: p.detach() for k, p in module.named_parameters()}

    keys = xf.random.split(xf.random.key(0), 3)
    made = xf.device_get(xf.vmap(make)(keys))
    one = xf.device_get(xf.jit(make)(keys[1]))
    torch.testing.assert_close({k: v[1] for k, v in made.items()}, one)


@pytest.mark.parametrize("name", ["trunc_normal_", "orthogonal_", "sparse_"])
def test_vmap_of_an_initialiser_over_keys(name: str) -> None:
    def run(key: Tensor) -> Tensor:
        with xf.random.implicit(key):
            weight = nn.Parameter(torch.empty(6, 4))
            return getattr(nn.init, name)(weight, *((0.5,) if name == "sparse_" else ())).detach()

    keys = xf.random.split(xf.random.key(0), 2)
    mapped, one = xf.vmap(run)(keys).cpu(), xf.jit(run)(keys[1]).cpu()
    torch.testing.assert_close(mapped[1], one)
    assert not torch.equal(mapped[0], one)


def test_vmap_that_fills_a_parameter_from_outside() -> None:
    def fill(keys: Tensor) -> Tensor:
        weight = nn.Parameter(torch.zeros(2, 2))

        def run(key: Tensor) -> Tensor:
            with xf.random.implicit(key):
                return nn.init.normal_(weight).detach()

        return xf.vmap(run)(keys)

    with pytest.raises(xf.errors.PurityError, match="the mapped function did not make itself"):
        xf.jit(fill)(xf.random.split(xf.random.key(0), 2))


def test_eval_shape_of_the_initialisation() -> None:
    shapes = xf.eval_shape(_make, xf.random.key(0))
    assert tuple(shapes["linear.weight"].shape) == (32, 64)


BOUNDS = {  # of the values drawn for [40, 50]
    "uniform_": (0.0, 1.0),
    "kaiming_uniform_": (-((6 / 50) ** 0.5), (6 / 50) ** 0.5),
    "xavier_uniform_": (-((6 / 90) ** 0.5), (6 / 90) ** 0.5),
    "constant_": (3.0, 3.0),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_range_of_an_initialiser(name: str) -> None:
    given = (3.0,) if name == "constant_" else ()

    def run(key: Tensor) -> Tensor:
        with xf.random.implicit(key):
            return getattr(nn.init, name)(torch.empty(40, 50), *given)

    drawn, (low, high) = xf.jit(run)(xf.random.key(2)).cpu(), BOUNDS[name]
    slack = 0.01 * (high - low)
    assert low - 1e-6 <= drawn.min() <= low + slack
    assert high - slack <= drawn.max() <= high + 1e-6


@pytest.mark.parametrize("name", ["normal_", "kaiming_normal_", "xavier_normal_"])
def test_deviation_of_an_initialiser(name: str) -> None:
    def run(key: Tensor) -> Tensor:
        with xf.random.implicit(key):
            return getattr(nn.init, name)(torch.empty(40, 50))

    want = {"normal_": 1.0, "kaiming_normal_": (2 / 50) ** 0.5, "xavier_normal_": (2 / 90) ** 0.5}
    drawn = xf.jit(run)(xf.random.key(3)).cpu()
    assert abs(drawn.std() / want[name] - 1) < 0.1


def test_without_a_key_the_error_names_the_line() -> None:
    with pytest.raises(xf.errors.PurityError, match=r"uniform_ draws[\s\S]*test_initialisation.py"):
        xf.jit(lambda x: nn.Linear(3, 2)(x))(torch.ones(3))
