"""OLMo 2 and 3: norms after attention and the feed-forward part, and of all queries and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .family import Family, Traits
from .keys import read_biases, read_windows, write_windows
from .rope_keys import write_scaling

if TYPE_CHECKING:
    from ..model.sizes import Config

_TRAITS = Traits(qk_norm="all", norms_before=False, norms_after=True, wide_norms=True)
_NAMES = {
    "attn_out_norm": "model.layers.{}.post_attention_layernorm.weight",
    "mlp_out_norm": "model.layers.{}.post_feedforward_layernorm.weight",
}


def _angles(c: Config) -> dict[str, Any]:
    """Those of both kinds of layers; `rope_scaling` is added to the former, for transformers 4."""
    local = c.rope_theta if c.local_theta is None else c.local_theta
    return {
        "full_attention": {"rope_theta": c.rope_theta, **(write_scaling(c.rope_scaling) or {})},
        "sliding_attention": {"rope_theta": local, "rope_type": "default"},
    }


OLMO2 = Family(
    "Olmo2ForCausalLM",
    read_biases,
    lambda c: {"attention_bias": c.qkv_bias},
    _TRAITS,
    _NAMES,
    defaults={"rms_norm_eps": 1e-5},
)
OLMO3 = Family(
    "Olmo3ForCausalLM",
    lambda fields: {
        **read_biases(fields),
        **read_windows(fields, fields.take("sliding_window"), lambda i: (i + 1) % 4 != 0),
    },
    lambda c: {**OLMO2.write(c), **write_windows(c), "rope_parameters": _angles(c)},
    _TRAITS,
    _NAMES,
    defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096, "rope_theta": 5e5},
    local_angles=True,
)
