"""Gemma 1, 2 and 3."""

from typing import Any

from .family import Family, Traits
from .fields import Fields
from .keys import read_biases, read_windows, write_windows

_NAMES = {
    "attn_out_norm": "model.layers.{}.post_attention_layernorm.weight",
    "mlp_norm": "model.layers.{}.pre_feedforward_layernorm.weight",
    "mlp_out_norm": "model.layers.{}.post_feedforward_layernorm.weight",
}
_DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "sliding_window": 4096,
    "hidden_activation": "gelu_pytorch_tanh",
}


def _read(fields: Fields, every: int | None = None) -> dict[str, Any]:
    """The fields; layers with numbers that are multiples of `every` see all tokens."""
    fields.only("use_bidirectional_attention", False)
    fields.take("hidden_act")  # Published files have it too; transformers does not read it.
    pattern = fields.some("sliding_window_pattern", fields.some("_sliding_window_pattern", 6))
    step = every or pattern
    return {
        **read_biases(fields),
        **read_windows(fields, fields.take("sliding_window"), lambda i: (i + 1) % step != 0),
        "query_scale": float(fields.some("query_pre_attn_scalar", 256)),
        "score_cap": fields.take("attn_logit_softcapping"),
        "logit_cap": fields.take("final_logit_softcapping"),
    }


def _read_gemma(fields: Fields) -> dict[str, Any]:
    fields.only("use_bidirectional_attention", False)
    # Early files say "gelu" and were trained with the approximation.
    activation = fields.some("hidden_act", "gelu")
    activation = "gelu_pytorch_tanh" if activation == "gelu" else activation
    fields.only("hidden_activation", activation)
    return read_biases(fields) | {"activation": activation}


GEMMA = Family(
    "GemmaForCausalLM",
    _read_gemma,
    lambda c: {"attention_bias": c.qkv_bias},
    Traits(offset_norms=True, scaled_embeddings=True),
    defaults={
        "num_key_value_heads": 16,
        "head_dim": 256,
        "tie_word_embeddings": True,
        "hidden_act": "gelu_pytorch_tanh",
    },
)
GEMMA2 = Family(
    "Gemma2ForCausalLM",
    lambda fields: _read(fields, every=2),
    lambda c: {
        **write_windows(c),
        "attention_bias": c.qkv_bias,
        "query_pre_attn_scalar": None if c.query_scale is None else int(c.query_scale),
        "attn_logit_softcapping": c.score_cap,
        "final_logit_softcapping": c.logit_cap,
    },
    Traits(norms_after=True, offset_norms=True, scaled_embeddings=True),
    _NAMES,
    defaults=_DEFAULTS | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    activation="hidden_activation",
)
GEMMA3 = Family(
    "Gemma3ForCausalLM",
    _read,
    lambda c: GEMMA2.write(c) | {"rope_local_base_freq": c.local_theta},
    Traits("head", norms_after=True, offset_norms=True, scaled_embeddings=True),
    _NAMES,
    defaults={
        **_DEFAULTS,
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    activation="hidden_activation",
    local_angles=True,
    within=("gemma3",),
)
