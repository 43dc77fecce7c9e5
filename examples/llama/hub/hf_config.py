"""The description of a model in Hugging Face's `config.json`."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..families import FAMILIES, Family
from ..families.fields import SILENT, Fields, read_json
from ..families.fields import FormatError as FormatError
from ..families.rope_keys import read_rope, write_scaling
from ..model.sizes import ACTIVATIONS, Config

_SIZES = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads"


# Keys beside a `text_config` that are about the text model, too.
_OUTER = ("tie_word_embeddings", "quantization_config", "dtype", "torch_dtype")


def load_config(folder: str | Path) -> Config:
    """The description in a folder's `config.json`, as transformers 4 or 5 writes it."""
    path = Path(folder) / "config.json"
    return _parsed(path, read_text_config(folder))


def load_context(folder: str | Path) -> int:
    """The longest sequence that tools allow, by a folder's `config.json`; 0 if it does not say."""
    return read_text_config(folder).get("max_position_embeddings") or 0


def load_dtype(folder: str | Path) -> torch.dtype | None:
    """The dtype of the weights, by a folder's `config.json`; None if it does not say."""
    given = read_text_config(folder)
    name = given.get("dtype", given.get("torch_dtype"))
    found = getattr(torch, name, None) if isinstance(name, str) else None
    return found if isinstance(found, torch.dtype) else None


def is_text_part(folder: str | Path) -> bool:
    """Whether the model is the `text_config` of a larger one, which takes images, too."""
    return _inner_family(read_json(Path(folder) / "config.json")) is not None


def read_text_config(folder: str | Path) -> dict[str, Any]:
    """The keys of a folder's `config.json` that describe its text model."""
    path = Path(folder) / "config.json"
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path}: give a folder that save_pretrained or hf.save wrote, or that "
            "`hf download` of the hub filled"
        )
    given = read_json(path)
    if (family := _inner_family(given)) is None:
        return given
    if not isinstance(inner := given.get("text_config"), dict):
        raise FormatError(f"{path} lacks text_config: download the whole file from the hub")
    outer = {key: given[key] for key in _OUTER if given.get(key) is not None}
    return {"model_type": family} | inner | outer


def _inner_family(given: Mapping[str, Any]) -> str | None:
    """The family of the text model within a larger one."""
    outer = given.get("model_type")
    return next((name for name, family in FAMILIES.items() if outer in family.within), None)


def _parsed(path: Path, given: Mapping[str, Any]) -> Config:
    name = given.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        within = (outer for family in FAMILIES.values() for outer in family.within)
        known = ", ".join(map(repr, (*FAMILIES, *within)))
        raise FormatError(f"{path} has model_type {name!r}: give a model of one of {known}")
    family = FAMILIES[name]
    defaults = dict(family.defaults)
    if given.get("rope_parameters"):  # the newer spelling
        defaults.pop("rope_scaling", None)
    fields = Fields(path, defaults | dict(given))
    vocab, hidden, intermediate, layers, heads = fields.all_of(_SIZES)
    if "attention_dropout" not in family.silent:
        fields.only("attention_dropout", 0)
    if fields.some("quantization_config", {}):
        fields.refuse("quantization_config", "but weights in codes are not read: give plain ones")
    head_size = fields.take("head_dim")
    try:
        common: dict[str, Any] = {
            "vocab": vocab,
            "hidden": hidden,
            "intermediate": intermediate,
            "layers": layers,
            "heads": heads,
            "kv_heads": fields.some("num_key_value_heads", heads),
            "tied": fields.some("tie_word_embeddings", False),
            "norm_eps": fields.some("rms_norm_eps", 1e-6),
            "family": name,
            "head_size": None if head_size == hidden / heads else head_size,
            "activation": _activation(family, fields),
        }
        config = Config(**common | _ropes(family, fields) | family.read(fields))
    except (ValueError, TypeError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"{path} does not describe a model ({error}): download it again"
        ) from None
    fields.check_all_seen(SILENT.union(family.silent))
    return config


def _activation(family: Family, fields: Fields) -> str:
    value = fields.some(family.activation, "silu")
    if value not in ACTIVATIONS:
        known = ", ".join(map(repr, ACTIVATIONS))
        why = f"but the model only supports {known}: give weights without it"
        fields.refuse(family.activation, why)
    return value


def _ropes(family: Family, fields: Fields) -> dict[str, Any]:
    """The rotary angles, in either spelling."""
    older, newer = fields.take("rope_scaling"), fields.take("rope_parameters")
    theta = fields.some("rope_theta", 10000.0)
    given = (older or {}) | (newer or {})
    if family.partial_angles:
        share = fields.some("partial_rotary_factor", 1)
        return read_rope(fields, {"partial_rotary_factor": share} | given, theta, partial=True)
    fields.only("partial_rotary_factor", 1)
    if not family.local_angles:
        return read_rope(fields, given, theta)
    local = fields.some("rope_local_base_freq", theta)
    Fields(fields.path, given, "rope_scaling.")  # checks that those two are objects
    if "full_attention" in given or "sliding_attention" in given:
        near = read_rope(fields, given.get("sliding_attention") or {}, local)
        if near["rope_scaling"] is not None:
            fields.refuse("rope_parameters", "but layers with a window only support plain angles")
        local, given = near["rope_theta"], given.get("full_attention") or {}
    found = read_rope(fields, given, theta)
    if local == found["rope_theta"] and found["rope_scaling"] is None:
        return found
    return found | {"local_theta": local}


def config_json(config: Config, dtype: torch.dtype, context: int) -> dict[str, Any]:
    """The fields of `config.json`, in the spelling that transformers 4 and 5 both read.

    Raises:
        FormatError: the format of this family cannot express something that the model has.
    """
    family, scaling = FAMILIES[config.family], config.rope_scaling
    if scaling is not None and scaling.kind == "dynamic":
        context = scaling.original_context  # for which such models have no other key
    if scaling is not None and scaling.kind == "longrope":
        context = round(scaling.factor * scaling.original_context)
    fields = {
        "architectures": [family.architecture],
        "model_type": config.family,
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        family.activation: config.activation,
        "tie_word_embeddings": config.tied,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": context,
        "rope_theta": config.rope_theta,
        "rope_scaling": write_scaling(scaling),
        **family.write(config),
        "torch_dtype": str(dtype).removeprefix("torch."),
        # Left out, these would be tokens of the published models, and one would end a text.
        "pad_token_id": None,
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
