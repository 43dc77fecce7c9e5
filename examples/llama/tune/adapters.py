"""Adapters in the format of PEFT: a folder with a configuration and one file of tensors."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import xfunc as xf

from .. import model
from ..files import written
from ..hub.hf_config import FormatError, read_json
from ..model import Config, Params
from ..parallel import hosts
from . import lora
from .adapter_tensors import EXPERTS, MODULE, PREFIX, A, names, of_layers, put_together
from .adapter_tensors import tensors as tensors_of
from .lora import FULL, LORA, Tune

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_COPY = ".base_layer.weight"  # of a head with an adapter, PEFT saves the base's weights too
# Settings that change what an adapter computes, with the values that `lora` supports.
_PLAIN = {
    "peft_type": ("LORA",),
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "bias": ("none", None),
    "lora_bias": (False, None),
    "layer_replication": (None,),
    "trainable_token_indices": (None,),
    "alora_invocation_tokens": (None,),
    "use_qalora": (False, None),
    "modules_to_tie": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
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
        FormatError: nothing has an adapter, or experts are trained directly, or embeddings that are
            the head too.
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
    if full := [path for path in EXPERTS if roles.get(path) == FULL]:
        raise FormatError(
            f"{', '.join(full)}: trained directly, which --adapter does not write for experts: "
            "write all weights, without it"
        )
    adapted = {path: name for path, name in names(config).items() if roles[path] == LORA}
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
        "target_modules": [
            name.removesuffix(".weight").rpartition(".")[2]
            for name in adapted.values()
            if _is_module(name)
        ],
        "target_parameters": sorted({_tail(n) for n in adapted.values() if not _is_module(n)})
        or None,
        "modules_to_save": [
            name.removesuffix(".weight")
            for path, role in roles.items()
            if role == FULL
            for name in of_layers(names(config)[path], config.layers)
        ]
        or None,
    }
    whole = hosts.fetch(params)
    if not hosts.is_first():
        return
    with written(folder) as partial:
        partial.mkdir(parents=True)
        (partial / CONFIG).write_text(json.dumps(about, indent=2) + "\n")
        save_file(dict(tensors_of(whole, config)), partial / TENSORS)


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
    try:
        tune = _tune(about, set(stored), config)
    except (KeyError, TypeError, AttributeError, ValueError, re.error) as error:
        if isinstance(error, FormatError):
            raise FormatError(f"{folder / TENSORS} does not fit: {error}. Give others") from None
        raise FormatError(f"{folder / CONFIG} is damaged ({error!r}): copy it again") from None
    shapes = lora.trained(model.shapes(config), config, tune, lora.abstract(tune))
    shapes = xf.tree.map(lambda a: torch.empty(a.shape, device="meta"), shapes)
    wanted = dict(tensors_of(shapes, config))
    problems = [f"  {name}: missing" for name in wanted if name not in stored]
    for name, tensor in stored.items():
        if name.endswith(_COPY):
            continue
        if name not in wanted:
            problems.append(f"  {name}: not a weight of this model")
        elif tensor.shape != wanted[name].shape:
            problems.append(
                f"  {name}: {tuple(tensor.shape)} in the file, {tuple(wanted[name].shape)} by "
                f"{CONFIG} and the model"
            )
        elif not (tensor.is_floating_point() and tensor.dtype.itemsize > 1):
            problems.append(f"  {name}: {tensor.dtype}, which is not a dtype of adapters")
    if problems:
        raise FormatError("\n".join([f"the adapters in {folder} do not fit:", *sorted(problems)]))
    return tune, put_together(stored, shapes, config)


def _tune(about: Mapping[str, Any], stored: set[str], config: Config) -> Tune:
    """Which weights the tensors of a file are for, by their names."""
    adapted, full = [], []
    for path, name in names(config).items():
        keys = [PREFIX + one.removesuffix(".weight") for one in of_layers(name, config.layers)]
        if path in EXPERTS:
            if _has_experts(path, about, stored, config):
                adapted.append(path)
        elif any(f"{key}{A}" in stored for key in keys):
            adapted.append(path)
        elif any(f"{key}.weight" in stored for key in keys):
            full.append(path)
    if not adapted:
        raise FormatError("it has no adapter of this model")
    return Tune(
        lora=tuple(adapted),
        full=tuple(full) or None,
        rank=about["r"],
        alpha=float(about["lora_alpha"]),
        rank_stabilised=bool(about.get("use_rslora")),
    )


def _has_experts(path: str, about: Mapping[str, Any], stored: set[str], config: Config) -> bool:
    """Whether a file has adapters of some of the experts' weights."""
    keys = [PREFIX + module for module in of_layers(MODULE, config.layers)]
    if any(f"{key}.base_layer{A}" in stored for key in keys):
        return True
    if not any(f"{key}{A}" in stored for key in keys):
        return False
    return any(names(config)[path].endswith(one) for one in about.get("target_parameters") or ())


def _is_module(name: str) -> bool:
    """Whether a weight is that of a linear map; PEFT calls the others parameters."""
    return name.endswith(".weight") and not name.endswith(".mlp.gate.weight")


def _tail(name: str) -> str:
    """The part of a name that all layers have."""
    return name.rpartition("{}.")[2]
