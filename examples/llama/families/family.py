"""What distinguishes one family of models from another, apart from its sizes.

All share one architecture: attention with rotary embeddings and a feed-forward part, each beside a
norm. `Traits` say what a family adds to that, and a `Family` how its models are stored in Hugging
Face's format. What differs from model to model within a family is in `sizes.Config`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from ..model.sizes import Config
    from .fields import Fields

# Names on the hub; ``{}`` is the layer number, and then the expert number. Those with `shared_w`
# are of the expert that all tokens take.
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
    "b_router": "model.layers.{}.mlp.gate.bias",
    "e_gate": "model.layers.{}.mlp.experts.{}.gate_proj.weight",
    "e_up": "model.layers.{}.mlp.experts.{}.up_proj.weight",
    "e_down": "model.layers.{}.mlp.experts.{}.down_proj.weight",
    "be_gate": "model.layers.{}.mlp.experts.{}.gate_proj.bias",
    "be_up": "model.layers.{}.mlp.experts.{}.up_proj.bias",
    "be_down": "model.layers.{}.mlp.experts.{}.down_proj.bias",
    "shared_w_gate": "model.layers.{}.mlp.shared_experts.gate_proj.weight",
    "shared_w_up": "model.layers.{}.mlp.shared_experts.up_proj.weight",
    "shared_w_down": "model.layers.{}.mlp.shared_experts.down_proj.weight",
    "choice_bias": "model.layers.{}.mlp.gate.e_score_correction_bias",
    "sinks": "model.layers.{}.self_attn.sinks",
    "wq_a": "model.layers.{}.self_attn.q_a_proj.weight",
    "bq_a": "model.layers.{}.self_attn.q_a_proj.bias",
    "q_a_norm": "model.layers.{}.self_attn.q_a_layernorm.weight",
    "wq_b": "model.layers.{}.self_attn.q_b_proj.weight",
    "wkv_a": "model.layers.{}.self_attn.kv_a_proj_with_mqa.weight",
    "bkv_a": "model.layers.{}.self_attn.kv_a_proj_with_mqa.bias",
    "kv_a_norm": "model.layers.{}.self_attn.kv_a_layernorm.weight",
    "wkv_b": "model.layers.{}.self_attn.kv_b_proj.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
}


class Fused(NamedTuple):
    """How one tensor on the hub holds weights."""

    weights: tuple[str, ...]  # their names
    alternating: bool = False  # whether outputs of two alternate, or one's come after another's
    transposed: bool = False  # whether it is [in, out]


@dataclass(frozen=True)
class Traits:
    """What all models of a family add to Llama."""

    qk_norm: Literal["head", "all"] | None = None  # of queries and keys, of each head or of all
    norms_before: bool = True  # before attention and the feed-forward part
    norms_after: bool = False  # after them
    wide_norms: bool = False  # norms multiply by their weight in float32
    offset_norms: bool = False  # they do so with one plus their weight
    scaled_embeddings: bool = False  # embeddings are multiplied by the root of their size
    gated: bool = True  # the feed-forward part has a gate
    interleaved: bool = False  # rotary embeddings turn features 2i and 2i + 1 of a head together
    sinks: bool = False  # each query head also attends to nothing, with a score that is learned
    expert_biases: bool = False  # experts and their router have biases
    # An expert's weight is the sigmoid of its logit, and a bias that no gradient trains counts in
    # the choice of experts.
    sigmoid_router: bool = False
    shared_gate: bool = True  # the expert that all tokens take has a gate of its own


@dataclass(frozen=True)
class Family:
    """A family's models, and how `config.json` and the tensors beside it describe them.

    `hf_config` reads and writes the keys that all families have.

    Attributes:
        architecture: its class in `transformers`.
        read: the fields of `Config` in the family's own keys; it takes (`Fields.take`) or refuses
            each, because keys that nobody takes are errors.
        write: those keys, from a `Config`.
        traits: what it adds to Llama.
        names: names of weights on the hub that differ from `NAMES`.
        fused: tensors on the hub that are not each a weight as it is.
        defaults: values of keys that a `config.json` leaves out, where Llama has others.
        activation: the key that names the activation function.
        silent: keys that do not affect what is computed here.
        partial_angles: whether only some features of a head may have rotary angles.
        local_angles: whether layers with a window may have rotary angles of their own.
        within: `model_type` of checkpoints whose `text_config` is a model of the family.
    """

    architecture: str
    read: Callable[[Fields], dict[str, Any]]
    write: Callable[[Config], dict[str, Any]]
    traits: Traits = Traits()
    names: Mapping[str, str] = field(default_factory=dict, hash=False)
    fused: Mapping[str, Fused] = field(default_factory=dict, hash=False)
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)
    activation: str = "hidden_act"
    silent: tuple[str, ...] = ()
    partial_angles: bool = False
    local_angles: bool = False
    within: tuple[str, ...] = ()
