"""GPT-OSS: attention sinks, and experts with biases and a clamped activation."""

from typing import Any

from .family import Family, Fused, Traits
from .fields import Fields
from .keys import read_biases, read_windows, write_experts, write_windows
from .parts import Experts

_SIZES = {
    "num_local_experts": "count",
    "num_experts_per_tok": "active",
    "intermediate_size": "intermediate",
    "swiglu_limit": "limit",
    "swiglu_alpha": "slope",
}
_EXPERTS = "model.layers.{}.mlp.experts."


def _read(fields: Fields) -> dict[str, Any]:
    count, active, intermediate, limit, slope = fields.all_of(" ".join(_SIZES))
    for key in ("num_experts", "experts_per_token", "initial_context_length"):
        fields.take(key)  # Published files have them too.
    return {
        **read_biases(fields),
        **read_windows(fields, fields.take("sliding_window"), lambda i: i % 2 == 0),
        "experts": Experts(count, active, intermediate, limit=limit, slope=slope),
    }


GPT_OSS = Family(
    "GptOssForCausalLM",
    _read,
    lambda c: {**write_windows(c), **write_experts(c, **_SIZES), "attention_bias": c.qkv_bias},
    Traits(wide_norms=True, sinks=True, expert_biases=True),
    names={
        "router": "model.layers.{}.mlp.router.weight",
        "b_router": "model.layers.{}.mlp.router.bias",
    },
    fused={
        _EXPERTS + "gate_up_proj": Fused(("e_gate", "e_up"), alternating=True, transposed=True),
        _EXPERTS + "gate_up_proj_bias": Fused(("be_gate", "be_up"), alternating=True),
        _EXPERTS + "down_proj": Fused(("e_down",), transposed=True),
        _EXPERTS + "down_proj_bias": Fused(("be_down",)),
    },
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "sliding_window": 128,
        "attention_bias": True,
        "swiglu_limit": 7.0,
        "swiglu_alpha": 1.702,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
)
