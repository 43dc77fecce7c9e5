"""The sizes of a Llama as Hugging Face's `config.json` has them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .model import Config, RopeScaling


class FormatError(ValueError):
    """A folder does not hold a Llama that `model` can compute."""


def load_config(folder: str | Path) -> Config:
    """The sizes in a folder's `config.json`, as transformers 4 or 5 writes it.

    Raises:
        FileNotFoundError: there is no such file.
        FormatError: it is of another model, or asks for what `model` cannot do.
    """
    path = Path(folder) / "config.json"
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path}: give a folder that save_pretrained or hf.save wrote, or that "
            "`hf download` of the hub filled"
        )
    fields = read_json(path)
    _check_supported(path, fields)
    heads = fields["num_attention_heads"]
    theta, scaling = _rope(path, fields)
    return Config(
        vocab=fields["vocab_size"],
        hidden=fields["hidden_size"],
        intermediate=fields["intermediate_size"],
        layers=fields["num_hidden_layers"],
        heads=heads,
        kv_heads=fields.get("num_key_value_heads") or heads,
        tied=fields.get("tie_word_embeddings", False),
        rope_theta=theta,
        norm_eps=fields.get("rms_norm_eps", 1e-6),
        rope_scaling=scaling,
    )


def load_context(folder: str | Path) -> int:
    """The longest sequence that tools allow for, by a folder's `config.json`; 0 if it is silent."""
    return read_json(Path(folder) / "config.json").get("max_position_embeddings", 0)


def _check_supported(path: Path, fields: Mapping[str, Any]) -> None:
    kind = fields.get("model_type")
    if kind != "llama":
        raise FormatError(f"{path} has model_type {kind!r}, not 'llama': give a Llama model")
    sizes = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads"
    _check_has(path, fields, sizes)
    head_dim = fields["hidden_size"] // fields["num_attention_heads"]
    computed = {
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "head_dim": head_dim,
        "quantization_config": None,
    }
    given = {name: fields.get(name, value) for name, value in computed.items()}
    wrong = [
        f"{name} {value!r}, and the model computes {computed[name]!r} only"
        for name, value in given.items()
        if value is not None and value != computed[name]
    ]
    if wrong:
        raise FormatError(f"{path} has {'; '.join(wrong)}: give weights without it")


def _check_has(path: Path, fields: Mapping[str, Any], names: str) -> None:
    if missing := [name for name in names.split() if name not in fields]:
        raise FormatError(f"{path} lacks {', '.join(missing)}: take the whole file from the hub")


def _rope(path: Path, fields: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """The base of the rotary angles and how they are scaled, in either spelling."""
    rope = (fields.get("rope_scaling") or {}) | (fields.get("rope_parameters") or {})
    theta = rope.get("rope_theta", fields.get("rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise FormatError(
            f"{path} has rotary angles of type {kind!r}: the model computes 'default' and 'llama3'"
        )
    names = "factor low_freq_factor high_freq_factor original_max_position_embeddings"
    _check_has(path, rope, names)
    return theta, RopeScaling(*(rope[name] for name in names.split()))


def config_json(config: Config, dtype: torch.dtype, context: int) -> dict[str, Any]:
    """The fields of `config.json`, in the spelling that transformers 4 and 5 both read."""
    scaling = config.rope_scaling
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": config.tied,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": context,
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling
        and {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        },
        "torch_dtype": str(dtype).removeprefix("torch."),
        # Left out, these would be 1 and 2, and 2 would end a text.
        "bos_token_id": None,
        "eos_token_id": None,
    }


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file."""
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise FormatError(f"{path} is damaged ({error}): download it anew") from None
    if not isinstance(found, dict):
        raise FormatError(f"{path} is damaged (it holds no object): download it anew")
    return found
