"""How much arithmetic a model takes, by formula.

A multiply-add is two operations. Only matrix products count, and of causal attention the half that
has to be computed; published figures often count the whole square, which makes utilisation look
higher, by 4% for 405B and by 14% for 8B at 8192 positions.

Source: Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", appendix B, 2022.
"""

import math
from typing import NamedTuple

from xfunc.aot import CHIPS

from .parameters import weights
from .plan import Plan
from .sizes import Config


class Forward(NamedTuple):
    """Operations of a forward pass for one token: the layers' weights, attention, and the head."""

    layers: float
    attention: float
    head: float


def forward(config: Config, seq: int) -> Forward:
    """The operations of a forward pass per token, on average over a document of `seq` tokens."""
    seen = sum(_seen(seq, config.window if local else None) for local in config.local_layers)
    return Forward(
        layers=2.0 * _matrices(config),
        attention=2.0 * config.heads * (config.head_dim + config.value_dim) * seen,
        head=2.0 * config.vocab * config.hidden,
    )


def _matrices(config: Config) -> float:
    """The elements, in all layers, of the matrices that one token is multiplied with."""
    tree, e = weights(config), config.experts
    share = dict.fromkeys(("e_gate", "e_up", "e_down"), 1 if e is None else e.active / e.count)
    return sum(
        math.prod(weight.shape) * share.get(name, 1)
        for stack in config.stacks
        for name, weight in tree[stack.name].items()
        if weight.kind == "matrix"
    )


def _seen(seq: int, window: int | None) -> float:
    """Tokens that a token sees, on average; each takes a product with a key and a value."""
    if window is None or window >= seq:
        return seq / 2
    return window - window**2 / (2 * seq)


class Extent(NamedTuple):
    """How much of a model is trained."""

    learned: float = 1.0  # the fraction of weights in products with a gradient, without adapters
    compared: bool = False  # whether a reference model computes the tokens too


ALL = Extent()


def per_token(config: Config, seq: int, extent: Extent = ALL) -> float:
    """The operations that training takes per token.

    A backward pass costs as much as two forward passes, one of them for the gradients of weights.
    """
    once = forward(config, seq)
    passes = 2 + extent.learned + extent.compared
    return (3 + extent.compared) * once.attention + passes * (once.layers + once.head)


def utilisation(
    config: Config,
    seq: int,
    *,
    tokens_per_second: float,
    chips: int,
    chip: str,
    extent: Extent = ALL,
) -> float | None:
    """The fraction of the peak of chips, such as `v6e`, that training uses (MFU).

    None if the peak is unknown. Tokens per second are those of all chips together.
    """
    if chip not in CHIPS:
        return None
    return per_token(config, seq, extent) * tokens_per_second / (chips * CHIPS[chip].flops)


def padded(config: Config, plan: Plan, tokens: int) -> float:
    """The share of padding among the rows that a device multiplies with experts, if loads are even.

    The last block of each expert is half empty on average. `tokens` are those of the device.
    """
    assert config.experts is not None
    count = config.experts.count
    if plan.sharding is not None:
        count = max(count // plan.sharding.mesh.shape["expert"], 1)
    rows = tokens * config.experts.active
    empty = count * plan.expert_block(rows, count)[0] / 2
    return empty / (rows + empty)
