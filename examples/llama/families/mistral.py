"""Mistral, with a window in all layers, and Mixtral, with experts too."""

from typing import Any

from .family import Family
from .fields import Fields
from .keys import read_windows, write_experts
from .parts import Experts

MISTRAL = Family(
    "MistralForCausalLM",
    lambda fields: read_windows(fields, fields.take("sliding_window")),
    lambda c: {"sliding_window": c.window},
    defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    within=("mistral3",),
)

_SIZES = {
    "num_local_experts": "count",
    "num_experts_per_tok": "active",
    "intermediate_size": "intermediate",
}


def _read_mixtral(fields: Fields) -> dict[str, Any]:
    fields.only("router_jitter_noise", 0)
    return MISTRAL.read(fields) | {"experts": Experts(*fields.all_of(" ".join(_SIZES)))}


MIXTRAL = Family(
    "MixtralForCausalLM",
    _read_mixtral,
    lambda c: MISTRAL.write(c) | write_experts(c, **_SIZES),
    names={
        "router": "model.layers.{}.block_sparse_moe.gate.weight",
        "e_gate": "model.layers.{}.block_sparse_moe.experts.{}.w1.weight",
        "e_up": "model.layers.{}.block_sparse_moe.experts.{}.w3.weight",
        "e_down": "model.layers.{}.block_sparse_moe.experts.{}.w2.weight",
    },
    defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6},
)
