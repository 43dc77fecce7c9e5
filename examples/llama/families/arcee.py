"""Arcee: a feed-forward part without a gate."""

from .family import Family, Traits
from .llama import LLAMA

ARCEE = Family(
    "ArceeForCausalLM",
    LLAMA.read,
    LLAMA.write,
    Traits(gated=False),
    defaults={"hidden_act": "relu2", "rms_norm_eps": 1e-5},
)
