"""ERNIE 4.5: rotary embeddings of neighbouring features."""

from .family import Family, Traits

ERNIE4_5 = Family(
    "Ernie4_5ForCausalLM",
    lambda fields: dict.fromkeys(
        ("qkv_bias", "out_bias", "mlp_bias"), bool(fields.take("use_bias"))
    ),
    lambda c: {"use_bias": c.qkv_bias},
    Traits(interleaved=True),
    defaults={
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "tie_word_embeddings": True,
    },
)
