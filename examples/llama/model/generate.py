"""Text generation: the keys and values of all tokens so far are cached, not recomputed.

Prompts of different lengths are left-padded, so that all rows write their next token at the same
place. The positions of a row count from its first token.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

import xfunc as xf
from xfunc import P

from . import attention, llama
from .parameters import Params
from .plan import Plan
from .rope import Kind, Ropes
from .sampling import Sampling, Settings, choose
from .sizes import Config


class Cache(NamedTuple):
    """The keys and values of each layer at each place of a row; zero where there is nothing yet.

    Of latent attention they are what keys and values are computed from: the features of keys with
    rotary embeddings, and the latent ones, as of one head.
    """

    keys: Float[Tensor, "layers batch kv_heads length head_dim"]
    values: Float[Tensor, "layers batch kv_heads length head_dim"]


Caches: TypeAlias = dict[str, Cache]  # by the names of `Config.stacks`


def pad(
    prompts: Sequence[Sequence[int]], multiple: int = 64
) -> tuple[Int[Tensor, "batch prompt"], Int[Tensor, " batch"]]:
    """Prompts as rows whose length is a multiple, left-padded with zeros, and their own lengths."""
    lengths = [len(prompt) for prompt in prompts]
    if not min(lengths, default=0):
        raise ValueError(f"prompts of lengths {lengths}: give some, of one token or more each")
    width = -(-max(lengths) // multiple) * multiple
    rows = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    return torch.tensor(rows), torch.tensor(lengths)


@functools.partial(xf.jit, static_argnames=("config", "new", "stop", "plan"))
def generate(
    params: Params,
    prompt: Int[Tensor, "batch prompt"],
    sampling: Sampling | None = None,
    *,
    config: Config,
    new: int,
    lengths: Int[Tensor, " batch"] | None = None,
    stop: tuple[int, ...] = (),
    plan: Plan = Plan(),
) -> Int[Tensor, "batch new"]:
    """The tokens that follow each prompt; -1 from where logits are not finite.

    A row depends on its own prompt and settings alone.

    Args:
        params: the weights, in any floating dtype.
        prompt: rows of tokens, left-padded with any tokens.
        sampling: how tokens of each row are drawn; None: the likeliest ones are taken.
        config: the sizes.
        new: how many tokens to make.
        lengths: how many tokens of each row are not padding; None: all.
        stop: tokens that end a text: a row repeats the one it ends with.
        plan: the prompt is read `plan.block` tokens at a time; `plan.sharding` divides the cache.
    """
    if new < 1:
        raise ValueError(f"new is {new}: generate 1 token or more")
    if prompt.ndim != 2 or not prompt.shape[1]:
        raise ValueError(f"prompt has shape {tuple(prompt.shape)}: give [batch, 1 or more tokens]")
    batch, width = prompt.shape
    sampling = Sampling.of([Settings()] * batch) if sampling is None else sampling
    block = min(plan.block, width)
    prompt = F.pad(prompt, (-width % block, 0))
    lengths = torch.full((batch,), width) if lengths is None else lengths.to(prompt.device)
    first = prompt.shape[1] - lengths
    # The angles of a text must not change on the way: the cache has keys that are turned.
    is_long = config.rope_scaling is not None and config.rope_scaling.kind == "longrope"
    whole = lengths + new - 1 if is_long else None
    cache = empty(config, batch, prompt.shape[1] + new - 1, params["embed"].dtype, plan)

    def read(carry: tuple[Caches, Tensor], tokens: Tensor) -> tuple[tuple[Caches, Tensor], Tensor]:
        cache, at = carry
        logits, cache = advance(
            params, cache, tokens, at, first, config, plan, lengths if whole is None else whole
        )
        return (cache, at + block), logits

    def pick(logits: Tensor, number: Tensor) -> Tensor:
        return choose(logits, sampling, lengths + number)

    def has_ended(token: Tensor) -> Tensor:
        return torch.stack([token == end for end in stop]).any(0)

    def goes_on(carry: Any) -> Tensor:
        number, _, last, _ = carry
        more = number < new
        return more & ~has_ended(last).all() if stop else more

    def step(carry: Any) -> Any:
        number, cache, last, made = carry
        at = prompt.shape[1] + number - 1
        logits, cache = advance(params, cache, last[:, None], at, first, config, plan, whole)
        token = pick(logits, number)
        if stop:
            token = torch.where(has_ended(last), last, token)
        made = made.index_copy(1, number[None], token[:, None])
        return number + 1, cache, token, made

    start = first.new_zeros(())
    blocks = prompt.unflatten(1, (-1, block)).movedim(1, 0)
    (cache, _), logits = xf.scan(read, (cache, start), blocks)
    token = pick(logits[-1], start)
    made = token[:, None].expand(-1, new).clone()
    # Where all texts have ended, each repeats its last token.
    number, _, token, made = xf.while_loop(goes_on, step, (start + 1, cache, token, made))
    made = torch.where(torch.arange(new, device=made.device) < number, made, token[:, None])
    s = plan.sharding  # With several processes, each reads all of it.
    return made if s is None else s.constrain(made, s.whole)


def empty(config: Config, batch: int, length: int, dtype: torch.dtype, plan: Plan) -> Caches:
    """An empty cache of `length` places."""

    latent = config.latent
    sizes = (config.head_dim,) * 2 if latent is None else (latent.rotary, latent.keys)

    def zeros(layers: int, size: int) -> Tensor:
        shape = layers, batch, config.kv_heads if latent is None else 1, length, size
        return lie(torch.zeros(shape, dtype=dtype), plan)

    return {
        stack.name: Cache(*(zeros(len(stack.layers), size) for size in sizes))
        for stack in config.stacks
    }


def lie(cache: Tensor, plan: Plan) -> Tensor:
    """Part of a cache, sharded on the mesh as the cache is."""
    s = plan.sharding
    return cache if s is None else s.constrain(cache, P(None, *s.heads[:2]))


def advance(
    params: Params,
    cache: Caches,
    tokens: Int[Tensor, "batch new"],
    at: Int[Tensor, ""],
    first: Int[Tensor, " batch"],
    config: Config,
    plan: Plan,
    lengths: Int[Tensor, " batch"] | None = None,
) -> tuple[Float[Tensor, "batch vocab"], Caches]:
    """The logits of the token that follows `tokens`, and the cache with `tokens` added at `at`.

    The first token of each row is at `first`; what is before it is padding. The scaling of angles
    may depend on the lengths of the texts; None: up to `tokens`.
    """
    length = next(iter(cache.values())).keys.shape[3]
    place = torch.arange(length, device=tokens.device)
    places = at + torch.arange(tokens.shape[1], device=tokens.device)
    begun = place >= first[:, None, None]
    lengths = at + tokens.shape[1] - first if lengths is None else lengths
    ropes = Ropes.of((places - first[:, None])[:, None], config, lengths[:, None, None, None])

    def layer(x: Tensor, layer: tuple[Params, Cache], kind: Kind) -> tuple[Tensor, Cache]:
        weights, old = layer
        new: list[Tensor] = []

        def mix(normed: Tensor) -> Tensor:
            reach = llama.reach(config, kind.local)
            seen = begun & attention.visible(place, places[:, None], reach)
            part = normed, weights, ropes.of_layer(*kind), config, plan
            if config.latent is not None:
                found = llama.latents(*part)
                new.extend(found[2:])
                return _of_latents(found, _added(old, found[2:], places), weights, config, seen)
            q, *made = llama.heads(*part)
            new.extend(made)
            keys, values = _added(old, made, places)
            scores, sinks = llama.scores(config), weights.get("sinks")
            return llama.joined(attention.masked(q, keys, values, seen, scores, sinks), weights)

        x, _ = llama.add_to(x, weights, mix, config, plan)
        return x, Cache(*new)

    x = llama.embedded(params, tokens, config)
    both = {name: (params[name], old) for name, old in cache.items()}
    x, new = llama.scan_layers(layer, x, both, config)
    # The additions of all layers are written here: written within the loop, they would need a
    # second copy of the whole cache.
    cache = xf.tree.map(lambda o, n: lie(o.index_copy(3, places, n), plan), cache, new)
    return llama.logits(params, x[:, -1:], config, plan)[:, 0], cache


def _added(old: Cache, new: Sequence[Tensor], places: Tensor) -> Cache:
    return Cache(*(o.index_copy(2, places, n) for o, n in zip(old, new, strict=True)))


def _of_latents(
    now: llama.Latents, cache: Cache, weights: Params, config: Config, seen: Tensor
) -> Tensor:
    """Attention to the latent features themselves, as to one head of keys and values: queries are
    multiplied with the matrix of keys instead, and the outputs with that of values.
    """
    sizes = config.latent
    assert sizes is not None
    matrices = weights["wkv_b"].unflatten(0, (config.heads, -1))
    of_keys, of_values = matrices.split((sizes.plain, sizes.values), 1)
    q = torch.cat([now.q_turned, torch.einsum("bhqp,hpk->bhqk", now.q_plain, of_keys)], -1)
    keys = torch.cat(cache, -1)
    scores = llama.scores(config)
    scores = dataclasses.replace(scores, scale=scores.scale or config.head_dim**-0.5)
    mixed = attention.masked(q, keys, cache.values, seen, scores)
    return llama.joined(torch.einsum("bhqk,hvk->bhqv", mixed, of_values), weights)
