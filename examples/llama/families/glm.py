"""GLM 4.5: experts in all layers but the first ones, and rotary angles of half of each head."""

from .family import Family, Traits
from .keys import read_sigmoid_experts, write_sigmoid_experts

GLM4_MOE = Family(
    "Glm4MoeForCausalLM",
    lambda fields: {
        **read_sigmoid_experts(fields),
        "qkv_bias": bool(fields.take("attention_bias")),
        "qk_norms": bool(fields.take("use_qk_norm")),
    },
    lambda c: {
        **write_sigmoid_experts(c),
        "attention_bias": c.qkv_bias,
        "use_qk_norm": c.qk_norms,
        "partial_rotary_factor": c.rotary_dim / c.head_dim,
    },
    Traits(qk_norm="head", sigmoid_router=True, shared_gate=False),
    defaults={
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
    },
    partial_angles=True,
)
