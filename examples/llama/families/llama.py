"""Llama, and families that differ from it in little."""

from typing import Any

from .family import Family
from .fields import Fields
from .keys import read_biases, read_windows


def _read(fields: Fields) -> dict[str, Any]:
    fields.only("sliding_window")
    mlp_bias = bool(fields.take("mlp_bias"))
    return {**read_biases(fields), **read_windows(fields), "mlp_bias": mlp_bias}


LLAMA = Family(
    "LlamaForCausalLM", _read, lambda c: {"attention_bias": c.qkv_bias, "mlp_bias": c.mlp_bias}
)
