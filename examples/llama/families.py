"""What distinguishes one family of models from another, apart from its sizes.

All share one architecture: attention with rotary embeddings and a gated feed-forward part, each
after a norm. A `Family` says what a family adds to that, and what its weights and its class are
called in Hugging Face's format. What differs from model to model within a family is in
`sizes.Config`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

# Names on the hub; ``{}`` is the layer number, and then the expert number.
NAMES = {
    "embed": "model.embed_tokens.weight",
    "attn_norm": "model.layers.{}.input_layernorm.weight",
    "wq": "model.layers.{}.self_attn.q_proj.weight",
    "wk": "model.layers.{}.self_attn.k_proj.weight",
    "wv": "model.layers.{}.self_attn.v_proj.weight",
    "wo": "model.layers.{}.self_attn.o_proj.weight",
    "bq": "model.layers.{}.self_attn.q_proj.bias",
    "bk": "model.layers.{}.self_attn.k_proj.bias",
    "bv": "model.layers.{}.self_attn.v_proj.bias",
    "bo": "model.layers.{}.self_attn.o_proj.bias",
    "q_norm": "model.layers.{}.self_attn.q_norm.weight",
    "k_norm": "model.layers.{}.self_attn.k_norm.weight",
    "mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
    "w_gate": "model.layers.{}.mlp.gate_proj.weight",
    "w_up": "model.layers.{}.mlp.up_proj.weight",
    "w_down": "model.layers.{}.mlp.down_proj.weight",
    "b_gate": "model.layers.{}.mlp.gate_proj.bias",
    "b_up": "model.layers.{}.mlp.up_proj.bias",
    "b_down": "model.layers.{}.mlp.down_proj.bias",
    "router": "model.layers.{}.mlp.gate.weight",
    "e_gate": "model.layers.{}.mlp.experts.{}.gate_proj.weight",
    "e_up": "model.layers.{}.mlp.experts.{}.up_proj.weight",
    "e_down": "model.layers.{}.mlp.experts.{}.down_proj.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
}
_AROUND = {  # of families that also have norms after attention and the feed-forward part
    "attn_out_norm": "model.layers.{}.post_attention_layernorm.weight",
    "mlp_norm": "model.layers.{}.pre_feedforward_layernorm.weight",
    "mlp_out_norm": "model.layers.{}.post_feedforward_layernorm.weight",
}


_MIXTRAL = {
    "router": "model.layers.{}.block_sparse_moe.gate.weight",
    "e_gate": "model.layers.{}.block_sparse_moe.experts.{}.w1.weight",
    "e_up": "model.layers.{}.block_sparse_moe.experts.{}.w3.weight",
    "e_down": "model.layers.{}.block_sparse_moe.experts.{}.w2.weight",
}
_SHARED = {  # of families with an expert that all tokens take
    "w_gate": "model.layers.{}.mlp.shared_expert.gate_proj.weight",
    "w_up": "model.layers.{}.mlp.shared_expert.up_proj.weight",
    "w_down": "model.layers.{}.mlp.shared_expert.down_proj.weight",
    "shared_gate": "model.layers.{}.mlp.shared_expert_gate.weight",
}


@dataclass(frozen=True)
class Family:
    """What all models of a family have in common.

    Attributes:
        architecture: its class in `transformers`.
        qk_norm: whether each query and key head has a norm.
        norms_around: whether there are also norms after attention and the feed-forward part.
        offset_norms: whether norms multiply by one plus their weight.
        scaled_embeddings: whether embeddings are multiplied by the square root of their size.
        names: names of weights on the hub that differ from `NAMES`.
    """

    architecture: str
    qk_norm: bool = False
    norms_around: bool = False
    offset_norms: bool = False
    scaled_embeddings: bool = False
    names: Mapping[str, str] = field(default_factory=dict, hash=False)


FAMILIES = {  # by `model_type` in config.json
    "llama": Family("LlamaForCausalLM"),
    "mistral": Family("MistralForCausalLM"),
    "qwen2": Family("Qwen2ForCausalLM"),
    "qwen3": Family("Qwen3ForCausalLM", qk_norm=True),
    "mixtral": Family("MixtralForCausalLM", names=_MIXTRAL),
    "qwen2_moe": Family("Qwen2MoeForCausalLM", names=_SHARED),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", qk_norm=True),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        norms_around=True,
        offset_norms=True,
        scaled_embeddings=True,
        names=_AROUND,
    ),
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        qk_norm=True,
        norms_around=True,
        offset_norms=True,
        scaled_embeddings=True,
        names=_AROUND,
    ),
}
