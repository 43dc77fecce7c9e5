"""Phi 3 and 4: several weights in one tensor, and rotary angles of some features of a head."""

from typing import Any

from .family import Family, Fused
from .fields import Fields
from .keys import read_windows


def _read(fields: Fields) -> dict[str, Any]:
    for key in ("resid_pdrop", "embd_pdrop", "attention_bias", "mlp_bias", "lm_head_bias"):
        fields.only(key, 0)
    for key in ("full_attn_mod", "interpolate_factor"):  # Phi 4 has them.
        fields.only(key, 1)
    fields.take("original_max_position_embeddings")
    return read_windows(fields, fields.take("sliding_window"))


PHI3 = Family(
    "Phi3ForCausalLM",
    _read,
    lambda c: {
        "sliding_window": c.window,
        "partial_rotary_factor": c.rotary_dim / c.head_dim,
        "original_max_position_embeddings": (
            4096 if c.rope_scaling is None else c.rope_scaling.original_context
        ),
    },
    fused={
        "model.layers.{}.self_attn.qkv_proj.weight": Fused(("wq", "wk", "wv")),
        "model.layers.{}.mlp.gate_up_proj.weight": Fused(("w_gate", "w_up")),
    },
    defaults={"rms_norm_eps": 1e-5},
    partial_angles=True,
)
