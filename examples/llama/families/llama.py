"""Llama."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..hf_fields import Fields
from .family import Family
from .keys import read_biases, read_windows

if TYPE_CHECKING:
    from ..sizes import Config


def _read(fields: Fields) -> dict[str, Any]:
    fields.only("sliding_window")
    mlp_bias = bool(fields.take("mlp_bias"))
    return {**read_biases(fields), **read_windows(fields), "mlp_bias": mlp_bias}


def _write(c: Config) -> dict[str, Any]:
    return {"attention_bias": c.qkv_bias, "mlp_bias": c.mlp_bias}


LLAMA = Family("LlamaForCausalLM", _read, _write)
