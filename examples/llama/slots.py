"""Texts of any length side by side, each in a slot of one KV cache.

A slot is a row of the cache, in which each token is at the place of its position. One program
generates the next token of every slot in use; another reads a piece of a prompt into a slot.
Neither depends on how long the texts are, which slots are in use, or how tokens are drawn.
"""

import functools
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import xfunc as xf

from . import attention, generate, model
from .generate import Cache
from .model import Config, Params
from .plan import Plan
from .rope import Local, Ropes
from .sampling import Sampling, choose

TOP = 20  # the most likeliest tokens that can be reported


class State(NamedTuple):
    """What stays on the devices between two calls."""

    cache: Cache
    seen: Bool[Tensor, "slots vocab"]  # the tokens of each text


class Rows(NamedTuple):
    """What a call is to do, for each of its rows."""

    slot: Int[Tensor, " rows"]
    at: Int[Tensor, " rows"]  # the place of the first token
    size: Int[Tensor, " rows"]  # how many tokens there are; the rest is padding
    length: Int[Tensor, " rows"]  # of the text, on which `dynamic` rotary scaling depends
    sampling: Sampling


class Made(NamedTuple):
    """The next token of each row, its log-probability, and those of the likeliest tokens."""

    token: Int[Tensor, " rows"]  # -1: logits are not finite
    log_probability: Float[Tensor, " rows"]
    top: Int[Tensor, "rows top"]
    top_log_probability: Float[Tensor, "rows top"]


@functools.partial(xf.jit, static_argnums=(0, 1, 2, 3, 4))
def empty(config: Config, slots: int, length: int, dtype: torch.dtype, plan: Plan) -> State:
    """A state with no text in any slot."""
    cache = generate.empty(config, slots, length, dtype, plan)
    return State(cache, _whole(torch.zeros(slots, config.vocab, dtype=torch.bool), plan))


def _whole(seen: Tensor, plan: Plan) -> Tensor:
    s = plan.sharding
    return seen if s is None else s.constrain(seen, s.whole)


@functools.partial(xf.jit, donate_argnums=1, static_argnames=("config", "plan"))
def advance(
    params: Params,
    state: State,
    tokens: Int[Tensor, "rows new"],
    rows: Rows,
    *,
    config: Config,
    plan: Plan,
) -> tuple[State, Made]:
    """Add tokens to texts, and choose the next ones.

    Args:
        params: the weights.
        state: everything so far; its memory is reused.
        tokens: the next ones of each row, right-padded.
        rows: where they belong. There are as many rows as slots, in their order, or fewer.
        config: the sizes.
        plan: where arrays are placed.
    """
    slots, length = state.seen.shape[0], state.cache.keys.shape[3]
    each = None if tokens.shape[0] == slots else rows.slot
    real = torch.arange(tokens.shape[1], device=tokens.device) < rows.size[:, None]
    places = rows.at[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
    written = torch.where(real, places, length)  # Writes beyond the end are dropped.
    cache = state.cache if each is None else Cache(*(x[:, each] for x in state.cache))
    x, new = _run(params, cache, tokens, places, written, real, rows, config, plan)

    target = rows.slot[:, None]
    cache = Cache(
        *(
            generate.lie(xf.at(old)[:, target, :, written].set(n.movedim((1, 3), (0, 1))), plan)
            for old, n in zip(state.cache, new, strict=True)
        )
    )
    begins = (rows.at == 0) & (rows.size > 0)
    seen = (state.seen if each is None else state.seen[each]) & ~begins[:, None]
    row = torch.arange(tokens.shape[0], device=tokens.device)[:, None]
    seen = xf.at(seen)[row, torch.where(real, tokens, config.vocab)].set(True)
    every = seen if each is None else xf.at(state.seen)[each].set(seen)

    last = (rows.size - 1).clamp(min=0)[:, None, None].expand(-1, 1, x.shape[-1])
    logits = model.logits(params, x.take_along_dim(last, 1), config, plan)[:, 0]
    token = choose(logits, rows.sampling, seen, rows.at + rows.size)
    # With several processes, each reads all of it.
    made = Made(*(_whole(x, plan) for x in _told(logits, token)))
    return State(cache, _whole(every, plan)), made


def _run(
    params: Params,
    cache: Cache,
    tokens: Tensor,
    places: Tensor,
    written: Tensor,
    real: Tensor,
    rows: Rows,
    config: Config,
    plan: Plan,
) -> tuple[Tensor, Cache]:
    """The last layer's output for tokens, and their keys and values in each layer."""
    row = torch.arange(tokens.shape[0], device=tokens.device)[:, None]
    place = torch.arange(cache.keys.shape[3], device=tokens.device)
    # What other texts left must not count, not even as 0 times NaN.
    stale = (place >= rows.at[:, None])[:, None, :, None]
    ropes = Ropes.of(places[:, None], config, rows.length[:, None, None, None])

    def layer(x: Tensor, layer: tuple[Params, Cache], local: Local) -> tuple[Tensor, Cache]:
        weights, old = layer
        new: list[Tensor] = []

        def mix(normed: Tensor) -> Tensor:
            q, *made = model.heads(normed, weights, ropes.of_layer(local), config, plan)
            new.extend(made)
            keys, values = (
                xf.at(o.masked_fill(stale, 0.0))[row, :, written].set(n.movedim(2, 1))
                for o, n in zip(old, made, strict=True)
            )
            seen = attention.visible(place, places[..., None], model.reach(config, local))
            mixed = attention.masked(q, keys, values, seen, model.scores(config))
            return model.joined(mixed, weights)

        x, _ = model.add_to(x, weights, mix, config, plan, real.long())
        return x, Cache(*new)

    x = model.embedded(params, tokens, config)
    return model.scan_layers(layer, x, (params["layers"], cache), config)


def _told(logits: Tensor, token: Tensor) -> Made:
    log_probability = attention.wide(logits).log_softmax(-1)
    chosen = log_probability.take_along_dim(token.clamp(min=0)[:, None], -1)[:, 0]
    top = log_probability.topk(min(TOP, logits.shape[-1]), -1)
    return Made(token, chosen, top.indices, top.values)
