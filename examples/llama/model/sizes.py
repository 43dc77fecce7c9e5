"""The description of a model: its family, its sizes and its particulars."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import yaml

from .. import checks
from ..families import FAMILIES, Traits
from ..families.parts import ROPE_KINDS as ROPE_KINDS
from ..families.parts import Experts as Experts
from ..families.parts import Latent as Latent
from ..families.parts import RopeScaling as RopeScaling

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu", "relu2")


class Stack(NamedTuple):
    """A run of equal layers, whose weights are stacked."""

    name: str  # in the tree of parameters
    layers: range
    experts: Experts | None  # None: layers have one feed-forward part for all tokens


@dataclass(frozen=True)
class Config:
    """The sizes of one model.

    Attributes:
        vocab: number of tokens.
        hidden: features of a token between layers.
        intermediate: features within the feed-forward part.
        layers: number of layers.
        heads: query heads in each layer.
        kv_heads: key and value heads in each layer.
        tied: whether the output matrix is the embedding matrix.
        rope_theta: the base of rotary frequencies.
        norm_eps: added to the mean square in norms.
        rope_scaling: scaling of rotary frequencies; null: none.
        family: which family's architecture the model has.
        head_size: features of a head; null: hidden / heads.
        qkv_bias: whether maps to queries, keys and values have biases.
        out_bias: whether the map out of attention has one.
        mlp_bias: whether maps of the feed-forward part have biases.
        activation: the activation function of the feed-forward part.
        window: tokens that a token attends to, with itself; null: all before it.
        full_layers: numbers of the layers without a window.
        local_theta: the base of rotary frequencies in layers with a window; null: as in others.
        nope_layers: numbers of the layers without rotary embeddings.
        rotary_size: features of a head, its first ones, that rotary embeddings turn; null: all.
        query_scale: scores are divided by its square root; null: that of the head size.
        score_scale: what scores are multiplied by instead.
        score_cap: attention scores s become cap * tanh(s / cap). null: they are unchanged.
        logit_cap: the same for logits.
        embed_scale: what embeddings are multiplied by; null: they are unchanged.
        residual_scale: what outputs of attention and feed-forward are multiplied by.
        logit_scale: what logits are divided by; null: they are unchanged.
        experts: the experts of the feed-forward part. null: one feed-forward part for all tokens.
        dense_layers: numbers of the layers without experts.
        latent: attention with keys and values from a few features; null: of all.
        qk_norms: whether queries and keys have the norms of the family.
    """

    CHOICES: ClassVar[Mapping[str, Iterable[str]]] = {"family": FAMILIES, "activation": ACTIVATIONS}

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    tied: bool = False
    rope_theta: float = 500000.0
    norm_eps: float = 1e-5
    rope_scaling: RopeScaling | None = None
    family: str = "llama"
    head_size: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    activation: str = "silu"
    window: int | None = None
    full_layers: tuple[int, ...] = ()
    local_theta: float | None = None
    nope_layers: tuple[int, ...] = ()
    rotary_size: int | None = None
    query_scale: float | None = None
    score_scale: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    embed_scale: float | None = None
    residual_scale: float | None = None
    logit_scale: float | None = None
    experts: Experts | None = None
    dense_layers: tuple[int, ...] = ()
    latent: Latent | None = None
    qk_norms: bool = True

    def __post_init__(self) -> None:
        sizes = "vocab hidden intermediate layers heads kv_heads head_size window rotary_size"
        checks.at_least(self, 1, *sizes.split())
        numbers = (
            "rope_theta norm_eps local_theta query_scale score_scale score_cap logit_cap "
            "embed_scale residual_scale logit_scale"
        )
        checks.above_0(self, *numbers.split())
        if self.latent is not None:
            if self.kv_heads != self.heads or self.head_size or self.rotary_size:
                raise ValueError(
                    "latent is given: make kv_heads equal to heads, and leave out head_size and "
                    "rotary_size"
                )
        elif self.head_size is None and self.hidden % self.heads:
            raise ValueError(
                f"hidden is {self.hidden}, heads is {self.heads}: make hidden a multiple of heads, "
                "or give head_size"
            )
        if self.head_dim % 2 or self.heads % self.kv_heads:
            raise ValueError(
                f"hidden is {self.hidden}, heads is {self.heads}, kv_heads is {self.kv_heads}: "
                "make the features of a head an even number, and heads a multiple of kv_heads"
            )
        checks.choices(self)
        for name in ("full_layers", "nope_layers", "dense_layers"):
            if wrong := [i for i in getattr(self, name) if not 0 <= i < self.layers]:
                raise ValueError(f"{name} has {wrong}, but there are {self.layers} layers")
        if self.experts is not None and len(set(self.dense_layers)) == self.layers:
            raise ValueError("dense_layers has all layers: leave out experts, or some layers")
        if self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise ValueError(
                f"rotary_size is {self.rotary_size}, a head has {self.head_dim} features: use an "
                "even number of them"
            )
        if (scaling := self.rope_scaling) is not None and scaling.kind == "longrope":
            counts = len(scaling.short_factors), len(scaling.long_factors)
            if counts != (self.rotary_dim // 2,) * 2:
                raise ValueError(
                    f"short_factors has {counts[0]} and long_factors {counts[1]}: give one for "
                    f"each of {self.rotary_dim // 2} frequencies"
                )
        if None not in (self.query_scale, self.score_scale):
            raise ValueError("query_scale and score_scale are both given: leave out one")

    @property
    def head_dim(self) -> int:
        """The features of one attention head."""
        if self.latent is not None:
            return self.latent.rotary + self.latent.plain
        return self.head_size or self.hidden // self.heads

    @property
    def value_dim(self) -> int:
        """The features of a head's values."""
        return self.head_dim if self.latent is None else self.latent.values

    @property
    def rotary_dim(self) -> int:
        """The features of a head that rotary embeddings turn."""
        return self.latent.rotary if self.latent else self.rotary_size or self.head_dim

    @property
    def traits(self) -> Traits:
        """What the family that `family` names adds to Llama."""
        return FAMILIES[self.family].traits

    @property
    def local_layers(self) -> tuple[bool, ...]:
        """Whether each layer has the window."""
        return tuple(
            self.window is not None and i not in self.full_layers for i in range(self.layers)
        )

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The runs of equal layers.

        The only one is `layers`; of several, each has the number of its first layer in its name,
        such as `layers_3`.
        """
        sparse = [
            self.experts is not None and i not in self.dense_layers for i in range(self.layers)
        ]
        starts = [i for i in range(self.layers) if not i or sparse[i] != sparse[i - 1]]
        runs = map(range, starts, [*starts[1:], self.layers])
        names = ["layers"] if len(starts) == 1 else [f"layers_{i}" for i in starts]
        return tuple(map(Stack, names, runs, [self.experts if sparse[i] else None for i in starts]))

    @classmethod
    def tiny(cls, vocab: int = 256, *, tied: bool = False) -> "Config":
        """A model small enough for a unit test."""
        return cls(vocab, hidden=32, intermediate=80, layers=2, heads=4, kv_heads=2, tied=tied)


def _read(file: Path) -> dict[str, Config]:
    """The models in a file, by name."""
    parts = {"rope_scaling": RopeScaling, "experts": Experts, "latent": Latent}

    def value(key: str, given: Any) -> Any:
        if isinstance(given, dict):
            return parts[key](**given)
        return tuple(given) if isinstance(given, list) else given

    models = yaml.safe_load(file.read_text("utf-8"))
    return {
        name: Config(**{key: value(key, given) for key, given in fields.items()})
        for name, fields in models.items()
    }


PUBLISHED = _read(Path(__file__).with_name("published.yaml"))
TINY = {  # A byte-level tokenizer has at least 258 tokens.
    "tiny": Config.tiny(512),
    "tiny-tied": Config.tiny(512, tied=True),
    "tiny-scaled": Config(
        512, 64, 96, layers=3, heads=4, kv_heads=4, rope_scaling=RopeScaling(original_context=64)
    ),
}
SMALL = {
    "demo-1m": Config(2048, 128, 384, layers=4, heads=4, kv_heads=2, tied=True),
    "small-11m": Config(2048, 384, 1024, layers=6, heads=6, kv_heads=6, tied=True),
}
CONFIGS = TINY | SMALL | PUBLISHED
