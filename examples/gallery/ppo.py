"""Proximal policy optimization: a pole on a cart, balanced after some seconds of training.

The environment is a pure function of state and action: `xf.vmap` makes many of them, and `xf.scan`
plays them. Advantages are a scan backwards in time, and the updates a scan over shuffled batches of
the steps, so all rounds of the training are one program.

In JAX: `gymnax` environments under `jax.vmap` and `jax.lax.scan`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import xfunc as xf
from examples.gallery._cart_pole import start
from examples.gallery._episodes import Step, advantages, play, policy, steps_up
from examples.gallery._perceptron import Params, init

CLIP, ENVIRONMENTS, STEPS, ROUNDS, BATCHES = 0.2, 64, 64, 64, 16


class Result(NamedTuple):
    """Mean numbers of steps that the pole stays up, 500 at most, without and with training."""

    before: float
    after: float


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
    """In each round, play all environments, then train on the steps four times."""
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
