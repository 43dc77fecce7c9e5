"""Choosing the next token: each row of logits is adjusted, and a token is drawn from it.

All settings are arrays, one number for each row, so that rows with different settings share a
program. The order is that of transformers: the temperature, `top_k`, `top_p`, `min_p`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

import xfunc as xf

from .attention import wide


@dataclasses.dataclass(frozen=True)
class Settings:
    """How tokens of one text are drawn."""

    temperature: float = 0.0  # what logits are divided by; 0: the likeliest token is taken
    top_k: int = 0  # from this many of the likeliest ones; 0: from all
    top_p: float = 1.0  # from the likeliest ones that together have this probability
    min_p: float = 0.0  # from those at least this many times as likely as the likeliest
    seed: int = 0  # draws depend only on this and the number of the token

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(
                f"temperature is {self.temperature}: use 0, for the likeliest token, or more"
            )
        if not 0 <= self.top_k < 2**31:
            raise ValueError(f"top_k is {self.top_k}: use 0, for any token, or more")
        if not 0 <= self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}: use a probability, from 0 to 1")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is {self.min_p}: use a fraction, from 0 to 1")
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}: use a 64-bit integer")


class Sampling(NamedTuple):
    """The `Settings` of each row."""

    temperature: Float[Tensor, " rows"]
    top_k: Int[Tensor, " rows"]
    top_p: Float[Tensor, " rows"]
    min_p: Float[Tensor, " rows"]
    seed: Int[Tensor, " rows"]

    @classmethod
    def of(cls, rows: Sequence[Settings]) -> "Sampling":
        """The settings of some rows, as arrays."""

        def column(name: str) -> Tensor:
            kind = torch.int64 if name in ("top_k", "seed") else torch.float32
            return torch.tensor([getattr(row, name) for row in rows], dtype=kind)

        return cls(*map(column, cls._fields))


def choose(
    logits: Float[Tensor, "rows vocab"], sampling: Sampling, number: Int[Tensor, " rows"]
) -> Int[Tensor, " rows"]:
    """A token for each row, given its number in the text; -1 where logits are not finite."""
    finite = torch.isfinite(logits).all(-1)
    likeliest = logits.argmax(-1)

    def sampled(logits: Tensor) -> Tensor:
        limits = (sampling.top_k > 0) | (sampling.top_p < 1) | (sampling.min_p > 0)
        logits = tempered(logits, sampling.temperature)
        # A sort of the vocabulary takes longer than all the rest.
        logits = xf.cond(limits.any(), lambda x: limited(x, sampling), lambda x: x, logits)
        drawn = xf.vmap(_drawn)(sampling.seed, number, logits)
        return torch.where(sampling.temperature > 0, drawn, likeliest)

    found = xf.cond((sampling.temperature > 0).any(), sampled, lambda _: likeliest, wide(logits))
    return torch.where(finite, found, -1)


def _drawn(seed: Tensor, number: Tensor, logits: Tensor) -> Tensor:
    return xf.random.categorical(xf.random.fold_in(xf.random.key(seed), number), logits)


def tempered(
    logits: Float[Tensor, "rows vocab"], temperature: Float[Tensor, " rows"]
) -> Float[Tensor, "rows vocab"]:
    """Logits divided by the temperature, after moving the largest one to 0, so that no temperature
    is too small: the others become -inf at most.
    """
    divisor = torch.where(temperature > 0, temperature, 1.0)
    divisor = divisor.clamp(min=torch.finfo(divisor.dtype).tiny)[:, None]
    return (logits - logits.amax(-1, keepdim=True)) / divisor


def limited(logits: Float[Tensor, "rows vocab"], sampling: Sampling) -> Float[Tensor, "rows vocab"]:
    """Logits, -inf for tokens that are not drawn. The likeliest is always kept.

    Tokens as likely as the last one that is kept are kept too.
    """
    vocab = logits.shape[-1]
    ordered = logits.sort(-1, descending=True).values
    last = torch.where(sampling.top_k > 0, sampling.top_k.clamp(max=vocab), vocab) - 1
    least = ordered.take_along_dim(last[:, None], -1)
    ordered = ordered.masked_fill(ordered < least, -torch.inf)
    share = ordered.softmax(-1)
    likelier = share.cumsum(-1) - share  # the probability of all likelier tokens
    most = torch.where(sampling.top_p < 1, sampling.top_p, torch.inf)[:, None]
    first = ordered[:, :1]
    least_p = ordered.masked_fill(likelier >= most, torch.inf).amin(-1, keepdim=True).minimum(first)
    share_of_first = first + sampling.min_p.log()[:, None]
    least = torch.maximum(torch.maximum(least, least_p), share_of_first)
    return logits.masked_fill(logits < least, -torch.inf)
