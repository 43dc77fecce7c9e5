"""How much arithmetic a model takes, by formula, and how fast a chip's links are.

A multiply-add is two operations. Only matrix products count: norms, rotations and the optimizer are
a thousandth of them, and looking up an embedding is not a product. Of causal attention only the
half that has to be computed counts; published figures often count the whole square, which makes
utilisation look higher, by 4% for 405B and by 14% for 8B at 8192 positions.

Source: Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", appendix B, 2022.
"""

import math
from typing import NamedTuple

from xfunc.aot import CHIPS

from .parameters import weights
from .plan import Plan
from .sizes import Config

# Bytes per second that a TPU chip receives from all its neighbours together: half of what
# cloud.google.com/tpu/docs/{v5e,v5p,v6e} give for both directions.
LINKS = {"v5e": 200e9, "v5p": 600e9, "v6e": 400e9}

# What each policy of `plan.POLICIES` recomputes in the backward pass: the products with a layer's
# weights, and attention.
RECOMPUTED = {
    "full": (True, True),
    "attention": (True, False),
    "dots": (False, True),
    "dots-attention": (False, False),
    "everything": (False, False),
    "offload": (True, True),
    "offload-attention": (True, False),
}


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


def _matrices(config: Config, *names: str) -> float:
    """The elements, in all layers, of the matrices of some names, or of any, that one token is
    multiplied with.
    """
    tree, e = weights(config), config.experts
    share = dict.fromkeys(("e_gate", "e_up", "e_down"), 1 if e is None else e.active / e.count)
    return sum(
        math.prod(weight.shape) * share.get(name, 1)
        for stack in config.stacks
        for name, weight in tree[stack.name].items()
        if weight.kind == "matrix" and (not names or name in names)
    )


def _seen(seq: int, window: int | None) -> float:
    """Tokens that a token sees, on average; each takes a product with a key and a value."""
    if window is None or window >= seq:
        return seq / 2
    return window - window**2 / (2 * seq)


class Extent(NamedTuple):
    """How much of a model is trained.

    Attributes:
        learned: the fraction of the weights in products that have a gradient; adapters do not
            count.
        compared: whether a reference model computes the tokens too.
    """

    learned: float = 1.0
    compared: bool = False


ALL = Extent()


def per_token(config: Config, seq: int, extent: Extent = ALL) -> float:
    """The operations that training takes per token.

    A backward pass costs as much as two forward passes, one of them for the gradients of weights.
    """
    once = forward(config, seq)
    passes = 2 + extent.learned + extent.compared
    return (3 + extent.compared) * once.attention + passes * (once.layers + once.head)


def executed_per_token(config: Config, seq: int, plan: Plan, extent: Extent = ALL) -> float:
    """Like `per_token`, plus what the backward pass recomputes.

    That is the logits, unless they are computed all at once; all of a recomputed layer but its last
    product, whose result no gradient needs; and attention scores, unless they are kept.
    """
    once, (layers, attention) = forward(config, seq), RECOMPUTED[plan.policy]
    head = 0.0 if seq <= plan.loss_chunk else once.head
    last = 2.0 * _matrices(config, "w_down", "e_down")
    again = head + layers * (once.layers - last) + attention * once.attention
    products = config.head_dim / (config.head_dim + config.value_dim)  # of queries and keys
    scores = 0.0 if plan.attention == "dense" else once.attention * products
    return per_token(config, seq, extent) + again + scores


def utilisation(
    config: Config,
    seq: int,
    *,
    tokens_per_second: float,
    chips: int,
    chip: str,
    extent: Extent = ALL,
) -> float | None:
    """The fraction of the chips' peak that training uses (MFU); None if the peak is unknown.

    Args:
        config: the model.
        seq: tokens per row.
        tokens_per_second: on all chips together.
        chips: how many.
        chip: their kind, such as `v6e`.
        extent: how much of the model is trained.
    """
    if chip not in LINKS:
        return None
    return per_token(config, seq, extent) * tokens_per_second / (chips * CHIPS[chip].flops)
