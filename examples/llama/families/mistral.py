"""Mistral, with a window in all layers, and Mixtral, with experts too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..hf_fields import Fields
from ..parts import Experts
from .family import Family
from .keys import read_windows

if TYPE_CHECKING:
    from ..sizes import Config


def _read(fields: Fields) -> dict[str, Any]:
    return read_windows(fields, window=fields.take("sliding_window"))


def _write(c: Config) -> dict[str, Any]:
    return {"sliding_window": c.window}


MISTRAL = Family(
    "MistralForCausalLM",
    _read,
    _write,
    defaults={"num_key_value_heads": 8, "sliding_window": 4096},
)


def _read_mixtral(fields: Fields) -> dict[str, Any]:
    fields.only("router_jitter_noise", 0)
    names = "num_local_experts num_experts_per_tok intermediate_size"
    return _read(fields) | {"experts": Experts(*fields.all_of(names))}


def _write_mixtral(c: Config) -> dict[str, Any]:
    e = c.experts or Experts()
    return _write(c) | {
        "num_local_experts": e.count,
        "num_experts_per_tok": e.active,
        "intermediate_size": e.intermediate,
    }


MIXTRAL = Family(
    "MixtralForCausalLM",
    _read_mixtral,
    _write_mixtral,
    names={
        "router": "model.layers.{}.block_sparse_moe.gate.weight",
        "e_gate": "model.layers.{}.block_sparse_moe.experts.{}.w1.weight",
        "e_up": "model.layers.{}.block_sparse_moe.experts.{}.w3.weight",
        "e_down": "model.layers.{}.block_sparse_moe.experts.{}.w2.weight",
    },
    defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6},
)
