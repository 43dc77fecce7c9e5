"""Episodes of the pole on the cart: a policy plays them, and its actions are rated.

Source: Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage
Estimation", 2015.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import xfunc as xf
from examples.gallery._cart_pole import move, start
from examples.gallery._perceptron import Params, perceptron

GAMMA, LAMBDA = 0.99, 0.95


class Step(NamedTuple):
    """One step of an environment, or a batch of them."""

    state: Tensor
    action: Tensor
    log_prob: Tensor
    value: Tensor
    fell: Tensor


def policy(params: Params, state: Tensor) -> tuple[Tensor, Tensor]:
    """Log probabilities of the two actions, and the value, of states [..., 4]."""
    out = perceptron(params, state)
    return out[..., :2].log_softmax(-1), out[..., 2]


def play(params: Params, state: Tensor, key: Tensor) -> tuple[Tensor, Step]:
    """One step of one environment, which starts anew where the pole falls."""
    a, b = xf.random.split(key)
    log_probs, value = policy(params, state)
    action = xf.random.categorical(a, log_probs)
    new_state, fell = move(state, action)
    step = Step(state, action, log_probs[action], value, fell)
    return torch.where(fell, start(b), new_state), step


def advantages(steps: Step, last_value: Tensor) -> Tensor:
    """Generalized advantage estimates [time, environment]; each step is worth 1."""

    def back(carry: tuple[Tensor, Tensor], step: Step) -> Any:
        next_value, next_advantage = carry
        discount = GAMMA * ~step.fell
        delta = 1.0 + discount * next_value - step.value
        advantage = delta + discount * LAMBDA * next_advantage
        return (step.value, advantage), advantage

    return xf.scan(back, (last_value, torch.zeros_like(last_value)), steps, reverse=True)[1]


def steps_up(params: Params, key: Tensor) -> Tensor:
    """The number of steps, up to 500, before the pole falls, by the more probable actions."""

    def step(carry: tuple[Tensor, Tensor], _: None) -> Any:
        state, up = carry
        state, fell = move(state, policy(params, state)[0].argmax())
        return (state, up & ~fell), up

    return xf.scan(step, (start(key), torch.tensor(True)), length=500)[1].sum()
