"""Granite: Llama with factors."""

from .family import Family
from .llama import LLAMA

_FACTORS = {
    "embedding_multiplier": "embed_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "score_scale",
    "logits_scaling": "logit_scale",
}
GRANITE = Family(
    "GraniteForCausalLM",
    lambda fields: LLAMA.read(fields) | {_FACTORS[key]: fields.some(key, 1.0) for key in _FACTORS},
    lambda c: LLAMA.write(c) | {key: getattr(c, name) for key, name in _FACTORS.items()},
)
