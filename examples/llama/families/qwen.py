"""Qwen 2 and 3, and their mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .family import Family, Traits
from .fields import Fields
from .keys import read_biases, read_windows, write_experts, write_windows
from .parts import Experts

if TYPE_CHECKING:
    from ..model.sizes import Config

_SIZES = {
    "num_experts": "count",
    "num_experts_per_tok": "active",
    "moe_intermediate_size": "intermediate",
    "norm_topk_prob": "normalised",
}


def _windows(
    fields: Fields, is_local: Callable[[int, int], bool] = lambda i, first: i >= first
) -> dict[str, Any]:
    """The windows; `is_local` takes the numbers of the layer and of the first one with a window."""
    window, first = fields.some("sliding_window", 4096), fields.some("max_window_layers", 28)
    window = window if fields.take("use_sliding_window") else None
    return read_windows(fields, window, lambda i: is_local(i, first))


def _experts(fields: Fields, shared: int = 0) -> dict[str, Any]:
    step, dense = fields.some("decoder_sparse_step", 1), fields.some("mlp_only_layers", [])
    layers = range(fields.take("num_hidden_layers"))
    count = "num_local_experts" if "num_local_experts" in fields.fields else "num_experts"
    fields.take("num_experts")
    sizes = fields.all_of(f"{count} num_experts_per_tok moe_intermediate_size")
    normalised = fields.some("norm_topk_prob", False)
    return {
        "experts": Experts(*sizes, normalised=normalised, shared=shared),
        "dense_layers": tuple(i for i in layers if i in dense or (i + 1) % step),
    }


def _write_experts(c: Config, **more: str) -> dict[str, Any]:
    return write_experts(c, **_SIZES, **more) | {"mlp_only_layers": list(c.dense_layers)}


def _read_qwen2_moe(fields: Fields) -> dict[str, Any]:
    # transformers inverts the number of the layer.
    windows = _windows(fields, lambda i, first: i % 2 == 0 and i < first)
    shared = fields.some("shared_expert_intermediate_size", 5632)
    return windows | _experts(fields, shared) | {"qkv_bias": fields.some("qkv_bias", True)}


QWEN2 = Family(
    "Qwen2ForCausalLM",
    lambda fields: _windows(fields) | {"qkv_bias": True},
    lambda c: write_windows(c) | {"use_sliding_window": c.window is not None},
    defaults={"num_key_value_heads": 32},
)
QWEN2_MOE = Family(
    "Qwen2MoeForCausalLM",
    _read_qwen2_moe,
    lambda c: {
        **QWEN2.write(c),
        **_write_experts(c, shared_expert_intermediate_size="shared"),
        "qkv_bias": c.qkv_bias,
    },
    names={  # of the expert that all tokens take
        "shared_w_gate": "model.layers.{}.mlp.shared_expert.gate_proj.weight",
        "shared_w_up": "model.layers.{}.mlp.shared_expert.up_proj.weight",
        "shared_w_down": "model.layers.{}.mlp.shared_expert.down_proj.weight",
        "shared_gate": "model.layers.{}.mlp.shared_expert_gate.weight",
    },
    defaults={"num_key_value_heads": 16},
)
QWEN3 = Family(
    "Qwen3ForCausalLM",
    lambda fields: _windows(fields) | read_biases(fields),
    lambda c: QWEN2.write(c) | {"attention_bias": c.qkv_bias},
    Traits(qk_norm="head"),
    defaults={"num_key_value_heads": 32, "head_dim": 128},
)
QWEN3_MOE = Family(
    "Qwen3MoeForCausalLM",
    # transformers does not read the number of the first layer with a window.
    lambda fields: _windows(fields, lambda *_: True) | _experts(fields) | read_biases(fields),
    lambda c: QWEN3.write(c) | _write_experts(c),
    Traits(qk_norm="head"),
    defaults={"num_key_value_heads": 4},
)
