"""Text generation: the keys and values of all tokens so far are cached, not recomputed.

Prompts of different lengths are left-padded, so that all rows write their next token at the same
place. The positions of a row count from its first token.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

import xfunc as xf
from xfunc import P

from . import attention, model
from .model import Config, Params
from .plan import Plan
from .rope import Local, Ropes
from .sampling import Sampling, Settings, limited, tempered


class Cache(NamedTuple):
    """The keys and values of each layer at each place of a row; zero where there is nothing yet."""

    keys: Float[Tensor, "layers batch kv_heads length head_dim"]
    values: Float[Tensor, "layers batch kv_heads length head_dim"]


def pad(
    prompts: Sequence[Sequence[int]], multiple: int = 64
) -> tuple[Int[Tensor, "batch prompt"], Int[Tensor, " batch"]]:
    """Prompts as rows of one length, left-padded with zeros, and how many tokens each has.

    The length is a multiple of `multiple`: `generate` is compiled once for each length.
    """
    lengths = [len(prompt) for prompt in prompts]
    if not min(lengths, default=0):
        raise ValueError(f"prompts of lengths {lengths}: give some, of one token or more each")
    width = -(-max(lengths) // multiple) * multiple
    rows = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    return torch.tensor(rows), torch.tensor(lengths)


@functools.partial(
    xf.jit, static_argnames=("config", "new", "temperature", "top_p", "stop", "plan")
)
def generate(
    params: Params,
    prompt: Int[Tensor, "batch prompt"],
    key: Int[Tensor, "2"],
    *,
    config: Config,
    new: int,
    lengths: Int[Tensor, " batch"] | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    stop: tuple[int, ...] = (),
    plan: Plan = Plan(),
) -> Int[Tensor, "batch new"]:
    """The tokens that follow each prompt; -1 from where logits are not finite.

    Args:
        params: as from `model.init`, in any floating dtype.
        prompt: rows of tokens, left-padded with any tokens.
        key: a key of `xf.random`.
        config: the sizes.
        new: how many tokens to make.
        lengths: how many tokens of each row are not padding; None: all.
        temperature: what logits are divided by before a token is drawn; 0 takes the likeliest.
        top_p: tokens are drawn only from the likeliest ones that together have this probability.
        stop: tokens that end a text: a row repeats the one it ends with.
        plan: the prompt is read `plan.block` tokens at a time; `plan.sharding` divides the cache.
    """
    if prompt.ndim != 2 or not prompt.shape[1]:
        raise ValueError(f"prompt has shape {tuple(prompt.shape)}: give [batch, 1 or more tokens]")
    check(new, temperature, top_p)
    batch, width = prompt.shape
    block = min(plan.block, width)
    prompt = F.pad(prompt, (-width % block, 0))
    lengths = torch.full((batch,), width) if lengths is None else lengths
    first = prompt.shape[1] - lengths.to(prompt.device)
    longest = prompt.shape[1] - first.min()
    cache = empty(config, batch, prompt.shape[1] + new - 1, params["embed"].dtype, plan)

    def read(carry: tuple[Cache, Tensor], tokens: Tensor) -> tuple[tuple[Cache, Tensor], Tensor]:
        cache, at = carry
        logits, cache = advance(params, cache, tokens, at, first, config, plan, longest)
        return (cache, at + block), logits

    def step(carry: tuple[Cache, Tensor, Tensor], key: Tensor) -> tuple[Any, Tensor]:
        cache, at, last = carry
        logits, cache = advance(params, cache, last[:, None], at, first, config, plan)
        token = draw(key, logits, temperature, top_p)
        for end in stop:
            token = torch.where(last == end, last, token)
        return (cache, at + 1, token), token

    keys = xf.random.split(key, new)
    blocks = prompt.unflatten(1, (-1, block)).movedim(1, 0)
    (cache, at), logits = xf.scan(read, (cache, first.new_zeros(())), blocks)
    token = draw(keys[0], logits[-1], temperature, top_p)
    _, rest = xf.scan(step, (cache, at, token), keys[1:])
    return torch.cat([token[:, None], rest.T], 1)


def check(new: int, temperature: float, top_p: float) -> None:
    """Raise an error if no token can be drawn with these settings."""
    if new < 1:
        raise ValueError(f"new is {new}: generate 1 token or more")
    Settings(temperature=temperature, top_p=top_p)


def empty(config: Config, batch: int, length: int, dtype: torch.dtype, plan: Plan) -> Cache:
    """An empty cache of `length` places."""
    shape = config.layers, batch, config.kv_heads, length, config.head_dim
    return Cache(*(lie(torch.zeros(shape, dtype=dtype), plan) for _ in Cache._fields))


def lie(cache: Tensor, plan: Plan) -> Tensor:
    """Part of a cache, sharded on the mesh as the cache is."""
    s = plan.sharding
    return cache if s is None else s.constrain(cache, P(None, *s.heads))


def advance(
    params: Params,
    cache: Cache,
    tokens: Int[Tensor, "batch new"],
    at: Int[Tensor, ""],
    first: Int[Tensor, " batch"],
    config: Config,
    plan: Plan,
    length: Int[Tensor, ""] | None = None,
) -> tuple[Float[Tensor, "batch vocab"], Cache]:
    """The logits of the token that follows `tokens`, and the cache with `tokens` added.

    Args:
        params: the weights.
        cache: holds everything before `tokens`.
        tokens: the next ones of each row.
        at: the place of the first of them.
        first: the place of each row's first token; what is before it is padding.
        config: the sizes.
        plan: where arrays are placed.
        length: of the longest text, on which `dynamic` scaling depends; None: up to `tokens`.
    """
    place = torch.arange(cache.keys.shape[3], device=tokens.device)
    places = at + torch.arange(tokens.shape[1], device=tokens.device)
    begun = place >= first[:, None, None]
    length = at + tokens.shape[1] - first.min() if length is None else length
    ropes = Ropes.of((places - first[:, None])[:, None], config, length)

    def layer(x: Tensor, layer: tuple[Params, Cache], local: Local) -> tuple[Tensor, Cache]:
        weights, old = layer
        new: list[Tensor] = []

        def mix(normed: Tensor) -> Tensor:
            q, *made = model.heads(normed, weights, ropes.of_layer(local), config, plan)
            new.extend(made)
            keys, values = (o.index_copy(2, places, n) for o, n in zip(old, made, strict=True))
            seen = begun & attention.visible(place, places[:, None], model.reach(config, local))
            mixed = attention.masked(q, keys, values, seen, model.scores(config))
            return model.joined(mixed, weights)

        x, _ = model.add_to(x, weights, mix, config, plan)
        return x, Cache(*new)

    x = model.embedded(params, tokens, config)
    x, new = model.scan_layers(layer, x, (params["layers"], cache), config)
    # The additions of all layers are written here: written within the loop, they would need a
    # second copy of the whole cache.
    cache = Cache(*(lie(o.index_copy(3, places, n), plan) for o, n in zip(cache, new, strict=True)))
    return model.logits(params, x[:, -1:], config, plan)[:, 0], cache


def draw(
    key: Int[Tensor, "2"], logits: Float[Tensor, "batch vocab"], temperature: float, top_p: float
) -> Int[Tensor, " batch"]:
    """A token for each row; -1 where logits are not finite, so that nothing can be drawn."""
    finite = torch.isfinite(logits).all(-1)
    return torch.where(finite, _drawn(key, logits, temperature, top_p), -1)


def _drawn(
    key: Int[Tensor, "2"], logits: Float[Tensor, "batch vocab"], temperature: float, top_p: float
) -> Int[Tensor, " batch"]:
    if temperature == 0:
        return logits.argmax(-1)
    rows = Sampling.of([Settings(temperature, top_p=top_p)] * len(logits))
    logits = tempered(attention.wide(logits), rows.temperature)
    if top_p < 1:
        logits = limited(logits, rows)
    return xf.random.categorical(key, logits)
