"""Parts of a model's description that `sizes` and the families share."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from .. import checks

ROPE_KINDS = ("llama3", "linear", "dynamic", "yarn", "longrope")


@dataclass(frozen=True)
class RopeScaling:
    """Scaling of rotary frequencies for contexts longer than in pretraining.

    Attributes:
        factor: how many times longer the context is.
        low_freq_factor: for `llama3`: frequencies with fewer turns in the original context are
            stretched.
        high_freq_factor: for `llama3`: frequencies with more turns are not.
        original_context: tokens of the context in pretraining.
        kind: `llama3` and `yarn` stretch slow frequencies, `linear` all of them, `dynamic` more the
            longer a text is, and `longrope` each by a factor of its own.
        beta_fast: for `yarn`: frequencies with more turns in the original context are not
            stretched.
        beta_slow: for `yarn`: frequencies with fewer turns are stretched.
        attention_factor: for `yarn` and `longrope`: the factor of rotated queries and keys; null:
            as their authors derive it from `factor`.
        mscale: for `yarn`: the share of that factor's logarithm, if it is derived.
        mscale_all_dim: for `yarn`: the same share for the factor it is divided by, whose square
            multiplies scores of latent attention; null, as `mscale`: neither.
        truncate: for `yarn`: whether the two bounds are rounded to whole features.
        short_factors: for `longrope`: what each frequency is divided by in texts that fit in the
            original context.
        long_factors: the same in longer texts.
    """

    CHOICES: ClassVar[Mapping[str, Iterable[str]]] = {"kind": ROPE_KINDS}

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    kind: str = "llama3"
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        checks.choices(self)
        names = "factor original_context beta_fast beta_slow attention_factor"
        checks.above_0(self, *names.split())
        if self.kind == "llama3" and not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor is {self.low_freq_factor}, high_freq_factor is "
                f"{self.high_freq_factor}: use a larger number for the second"
            )


@dataclass(frozen=True)
class Experts:
    """Mixture of experts: in every layer each token takes some of the feed-forward experts.

    Attributes:
        count: how many there are.
        active: how many a token takes.
        intermediate: intermediate features of each.
        normalised: whether the weights of the experts that a token takes add up to one.
        shared: intermediate features of an expert that all tokens take as well; 0: there is none.
        groups: how many groups the experts are in, for routers with sigmoids.
        active_groups: how many groups the experts of a token may be in: those whose best two
            experts have the largest sums.
        scale: what the weights of the experts that a token takes are multiplied by.
        limit: for a clamped SwiGLU: gates are at most this, and what they gate is kept within it,
            plus 1; null: experts have the model's activation function.
        slope: for a clamped SwiGLU: what the gate is multiplied by in its sigmoid.
    """

    count: int = 8
    active: int = 2
    intermediate: int = 14336
    normalised: bool = True
    shared: int = 0
    limit: float | None = None
    slope: float = 1.702
    groups: int = 1
    active_groups: int = 1
    scale: float = 1.0

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "count", "active", "intermediate", "groups", "active_groups")
        checks.at_least(self, 0, "shared")
        checks.above_0(self, "limit", "slope", "scale")
        if self.active > self.count:
            raise ValueError(f"active is {self.active} of count {self.count}: take fewer")
        if self.groups == 1:
            return
        size, rest = divmod(self.count, self.groups)
        if rest or size < 2 or self.active_groups > self.groups:
            raise ValueError(
                f"count is {self.count}, groups is {self.groups}, active_groups is "
                f"{self.active_groups}: make groups of equal sizes, of 2 experts or more, and take "
                "no more groups than there are"
            )
        if self.active > size * self.active_groups:
            raise ValueError(
                f"active is {self.active}, but {self.active_groups} groups have "
                f"{size * self.active_groups} experts: take fewer, or more groups"
            )


@dataclass(frozen=True)
class Latent:
    """Attention whose keys and values are computed from a few features of each token.

    The first features of a head's queries and keys have rotary embeddings; those of keys are the
    same in all heads.

    Source: DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts
    Language Model", 2024.

    Attributes:
        keys: features that the rest of keys, and values, are computed from.
        queries: features that queries are computed from; null: all of a token.
        rotary: features of a head with rotary embeddings.
        plain: its other features.
        values: features of a head's values.
    """

    keys: int = 512
    queries: int | None = None
    rotary: int = 64
    plain: int = 128
    values: int = 128

    def __post_init__(self) -> None:
        checks.above_0(self, "keys", "queries", "rotary", "plain", "values")
        if self.values > self.rotary + self.plain:
            raise ValueError(
                f"values is {self.values}, rotary and plain {self.rotary + self.plain} together: "
                "give values no more features than keys"
            )
