"""Qwen 2 and 3, and their mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..hf_fields import Fields
from ..parts import Experts
from .family import Family, Traits
from .keys import read_biases, read_windows, write_windows

if TYPE_CHECKING:
    from ..sizes import Config


def _read_windows(
    fields: Fields, is_local: Callable[[int, int], bool] = lambda i, first: i >= first
) -> dict[str, Any]:
    window = fields.some("sliding_window", 4096)
    first = fields.some("max_window_layers", 28)
    window = window if fields.take("use_sliding_window") else None
    return read_windows(fields, lambda i: is_local(i, first), window)


def _read_experts(fields: Fields, shared: int = 0) -> dict[str, Any]:
    fields.only("decoder_sparse_step", 1)
    fields.only("mlp_only_layers", [])
    count = "num_local_experts" if "num_local_experts" in fields.fields else "num_experts"
    fields.take("num_experts")
    sizes = fields.all_of(f"{count} num_experts_per_tok moe_intermediate_size")
    normalised = fields.some("norm_topk_prob", False)
    return {"experts": Experts(*sizes, normalised=normalised, shared=shared)}


def _read_qwen2(fields: Fields) -> dict[str, Any]:
    return _read_windows(fields) | {"qkv_bias": True}


def _read_qwen2_moe(fields: Fields) -> dict[str, Any]:
    # transformers inverts the number of the layer.
    found = _read_windows(fields, lambda i, first: i % 2 == 0 and i < first)
    shared = fields.some("shared_expert_intermediate_size", 5632)
    return found | _read_experts(fields, shared) | {"qkv_bias": fields.some("qkv_bias", True)}


def _read_qwen3(fields: Fields) -> dict[str, Any]:
    return _read_windows(fields) | read_biases(fields)


def _read_qwen3_moe(fields: Fields) -> dict[str, Any]:
    # transformers does not read the number of the layer.
    found = _read_windows(fields, lambda i, first: True)
    return found | _read_experts(fields) | read_biases(fields)


def _write_qwen2(c: Config) -> dict[str, Any]:
    return write_windows(c) | {"use_sliding_window": c.window is not None}


def _write_qwen3(c: Config) -> dict[str, Any]:
    return _write_qwen2(c) | {"attention_bias": c.qkv_bias}


def _write_experts(c: Config) -> dict[str, Any]:
    e = c.experts or Experts()
    return {
        "num_experts": e.count,
        "num_experts_per_tok": e.active,
        "moe_intermediate_size": e.intermediate,
        "norm_topk_prob": e.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _write_qwen2_moe(c: Config) -> dict[str, Any]:
    shared = 0 if c.experts is None else c.experts.shared
    more = {"qkv_bias": c.qkv_bias, "shared_expert_intermediate_size": shared}
    return _write_qwen2(c) | _write_experts(c) | more


QWEN2 = Family("Qwen2ForCausalLM", _read_qwen2, _write_qwen2, defaults={"num_key_value_heads": 32})
QWEN2_MOE = Family(
    "Qwen2MoeForCausalLM",
    _read_qwen2_moe,
    _write_qwen2_moe,
    names={  # of the expert that all tokens take
        "w_gate": "model.layers.{}.mlp.shared_expert.gate_proj.weight",
        "w_up": "model.layers.{}.mlp.shared_expert.up_proj.weight",
        "w_down": "model.layers.{}.mlp.shared_expert.down_proj.weight",
        "shared_gate": "model.layers.{}.mlp.shared_expert_gate.weight",
    },
    defaults={"num_key_value_heads": 16},
)
QWEN3 = Family(
    "Qwen3ForCausalLM",
    _read_qwen3,
    _write_qwen3,
    Traits(qk_norm=True),
    defaults={"num_key_value_heads": 32, "head_dim": 128},
)
QWEN3_MOE = Family(
    "Qwen3MoeForCausalLM",
    _read_qwen3_moe,
    lambda c: _write_qwen3(c) | _write_experts(c),
    Traits(qk_norm=True),
    defaults={"num_key_value_heads": 4},
)
