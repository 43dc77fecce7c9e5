"""Keys of `config.json` that several families have, but not all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .fields import Fields
from .parts import Experts

if TYPE_CHECKING:
    from ..model.sizes import Config

_KINDS = {"full_attention": False, "sliding_attention": True}


def read_biases(fields: Fields) -> dict[str, bool]:
    """`attention_bias`: of all four maps of attention."""
    both = bool(fields.take("attention_bias"))
    return {"qkv_bias": both, "out_bias": both}


def read_windows(
    fields: Fields, window: int | None = None, is_local: Callable[[int], bool] = lambda i: True
) -> dict[str, Any]:
    """Which layers have a window, by `layer_types` or else by `is_local`; None: no layer has."""
    kinds, layers = fields.take("layer_types"), fields.take("num_hidden_layers")
    if kinds is not None and (len(kinds) != layers or not set(kinds) <= set(_KINDS)):
        known = " or ".join(map(repr, _KINDS))
        fields.refuse("layer_types", f"and it must have {layers}, each {known}")
    local = [is_local(i) for i in range(layers)] if kinds is None else [_KINDS[k] for k in kinds]
    if window is None or not any(local):
        return {}
    return {"window": window, "full_layers": tuple(i for i in range(layers) if not local[i])}


def write_windows(c: Config) -> dict[str, Any]:
    """`sliding_window` and `layer_types`."""
    names = {local: name for name, local in _KINDS.items()}
    kinds = [names[local] for local in c.local_layers]
    return {"sliding_window": c.window, "layer_types": kinds}


_SIGMOID = {
    "n_routed_experts": "count",
    "num_experts_per_tok": "active",
    "moe_intermediate_size": "intermediate",
    "n_group": "groups",
    "topk_group": "active_groups",
    "routed_scaling_factor": "scale",
    "norm_topk_prob": "normalised",
}


def read_sigmoid_experts(fields: Fields) -> dict[str, Any]:
    """The experts of all layers but the first ones, with a router that has sigmoids."""
    for key, value in ("scoring_func", "sigmoid"), ("topk_method", "noaux_tc"):
        fields.only(key, value)
    fields.only("moe_layer_freq", 1)
    for key in ("ep_size", "aux_loss_alpha", "seq_aux", "num_nextn_predict_layers"):
        fields.take(key)  # about training, several devices, and layers that are left out
    sizes = {name: fields.some(key, 1) for key, name in _SIGMOID.items()}
    shared = fields.some("n_shared_experts", 0) * sizes["intermediate"]
    layers, dense = fields.take("num_hidden_layers"), fields.some("first_k_dense_replace", 0)
    if dense >= layers:
        return {}
    return {"experts": Experts(**sizes, shared=shared), "dense_layers": tuple(range(dense))}


def write_sigmoid_experts(c: Config) -> dict[str, Any]:
    """The keys that `read_sigmoid_experts` reads."""
    e = c.experts or Experts()
    return write_experts(c, **_SIGMOID) | {
        "n_shared_experts": e.shared // e.intermediate,
        "first_k_dense_replace": len(c.dense_layers) if c.experts else c.layers,
        "num_nextn_predict_layers": 0,
    }


def write_experts(c: Config, **names: str) -> dict[str, Any]:
    """The experts' sizes, by the names of their fields."""
    return {key: getattr(c.experts or Experts(), name) for key, name in names.items()}
