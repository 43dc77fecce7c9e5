"""Proximal policy optimization: a pole on a cart, balanced after some seconds of training.

The environment is a pure function of state and action: `xf.vmap` makes many of them, and `xf.scan`
plays them. Advantages are a scan backwards in time, and the updates a scan over shuffled batches of
what was played, so all rounds of the training are one program.

In JAX: `gymnax` environments under `jax.vmap` and `jax.lax.scan`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import xfunc as xf
from examples.gallery._cart_pole import move, start
from examples.gallery._perceptron import Params, init, perceptron

GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2
ENVIRONMENTS, STEPS, ROUNDS, BATCHES = 64, 64, 64, 16


class Result(NamedTuple):
    """Mean numbers of steps that the pole stays up, 500 at most, without and with training."""

    before: float
    after: float


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


def loss(params: Params, batch: tuple[Step, Tensor]) -> Tensor:
    """The clipped loss of the policy, and the square error of the values."""
    steps, advantage = batch
    log_probs, value = policy(params, steps.state)
    ratio = (log_probs.gather(-1, steps.action[:, None])[:, 0] - steps.log_prob).exp()
    scaled = (advantage - advantage.mean()) / advantage.std()
    gain = torch.minimum(ratio * scaled, ratio.clamp(1 - CLIP, 1 + CLIP) * scaled)
    return (0.5 * (value - steps.value - advantage).square() - gain).mean()


@xf.jit
def train(params: Params, key: Tensor) -> Params:
    """In each round, play all environments, then go through what was played four times."""
    rate = xf.optim.linear_schedule(3e-3, 0.0, ROUNDS * BATCHES)
    optimizer = xf.optim.chain(xf.optim.clip_by_global_norm(0.5), xf.optim.adam(rate))

    def learn(carry: Any, batch: tuple[Step, Tensor]) -> Any:
        params, state = carry
        updates, state = optimizer.update(xf.grad(loss)(params, batch), state)
        return (xf.optim.apply_updates(params, updates), state), None

    def one_round(carry: Any, key: Tensor) -> Any:
        params, state, environments = carry
        a, b = xf.random.split(key)
        keys = xf.random.split(a, STEPS * ENVIRONMENTS).reshape(STEPS, ENVIRONMENTS, 2)
        play_all = xf.vmap(lambda state, key: play(params, state, key))
        environments, steps = xf.scan(play_all, environments, keys)
        played = steps, advantages(steps, policy(params, environments)[1])
        orders = [xf.random.permutation(k, STEPS * ENVIRONMENTS) for k in xf.random.split(b, 4)]
        order = torch.cat(orders).reshape(BATCHES, -1)
        batches = xf.tree.map(lambda t: t.flatten(0, 1)[order], played)
        return (*xf.scan(learn, (params, state), batches)[0], environments), None

    a, b = xf.random.split(key)
    environments = xf.vmap(start)(xf.random.split(a, ENVIRONMENTS))
    carry = params, optimizer.init(params), environments
    return xf.scan(one_round, carry, xf.random.split(b, ROUNDS))[0][0]


def steps_up(params: Params, key: Tensor) -> Tensor:
    """The number of steps, up to 500, before the pole falls, by the more probable actions."""

    def step(carry: tuple[Tensor, Tensor], _: None) -> Any:
        state, up = carry
        state, fell = move(state, policy(params, state)[0].argmax())
        return (state, up & ~fell), up

    return xf.scan(step, (start(key), torch.tensor(True)), length=500)[1].sum()


def main() -> Result:
    """Train, and count the steps in new environments."""
    a, b, c = xf.random.split(xf.random.key(0), 3)
    params = init(a, 4, 64, 3)
    test = xf.jit(lambda p: xf.vmap(steps_up, (None, 0))(p, xf.random.split(c, 64)).float().mean())
    result = Result(test(params).item(), test(train(params, b)).item())
    print(f"the pole is up for {result.before:.0f} steps before training, {result.after:.0f} after")
    return result


if __name__ == "__main__":
    main()
