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
