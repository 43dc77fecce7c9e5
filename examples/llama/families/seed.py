"""Seed-OSS: biases of queries, keys and values, and others of their own."""

from .family import Family

_BIASES = {"attention_bias": "qkv_bias", "attention_out_bias": "out_bias", "mlp_bias": "mlp_bias"}
SEED_OSS = Family(
    "SeedOssForCausalLM",
    lambda fields: {name: bool(fields.take(key)) for key, name in _BIASES.items()},
    lambda c: {key: getattr(c, name) for key, name in _BIASES.items()},
    defaults={"num_key_value_heads": 8, "head_dim": 128, "attention_bias": True},
    silent=("attention_dropout", "residual_dropout"),  # Published files have 0.1.
)
