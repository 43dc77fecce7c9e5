"""The description of a model in Hugging Face's `config.json`."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .families import FAMILIES
from .hf_fields import SILENT, Fields, read_json
from .hf_fields import FormatError as FormatError
from .hf_rope import read_rope, write_scaling
from .sizes import ACTIVATIONS, Config, Experts

_SIZES = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads"
# The defaults of transformers for keys that are left out, where families differ.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"num_key_value_heads": 32},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
    "mixtral": {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6},
    "qwen2_moe": {"num_key_value_heads": 16},
    "qwen3_moe": {"num_key_value_heads": 4},
    "gemma2": {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "tie_word_embeddings": True,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3_text": {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "tie_word_embeddings": True,
        "sliding_window": 4096,
        "rope_theta": 1e6,
    },
}


def load_config(folder: str | Path) -> Config:
    """The description in a folder's `config.json`, as transformers 4 or 5 writes it.

    Raises:
        FileNotFoundError: there is no such file.
        FormatError: it is of another kind of model, or has a key, named, that `model` does not
            support.
    """
    path = Path(folder) / "config.json"
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path}: give a folder that save_pretrained or hf.save wrote, or that "
            "`hf download` of the hub filled"
        )
    return _parsed(path, read_json(path))


def load_context(folder: str | Path) -> int:
    """The longest sequence that tools allow, by a folder's `config.json`; 0 if it does not say."""
    return read_json(Path(folder) / "config.json").get("max_position_embeddings") or 0


def load_dtype(folder: str | Path) -> torch.dtype | None:
    """The dtype of the weights, by a folder's `config.json`; None if it does not say."""
    given = read_json(Path(folder) / "config.json")
    name = given.get("dtype", given.get("torch_dtype"))
    found = getattr(torch, name, None) if isinstance(name, str) else None
    return found if isinstance(found, torch.dtype) else None


def _parsed(path: Path, given: Mapping[str, Any]) -> Config:
    family = given.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        known = ", ".join(map(repr, FAMILIES))
        raise FormatError(f"{path} has model_type {family!r}: give a model of one of {known}")
    fields = Fields(path, _DEFAULTS[family] | dict(given))
    vocab, hidden, intermediate, layers, heads = fields.all_of(_SIZES)
    for key in ("attention_dropout", "router_jitter_noise"):
        fields.only(key, 0)
    codes = fields.some("quantization_config", {})
    if codes and codes.get("quant_method") != "bitsandbytes":
        why = "but only codes of bitsandbytes are read: give weights in those, or plain ones"
        fields.refuse("quantization_config", why)
    fields.only("use_bidirectional_attention", False)
    head_size = fields.take("head_dim")
    window, full_layers = _window(family, fields, layers)
    try:
        config = Config(
            vocab=vocab,
            hidden=hidden,
            intermediate=intermediate,
            layers=layers,
            heads=heads,
            kv_heads=fields.some("num_key_value_heads", heads),
            tied=fields.some("tie_word_embeddings", False),
            norm_eps=fields.some("rms_norm_eps", 1e-6),
            family=family,
            head_size=None if head_size == hidden / heads else head_size,
            activation=_activation(family, fields),
            window=window,
            full_layers=full_layers,
            experts=_experts(family, fields),
            **_biases(family, fields),
            **_gemma(family, fields),
            **_ropes(family, fields),
        )
    except (ValueError, TypeError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"{path} does not describe a model ({error}): download it again"
        ) from None
    fields.check_all_seen(SILENT)
    return config


def _activation(family: str, fields: Fields) -> str:
    if family.startswith("gemma"):
        key, default = "hidden_activation", "gelu_pytorch_tanh"
        fields.take("hidden_act")  # Published files have it too; transformers does not read it.
    else:
        key, default = "hidden_act", "silu"
    value = fields.some(key, default)
    if value not in ACTIVATIONS:
        known = ", ".join(map(repr, ACTIVATIONS))
        fields.refuse(key, f"but the model only supports {known}: give weights without it")
    return value


def _biases(family: str, fields: Fields) -> dict[str, bool]:
    if family == "qwen2":
        return {"qkv_bias": True}
    if family == "qwen2_moe":
        return {"qkv_bias": fields.some("qkv_bias", True)}
    if family in ("mistral", "mixtral"):
        return {}
    both = bool(fields.take("attention_bias"))
    mlp = bool(fields.take("mlp_bias")) if family == "llama" else False
    return {"qkv_bias": both, "out_bias": both, "mlp_bias": mlp}


def _experts(family: str, fields: Fields) -> Experts | None:
    if family == "mixtral":
        names = "num_local_experts num_experts_per_tok intermediate_size"
        return Experts(*fields.all_of(names))
    if not family.endswith("_moe"):
        return None
    fields.only("decoder_sparse_step", 1)
    fields.only("mlp_only_layers", [])
    count = "num_local_experts" if "num_local_experts" in fields.fields else "num_experts"
    fields.take("num_experts")
    names = f"{count} num_experts_per_tok moe_intermediate_size"
    normalised = fields.some("norm_topk_prob", False)
    shared = 0
    if family == "qwen2_moe":
        shared = fields.some("shared_expert_intermediate_size", 5632)
    return Experts(*fields.all_of(names), normalised=normalised, shared=shared)


def _gemma(family: str, fields: Fields) -> dict[str, Any]:
    if not family.startswith("gemma"):
        return {}
    return {
        "query_scale": float(fields.some("query_pre_attn_scalar", 256)),
        "score_cap": fields.take("attn_logit_softcapping"),
        "logit_cap": fields.take("final_logit_softcapping"),
    }


def _window(family: str, fields: Fields, layers: int) -> tuple[int | None, tuple[int, ...]]:
    """How far a token sees, and the layers in which it sees all."""
    window = fields.take("sliding_window")
    pattern = fields.some("sliding_window_pattern", fields.some("_sliding_window_pattern", 6))
    kinds = fields.take("layer_types")
    if family.startswith("qwen"):
        window = fields.some("sliding_window", 4096) if fields.take("use_sliding_window") else None
        first = fields.some("max_window_layers", 28)
        local = [i >= first for i in range(layers)]
        if family == "qwen3_moe":  # transformers does not read the number there,
            local = [True] * layers
        elif family == "qwen2_moe":  # and inverts it here.
            local = [i % 2 == 0 and i < first for i in range(layers)]
    elif family.startswith("gemma"):
        every = 2 if family == "gemma2" else pattern
        local = [(i + 1) % every != 0 for i in range(layers)]
    else:
        local = [window is not None] * layers
    if family == "llama" and window is not None:
        fields.only("sliding_window")
    if kinds is not None:
        names = {"full_attention": False, "sliding_attention": True}
        if len(kinds) != layers or not set(kinds) <= set(names):
            fields.refuse(
                "layer_types",
                f"and it must have {layers}, each 'full_attention' or 'sliding_attention'",
            )
        local = [names[kind] for kind in kinds]
    if window is None or not any(local):
        return None, ()
    return window, tuple(i for i, one in enumerate(local) if not one)


def _ropes(family: str, fields: Fields) -> dict[str, Any]:
    """The rotary angles, in either spelling."""
    older, newer = fields.take("rope_scaling"), fields.take("rope_parameters")
    fields.only("partial_rotary_factor", 1)
    theta = fields.some("rope_theta", 10000.0)
    given = (older or {}) | (newer or {})
    if family != "gemma3_text":
        return read_rope(fields, given, theta)
    local = fields.some("rope_local_base_freq", 10000.0)
    Fields(fields.path, given, "rope_scaling.")  # checks that those two are objects
    if "full_attention" in given or "sliding_attention" in given:
        near = read_rope(fields, given.get("sliding_attention") or {}, local)
        if near["rope_scaling"] is not None:
            fields.refuse("rope_parameters", "but layers with a window only support plain angles")
        local, given = near["rope_theta"], given.get("full_attention") or {}
    return read_rope(fields, given, theta) | {"local_theta": local}


# -- writing ----------------------------------------------------------------------------------


def config_json(config: Config, dtype: torch.dtype, context: int) -> dict[str, Any]:
    """The fields of `config.json`, in the spelling that transformers 4 and 5 both read.

    Raises:
        FormatError: the format of this family cannot express something that the model has.
    """
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "dynamic":
        context = scaling.original_context  # for which such models have no other key
    fields = {
        "architectures": [config.traits.architecture],
        "model_type": config.family,
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": config.activation,
        "tie_word_embeddings": config.tied,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": context,
        "rope_theta": config.rope_theta,
        "rope_scaling": write_scaling(scaling),
        **_particular(config),
        "torch_dtype": str(dtype).removeprefix("torch."),
        # Left out, these would be 1 and 2, and 2 would end a text.
        "bos_token_id": None,
        "eos_token_id": None,
    }
    read = _parsed(Path("config.json"), fields)
    if read != config:
        differ = ", ".join(
            f"{f.name}={getattr(config, f.name)!r}"
            for f in dataclasses.fields(config)
            if getattr(config, f.name) != getattr(read, f.name)
        )
        raise FormatError(
            f"models of the family {config.family} have no {differ} in Hugging Face's format: "
            "choose a family that supports it, or train without it"
        )
    return fields


def _particular(c: Config) -> dict[str, Any]:
    """What only some families have."""
    kinds = ["sliding_attention" if local else "full_attention" for local in c.local_layers]
    gemma = {
        "hidden_activation": c.activation,
        "attention_bias": c.qkv_bias,
        "query_pre_attn_scalar": None if c.query_scale is None else int(c.query_scale),
        "attn_logit_softcapping": c.score_cap,
        "final_logit_softcapping": c.logit_cap,
        "sliding_window": c.window,
        "layer_types": kinds,
    }
    qwen = {
        "use_sliding_window": c.window is not None,
        "sliding_window": c.window,
        "layer_types": kinds,
    }
    e = c.experts or Experts()
    moe = {
        "num_experts": e.count,
        "num_experts_per_tok": e.active,
        "moe_intermediate_size": e.intermediate,
        "norm_topk_prob": e.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    return {
        "llama": {"attention_bias": c.qkv_bias, "mlp_bias": c.mlp_bias},
        "mistral": {"sliding_window": c.window},
        "mixtral": {
            "sliding_window": c.window,
            "num_local_experts": e.count,
            "num_experts_per_tok": e.active,
            "intermediate_size": e.intermediate,
        },
        "qwen2_moe": qwen
        | moe
        | {"qkv_bias": c.qkv_bias, "shared_expert_intermediate_size": e.shared},
        "qwen3_moe": qwen | moe | {"attention_bias": c.qkv_bias},
        "qwen2": qwen,
        "qwen3": qwen | {"attention_bias": c.qkv_bias},
        "gemma2": gemma,
        "gemma3_text": gemma | {"rope_local_base_freq": c.local_theta},
    }[c.family]
