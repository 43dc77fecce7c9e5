"""Rotary embeddings: angles that grow with the position, each pair of features at its own rate."""

import math
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .sizes import Config, RopeScaling

Rope: TypeAlias = tuple[Float[Tensor, "*batch seq head_dim"], Float[Tensor, "*batch seq head_dim"]]
Local: TypeAlias = bool | Bool[Tensor, ""]  # whether a layer has the window
Still: TypeAlias = bool | Bool[Tensor, ""]  # whether a layer has no rotary embeddings
Length: TypeAlias = int | Int[Tensor, "*#batch"]


def rotary(
    positions: Int[Tensor, "*batch seq"], config: Config, length: Length | None = None
) -> Rope:
    """Cosine and sine of each position's angle, the two halves of a head alike.

    Scaling that is `dynamic` or `longrope` depends on the length of the text so far: one for all,
    or one for each position and frequency; None: the number of positions.
    """
    scaling, theta = config.rope_scaling, config.rope_theta
    if scaling is None:
        return _turned(positions, _frequencies(theta, config, positions.device))
    length = torch.as_tensor(positions.shape[-1] if length is None else length)
    if scaling.kind == "dynamic":
        theta = _dynamic(theta, scaling, config.rotary_dim, length)
    frequencies = _frequencies(theta, config, positions.device)
    if scaling.kind == "llama3":
        frequencies = _stretched(frequencies, scaling)
    elif scaling.kind == "linear":
        frequencies = frequencies / scaling.factor
    elif scaling.kind == "yarn":
        cos, sin = _turned(positions, _yarn(frequencies, config, scaling))
        factor = temperature(scaling.factor)
        if scaling.mscale and scaling.mscale_all_dim:
            factor = temperature(scaling.factor, scaling.mscale)
            factor /= temperature(scaling.factor, scaling.mscale_all_dim)
        factor = scaling.attention_factor or factor
        return cos * factor, sin * factor
    elif scaling.kind == "longrope":
        cos, sin = _turned(positions, _by_length(frequencies, scaling, length))
        grown = math.log(max(scaling.factor, 1.0)) / math.log(scaling.original_context)
        factor = scaling.attention_factor or math.sqrt(1 + grown)
        return cos * factor, sin * factor
    return _turned(positions, frequencies)


class Kind(NamedTuple):
    """How a layer differs from others: whether it has the window, and no rotary embeddings."""

    local: Local
    still: Still


class Ropes(NamedTuple):
    """Rotary tables of layers that see all tokens, and of those with a window, which may differ."""

    full: Rope
    local: Rope

    @classmethod
    def of(
        cls, positions: Int[Tensor, "*batch seq"], config: Config, length: Length | None = None
    ) -> "Ropes":
        """The tables of some positions, see `rotary`."""
        full = rotary(positions, config, length)
        if config.local_theta is None:
            return cls(full, full)
        frequencies = _frequencies(config.local_theta, config, positions.device)
        return cls(full, _turned(positions, frequencies))

    def of_layer(self, local: Local, still: Still = False) -> Rope:
        """The table of one layer."""
        cos, sin = self._turning(local)
        if still is False:
            return cos, sin
        turns = ~torch.as_tensor(still, device=cos.device)
        return cos.where(turns, 1.0), sin.where(turns, 0.0)

    def _turning(self, local: Local) -> Rope:
        if self.full is self.local or local is False:
            return self.full
        if local is True:
            return self.local
        cos, sin = (torch.where(local, a, b) for a, b in zip(self.local, self.full, strict=True))
        return cos, sin


def rotate(
    x: Float[Tensor, "batch heads seq head_dim"], rope: Rope
) -> Float[Tensor, "batch heads seq head_dim"]:
    """Turn each pair (i, i + size / 2) of features by the angle of its position, where `size` is
    that of the table; features beyond it stay.
    """
    cos, sin = (angle.to(x.dtype) for angle in rope)
    size = cos.shape[-1]
    x, rest = x[..., :size], x[..., size:]
    left, right = x.chunk(2, -1)
    turned = x * cos + torch.cat([-right, left], -1) * sin
    return torch.cat([turned, rest], -1) if rest.shape[-1] else turned


def _turned(positions: Int[Tensor, "*batch seq"], frequencies: Float[Tensor, " half"]) -> Rope:
    angles = positions[..., None] * frequencies
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def _frequencies(
    theta: float | Float[Tensor, ""], config: Config, device: torch.device
) -> Float[Tensor, " half"]:
    half = torch.arange(0, config.rotary_dim, 2, device=device) / config.rotary_dim
    return theta**-half


def _stretched(frequencies: Float[Tensor, " half"], c: RopeScaling) -> Float[Tensor, " half"]:
    """Frequencies, divided by a factor if they make few turns within the original context.

    Source: `rope_type` "llama3" of Hugging Face's transformers.
    """
    turns = c.original_context * frequencies / (2 * math.pi)
    kept = (turns - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return frequencies * (kept + (1 - kept) / c.factor)


def _dynamic(
    theta: float, c: RopeScaling, head_dim: int, length: Int[Tensor, ""]
) -> Float[Tensor, ""]:
    """A base that grows with the text once it is longer than the original context.

    Source: `rope_type` "dynamic" of Hugging Face's transformers.
    """
    length = length.clamp(min=c.original_context)
    grown = c.factor * length / c.original_context - (c.factor - 1)
    return theta * grown.float() ** (head_dim / (head_dim - 2))


def _yarn(
    frequencies: Float[Tensor, " half"], config: Config, c: RopeScaling
) -> Float[Tensor, " half"]:
    """Frequencies, divided by a factor from the feature at which they make few turns.

    Source: Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023.
    """

    def feature(turns: float) -> float:
        """The feature that makes this many turns within the original context."""
        base = math.log(c.original_context / (turns * 2 * math.pi))
        return config.rotary_dim * base / (2 * math.log(config.rope_theta))

    low, high = feature(c.beta_fast), feature(c.beta_slow)
    if c.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.rotary_dim - 1)
    high = high + 0.001 if low == high else high
    place = torch.arange(config.rotary_dim // 2, device=frequencies.device)
    divided = ((place - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (1 - divided + divided / c.factor)


def temperature(factor: float, share: float = 1.0) -> float:
    """The factor of scores' square root that goes with stretched frequencies, of `yarn`."""
    return 0.1 * share * math.log(factor) + 1.0 if factor > 1 else 1.0


def _by_length(
    frequencies: Float[Tensor, " half"], c: RopeScaling, length: Int[Tensor, "*#batch"]
) -> Float[Tensor, "*batch half"]:
    """Frequencies, divided by one set of factors in short texts, and by another in long ones.

    Source: Ding et al., "LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens", 2024.
    """
    long, short = (
        torch.tensor(factors, device=frequencies.device)
        for factors in (c.long_factors, c.short_factors)
    )
    return frequencies / torch.where(length.to(long.device) > c.original_context, long, short)
