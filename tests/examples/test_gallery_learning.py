"""Reinforcement and meta learning of the gallery."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.gallery import _cart_pole, _episodes, hyperparameters, maml, ppo
from examples.gallery._perceptron import init
from tests.support.gallery import Run


def test_ppo_balances_the_pole(run: Run) -> None:
    result = run(ppo)
    assert result.before < 100
    assert result.after > 300


def test_cart_pole_falls_by_random_pushes() -> None:
    params = xf.tree.map(torch.zeros_like, init(xf.random.key(0), 4, 8, 3))

    def step(state: torch.Tensor, key: torch.Tensor) -> Any:
        state, played = ppo.play(params, state, key)
        return state, played.fell

    state = _cart_pole.start(xf.random.key(1))
    _, fell = xf.scan(step, state, xf.random.split(xf.random.key(2), 20_000))
    assert 20 < 20_000 / fell.sum().item() < 25  # steps; 22 is what others measure, too


def test_cart_pole_conserves_energy_without_a_push() -> None:
    """A pole of mass 0.1 and length 1 that hangs from a cart of mass 1 swings for ever."""
    cart, pole, half, g = 1.0, 0.1, 0.5, 9.8
    state = torch.tensor([0.0, 0.3, 2.5, 0.4], dtype=torch.float64)

    def energy(state: torch.Tensor) -> torch.Tensor:
        _, speed, angle, spin = state
        joint = pole * half * speed * spin * angle.cos()
        kinetic = 0.5 * (cart + pole) * speed**2 + joint + 2 / 3 * pole * (half * spin) ** 2
        return kinetic + pole * g * half * angle.cos()

    def velocity(state: torch.Tensor) -> torch.Tensor:
        after, _ = _cart_pole.move(state, torch.tensor(0.5, dtype=state.dtype))
        return (after - state) / 0.02

    _, change = xf.jvp(energy, (state,), (velocity(state),))
    assert abs(change.item()) < 1e-12


def test_ppo_advantages_equal_the_sum() -> None:
    time, environments = 6, 3
    value, last = torch.randn(time, environments), torch.randn(environments)
    fell = torch.rand(time, environments) < 0.3
    none = torch.zeros(time, environments)
    got = ppo.advantages(ppo.Step(none, none, none, value, fell), last).cpu()
    following = torch.cat([value[1:], last[None]])
    deltas = 1 + _episodes.GAMMA * following * ~fell - value
    for t in range(time):
        want, weight = torch.zeros(environments), torch.ones(environments)
        for s in range(t, time):
            want = want + weight * deltas[s]
            weight = weight * _episodes.GAMMA * _episodes.LAMBDA * ~fell[s]
        torch.testing.assert_close(got[t], want)


def test_maml_learns_to_learn(run: Run) -> None:
    result = run(maml)
    assert result.after < 0.4 * result.before
    assert result.after < 0.3


def test_maml_meta_gradient_equals_finite_differences() -> None:
    params = xf.tree.map(lambda t: t.cpu().double(), init(xf.random.key(0), 1, 8, 8, 1))
    tasks = xf.tree.map(lambda t: t.cpu().double(), maml.sines(xf.random.key(1), 4))
    flat, unravel = xf.ravel_pytree(params)
    loss = xf.jit(lambda flat: maml.meta_loss(unravel(flat), tasks))
    gradient, size = xf.grad(loss)(flat), 1e-5
    for direction in torch.randn(3, len(flat), dtype=torch.float64):
        ends = [loss(flat + sign * size * direction).item() for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * size)
        torch.testing.assert_close((gradient @ direction).item(), slope, rtol=1e-6, atol=1e-9)


def test_hyperparameters_are_tuned_beyond_the_best_found(run: Run) -> None:
    searched, tuned = run(hyperparameters)
    torch.testing.assert_close(searched[0], tuned[0], rtol=1e-2, atol=0)
    assert searched.min() < searched[0] / 2
    assert tuned[-1] < searched.min()


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64")
def test_hyperparameters_gradient_equals_finite_differences() -> None:
    start = {"rate": -2.0, "decay": -5.0, "slope": 0.2, "delta": 0.5}
    settings = {name: torch.tensor(value) for name, value in start.items()}
    loss = xf.jit(lambda settings: hyperparameters.error(settings, xf.random.key(1), steps=30))
    gradient, size = xf.grad(loss)(settings), 1e-5
    for name, value in settings.items():
        ends = [loss({**settings, name: value + sign * size}).item() for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * size)
        torch.testing.assert_close(gradient[name].item(), slope, rtol=1e-5, atol=1e-9)
