"""Adapters in the format of PEFT: a folder with a configuration and one file of tensors."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import xfunc as xf

from . import hf, hosts, lora, model
from .files import written
from .hf_config import FormatError, read_json
from .lora import FULL, LORA, Adapter, Tune
from .model import Config, Params

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_COPY = ".base_layer.weight"  # of a head with an adapter, PEFT saves the base's weights too
# Settings that change what an adapter computes, with the values that `lora` supports.
_PLAIN = {
    "peft_type": ("LORA",),
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "layer_replication": (None,),
    "trainable_token_indices": (None,),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None,),
    "use_qalora": (False, None),
    "modules_to_tie": (None, []),
}


def save(folder: Path, params: Params, config: Config, tune: Tune, base: str) -> None:
    """Write what is trained, for `peft.PeftModel.from_pretrained`.

    Args:
        folder: a new one.
        params: what is trained.
        config: the sizes.
        tune: which weights have adapters, and how the adapters are scaled.
        base: the folder, or the name on the hub, of the weights that they are for.

    Raises:
        FileExistsError: there is something at `folder`.
        FormatError: nothing has an adapter, or embeddings are trained that are the head too.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} already exists: give a new folder")
    roles = lora.named(lora.roles(config, tune))
    if LORA not in roles.values():
        raise FormatError("no weight has an adapter: write all weights, without --adapter")
    if config.tied and roles["embed"] == FULL:
        raise FormatError(
            "embed is trained, and the head is the same matrix, which PEFT would save "
            "separately: write all weights, without --adapter"
        )
    modules = {path: name.removesuffix(".weight") for path, name in _names(config).items()}
    about = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": tune.rank,
        "lora_alpha": tune.alpha,
        "use_rslora": tune.rank_stabilised,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": [modules[p].rpartition(".")[2] for p, r in roles.items() if r == LORA],
        "modules_to_save": [
            name
            for path, role in roles.items()
            if role == FULL
            for name in _of_layers(modules[path], config.layers)
        ]
        or None,
    }
    whole = hosts.fetch(params)
    if not hosts.is_first():
        return
    with written(folder) as partial:
        partial.mkdir(parents=True)
        (partial / CONFIG).write_text(json.dumps(about, indent=2) + "\n")
        save_file(dict(_tensors(whole, config)), partial / TENSORS)


def load(folder: Path, config: Config) -> tuple[Tune, Params]:
    """What `save` or PEFT wrote: which weights are trained, and these on the CPU, in float32.

    Raises:
        FileNotFoundError: there are no adapters.
        FormatError: they are of a kind that `lora` does not compute, or do not fit the model, or a
            file is damaged.
    """
    for name in (CONFIG, TENSORS):
        if not (folder / name).exists():
            raise FileNotFoundError(
                f"there is no {folder / name}: give a folder that PEFT's save_pretrained wrote"
            )
    about = read_json(folder / CONFIG)
    if wrong := [
        f"{name} {about[name]!r}"
        for name, known in _PLAIN.items()
        if name in about and about[name] not in known
    ]:
        raise FormatError(
            f"{folder / CONFIG} has {', '.join(wrong)}: give adapters without it, or merge them "
            "with PEFT"
        )
    try:
        stored = load_file(folder / TENSORS)
    except SafetensorError as error:
        raise FormatError(f"{folder / TENSORS} is damaged ({error}): copy it again") from None
    tune = _tune(folder, about, set(stored), config)
    shapes = lora.trained(model.shapes(config), config, tune, lora.abstract(tune))
    wanted = dict(_tensors(shapes, config))
    problems = [f"  {name}: missing" for name in wanted if name not in stored]
    for name, tensor in stored.items():
        if name.endswith(_COPY):
            continue
        if name not in wanted:
            problems.append(f"  {name}: not a weight of this model")
        elif tuple(tensor.shape) != tuple(wanted[name].shape):
            problems.append(
                f"  {name}: {tuple(tensor.shape)} in the file, {tuple(wanted[name].shape)} by "
                f"{CONFIG} and the model"
            )
        elif not (tensor.is_floating_point() and tensor.dtype.itemsize > 1):
            problems.append(f"  {name}: {tensor.dtype}, which is not a dtype of adapters")
    if problems:
        raise FormatError("\n".join([f"the adapters in {folder} do not fit:", *sorted(problems)]))
    return tune, _put_together(stored, shapes, config)


def _tune(folder: Path, about: dict[str, Any], stored: set[str], config: Config) -> Tune:
    """Which weights the tensors of a file are for, by their names."""
    adapted, full = [], []
    for path, name in _names(config).items():
        module = name.removesuffix(".weight")
        keys = [f"{_PREFIX}{one}" for one in _of_layers(module, config.layers)]
        if any(f"{key}.lora_A.weight" in stored for key in keys):
            adapted.append(path)
        elif any(f"{key}.weight" in stored for key in keys):
            full.append(path)
    if not adapted:
        raise FormatError(f"{folder / TENSORS} has no adapter of this model: give others")
    try:
        rank, alpha = about["r"], float(about["lora_alpha"])
        stabilised = bool(about.get("use_rslora"))
        return Tune(tuple(adapted), tuple(full) or None, rank, alpha, stabilised)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{folder / CONFIG} is damaged ({error!r}): copy it again") from None


def _put_together(stored: dict[str, Tensor], shapes: Params, config: Config) -> Params:
    names, found = _names(config), {}
    for path, shape in lora.named(shapes).items():
        is_adapter, name = isinstance(shape, Adapter), names[path]
        columns = zip(*_keys(name, is_adapter, config.layers), strict=True)
        layers = [[stored[key].float() for key in column] for column in columns]
        whole = [torch.stack(parts) if "{}" in name else parts[0] for parts in layers]
        found[path] = Adapter(*whole) if is_adapter else whole[0]
    return lora.nested(found)


def _tensors(tree: Params, config: Config) -> Iterator[tuple[str, Any]]:
    """The tensors of a file by name; for a tree of shapes, their shapes."""
    names = _names(config)
    for path, leaf in lora.named(tree).items():
        parts = leaf if isinstance(leaf, Adapter) else (leaf,)
        keys = _keys(names[path], isinstance(leaf, Adapter), config.layers)
        for layer, of_layer in enumerate(keys):
            for key, part in zip(of_layer, parts, strict=True):
                yield key, _one(part, layer) if "{}" in names[path] else part


def _one(part: Any, layer: int) -> Any:
    """One layer of a stack."""
    if isinstance(part, Tensor):
        return part[layer].contiguous()
    return xf.ShapeDtypeStruct(part.shape[1:], part.dtype)


def _keys(name: str, adapted: bool, layers: int) -> Iterator[tuple[str, ...]]:
    """The file's names for a weight's tensors, layer by layer."""
    for one in _of_layers(name, layers):
        key = _PREFIX + one
        if not adapted:
            yield (key,)
            continue
        module = re.sub(r"\.weight$", "", key)
        yield f"{module}.lora_A.weight", f"{module}.lora_B.weight"


def _of_layers(name: str, layers: int) -> list[str]:
    return [name.format(i) for i in range(layers)] if "{}" in name else [name]


def _names(config: Config) -> dict[str, str]:
    return lora.named(hf.hub_names(config))
