"""Rotary angles in Hugging Face's `config.json`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from .fields import Fields
from .parts import ROPE_KINDS, RopeScaling

# The keys of each kind, as they are written, and the fields that have other names.
_KEYS = {
    "llama3": "factor low_freq_factor high_freq_factor original_max_position_embeddings",
    "linear": "factor",
    "dynamic": "factor",
    "yarn": (
        "factor beta_fast beta_slow truncate attention_factor mscale mscale_all_dim "
        "original_max_position_embeddings"
    ),
    "longrope": "short_factor long_factor",  # transformers 4 refuses others.
}
_FIELDS = {
    "original_max_position_embeddings": "original_context",
    "short_factor": "short_factors",
    "long_factor": "long_factors",
}


def read_rope(
    outer: Fields, given: Mapping[str, Any], theta: float, *, partial: bool = False
) -> dict[str, Any]:
    """The fields of `Config` for `rope_scaling`, or `rope_parameters`, of a `config.json`.

    Angles have the base `theta` unless that object has one; if `partial`, only some features of a
    head may have angles.
    """
    fields = Fields(outer.path, given, "rope_scaling.")
    theta = fields.some("rope_theta", theta)
    found: dict[str, Any] = {"rope_theta": theta, "rope_scaling": None}
    if not partial:
        fields.only("partial_rotary_factor", 1)
    if (share := fields.some("partial_rotary_factor", 1)) != 1:
        hidden, heads = outer.all_of("hidden_size num_attention_heads")
        found["rotary_size"] = int(outer.some("head_dim", hidden // heads) * share)
    kind = fields.some("rope_type", fields.some("type", "default"))
    fields.take("type")
    kind = "longrope" if kind == "su" else kind  # its first name, in early files
    if kind == "default":
        fields.check_all_seen()
        return found
    if kind not in ROPE_KINDS:
        known = ", ".join(map(repr, ("default", *ROPE_KINDS)))
        key = "rope_type" if "rope_type" in given else "type"
        fields.refuse(key, f"but the model only supports {known}: give weights without it")
    context = outer.fields.get("max_position_embeddings")
    if kind == "llama3":
        scaling = RopeScaling(*fields.all_of(_KEYS["llama3"]))
    elif kind == "yarn":
        scaling = _yarn(outer, fields)
    elif kind == "longrope":
        scaling = _longrope(outer, fields)
    else:
        [factor] = fields.all_of("factor")
        fields.take("original_max_position_embeddings")  # Not read for these.
        scaling = RopeScaling(factor, kind=kind)
        if kind == "dynamic":
            [context] = outer.all_of("max_position_embeddings")
            scaling = dataclasses.replace(scaling, original_context=context)
    fields.check_all_seen()
    return found | {"rope_scaling": scaling}


def _longrope(outer: Fields, fields: Fields) -> RopeScaling:
    short, long = fields.all_of("short_factor long_factor")
    within = fields.take("original_max_position_embeddings")
    [longest] = outer.all_of("max_position_embeddings")
    context = outer.some("original_max_position_embeddings", within) or longest
    return RopeScaling(
        fields.some("factor", None) or longest / context,
        original_context=context,
        kind="longrope",
        attention_factor=fields.take("attention_factor"),
        short_factors=tuple(map(float, short)),
        long_factors=tuple(map(float, long)),
    )


def _yarn(outer: Fields, fields: Fields) -> RopeScaling:
    context = fields.take("original_max_position_embeddings")
    if context is None:
        [context] = outer.all_of("max_position_embeddings")
    factor = fields.take("factor")
    if factor is None:
        [longest] = outer.all_of("max_position_embeddings")
        factor = longest / context
    return RopeScaling(
        factor,
        original_context=context,
        kind="yarn",
        beta_fast=fields.some("beta_fast", None) or 32.0,
        beta_slow=fields.some("beta_slow", None) or 1.0,
        attention_factor=fields.take("attention_factor"),
        mscale=fields.take("mscale"),
        mscale_all_dim=fields.take("mscale_all_dim"),
        truncate=fields.take("truncate", True),
    )


def write_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    """`rope_scaling` of a `config.json`."""
    if scaling is None:
        return None
    keys = {key: getattr(scaling, _FIELDS.get(key, key)) for key in _KEYS[scaling.kind].split()}
    found = {key: list(x) if isinstance(x, tuple) else x for key, x in keys.items()}
    kind = "type" if scaling.kind == "longrope" else "rope_type"
    return {kind: scaling.kind} | {key: x for key, x in found.items() if x is not None}
