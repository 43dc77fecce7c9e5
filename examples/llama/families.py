"""What tells one family of models from another, beside its sizes.

All are one model: attention with rotary embeddings and a gated feed-forward part, each behind a
norm. A `Family` says what a family adds to that, and what its weights and its class are called in
Hugging Face's format. What differs from model to model within a family is in `sizes.Config`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

# Names on the hub; ``{}`` is the number of a layer, and then of an expert.
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
_AROUND = {  # of families with norms behind attention and the feed-forward part too
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
_SHARED = {  # of families with a part that all tokens take
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
        qk_norm: whether each head of queries and keys has a norm.
        norms_around: whether there are norms behind attention and the feed-forward part too.
        offset_norms: whether norms multiply by one plus their weight.
        scaled_embeddings: whether embeddings are multiplied by the root of their size.
        names: of weights on the hub, where they are not those of `NAMES`.
    """

    architecture: str
    qk_norm: bool = False
    norms_around: bool = False
    offset_norms: bool = False
    scaled_embeddings: bool = False
    names: Mapping[str, str] = field(default_factory=dict, hash=False)


FAMILIES = {  # by what `model_type` in config.json calls them
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
