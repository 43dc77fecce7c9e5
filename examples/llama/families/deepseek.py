"""DeepSeek V3: latent attention, and experts in all layers but the first ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .family import Family, Traits
from .fields import Fields
from .keys import read_biases, read_sigmoid_experts, write_sigmoid_experts
from .parts import Latent

if TYPE_CHECKING:
    from ..model.sizes import Config

_SIZES = {
    "kv_lora_rank": "keys",
    "q_lora_rank": "queries",
    "qk_rope_head_dim": "rotary",
    "qk_nope_head_dim": "plain",
    "v_head_dim": "values",
}


def _read(fields: Fields) -> dict[str, Any]:
    fields.only("rope_interleave", True)
    fields.take("qk_head_dim")  # Files have the sum of its two parts, too.
    return {
        **read_biases(fields),
        **read_sigmoid_experts(fields),
        "latent": Latent(**{name: fields.take(key) for key, name in _SIZES.items()}),
        "kv_heads": fields.take("num_attention_heads"),  # Other numbers are not read.
        "head_size": None,
    }


def _write(c: Config) -> dict[str, Any]:
    sizes = {key: getattr(c.latent, name, None) for key, name in _SIZES.items()}
    return {
        **write_sigmoid_experts(c),
        **sizes,
        "head_dim": sizes["qk_rope_head_dim"],
        "rope_interleave": True,
        "attention_bias": c.qkv_bias,
    }


DEEPSEEK_V3 = Family(
    "DeepseekV3ForCausalLM",
    _read,
    _write,
    Traits(interleaved=True, sigmoid_router=True, shared_gate=False),
    defaults={
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
        "norm_topk_prob": True,
    },
)
