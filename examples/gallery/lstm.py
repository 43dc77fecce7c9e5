"""LSTM with masks: sequences of unequal length, padded to one size.

The cell is a function of one step, which `xf.scan` runs over time. Where a sequence has ended,
`torch.where` keeps the state, so the last state is that of the last real step. A length is data:
other lengths run the same program.

In JAX: `flax.linen.RNN(flax.linen.LSTMCell(...))` with `seq_lengths`.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import xfunc as xf
from examples.gallery._parity import sequences
from examples.gallery._training import minimize

Params = dict[str, Tensor]


class Result(NamedTuple):
    """Trained weights, and the accuracy on new sequences, some longer than all before."""

    params: Params
    accuracy: float
    accuracy_of_longer: float


def init(key: Tensor, features: int, hidden: int, classes: int) -> Params:
    """Random weights, with the gates in the order of `torch.nn.LSTM`: in, forget, cell, out."""
    a, b, c = xf.random.split(key, 3)
    return {
        "into": xf.random.normal(a, (4 * hidden, features)) / features**0.5,
        "again": xf.random.normal(b, (4 * hidden, hidden)) / hidden**0.5,
        "bias": torch.zeros(4 * hidden),
        "out": xf.random.normal(c, (classes, hidden)) / hidden**0.5,
    }


def last_hidden(params: Params, x: Tensor, lengths: Tensor) -> Tensor:
    """The hidden state [batch, hidden] at the end of each sequence of x [time, batch, features]."""

    def step(state: tuple[Tensor, Tensor], now: tuple[Tensor, Tensor]) -> Any:
        (h, c), (x, time) = state, now
        gates = x @ params["into"].T + h @ params["again"].T + params["bias"]
        i, f, g, o = gates.chunk(4, -1)
        new_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        new_h = o.sigmoid() * new_c.tanh()
        is_real = (time < lengths)[:, None]
        return (torch.where(is_real, new_h, h), torch.where(is_real, new_c, c)), None

    zeros = torch.zeros(x.shape[1], params["again"].shape[1], dtype=x.dtype)
    return xf.scan(step, (zeros, zeros), (x, torch.arange(len(x))))[0][0]


def main() -> Result:
    """Learn the parity of up to 10 bits, and test it on up to 20."""
    a, b, c = xf.random.split(xf.random.key(0), 3)

    def loss(params: Params, key: Tensor) -> Tensor:
        x, lengths, labels = sequences(key, 64, 10)
        return F.cross_entropy(last_hidden(params, x, lengths) @ params["out"].T, labels)

    def accuracy(longest: int) -> float:
        x, lengths, labels = sequences(c, 1000, longest)
        logits = last_hidden(params, x, lengths) @ params["out"].T
        return (logits.argmax(-1) == labels).float().mean().item()

    keys = xf.random.split(b, 600)
    params, _ = minimize(loss, init(a, 1, 32, 2), xf.optim.adam(1e-2), keys)
    result = Result(params, accuracy(10), accuracy(20))
    print(f"parity of up to 10 bits: {result.accuracy:.0%} right")
    print(f"of up to 20 bits: {result.accuracy_of_longer:.0%} right")
    return result


if __name__ == "__main__":
    main()
