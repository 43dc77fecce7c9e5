"""Adapters in the format of PEFT: a folder with a configuration and one file of tensors.

The file has adapters of linear maps, and weights that are trained directly. Those of experts,
routers, and weights that transformers keeps in one tensor with others have other forms in PEFT,
which are neither read nor written.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import xfunc as xf

from .. import model
from ..families import FAMILIES
from ..files import written
from ..hub import hf
from ..hub.hf_config import FormatError, read_json
from ..model import Config, Params
from ..parallel import hosts
from . import lora
from .lora import FULL, LORA, Adapter, Tune

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
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
    "target_parameters": (None, []),
}


def save(folder: Path, params: Params, config: Config, tune: Tune, base: str) -> None:
    """Write what is trained into a new folder, for `peft.PeftModel.from_pretrained`.

    `base` is the folder, or the name on the hub, of the weights that the adapters are for.

    Raises:
        FileExistsError: there is something at `folder`.
        FormatError: nothing has an adapter, or something is trained that the file cannot have.
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
    adapted, full = (
        [name for names in modules(config, paths).values() for name in names]
        for paths in ([path for path, one in roles.items() if one == role] for role in (LORA, FULL))
    )
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
        "target_modules": adapted,
        "modules_to_save": full or None,
    }
    whole = hosts.fetch(params)
    if not hosts.is_first():
        return
    with written(folder) as partial:
        partial.mkdir(parents=True)
        (partial / CONFIG).write_text(json.dumps(about, indent=2) + "\n")
        save_file(dict(_tensors(whole, config)), partial / TENSORS)


def load(folder: Path, config: Config) -> tuple[Tune, Params]:
    """What `save` or PEFT wrote: which weights are trained, and these on the CPU, in float32."""
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
        tune = _tune(about, stored, config)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise FormatError(f"{folder / TENSORS} does not fit: {error}. Give others") from None
        raise FormatError(f"{folder / CONFIG} is damaged ({error!r}): copy it again") from None
    shapes = lora.trained(model.shapes(config), config, tune, lora.abstract(tune))
    shapes = xf.tree.map(lambda a: torch.empty(a.shape, device="meta"), shapes)
    wanted = dict(_tensors(shapes, config))
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
    return tune, _put_together(stored, shapes, config)


def modules(config: Config, paths: Iterable[str]) -> dict[str, list[str]]:
    """The modules of transformers that have weights: one for each layer of a stack, or one.

    Raises:
        FormatError: PEFT's files have some in another form.
    """
    paths = list(paths)
    if wrong := [path for path in paths if not _has_module(config, path)]:
        raise FormatError(
            f"{', '.join(wrong)}: only linear maps, embeddings and norms, each a tensor of its "
            "own, are in the files of adapters: leave out --adapter, and export merged weights"
        )
    names, layers = lora.named(hf.hub_names(config)), {s.name: s.layers for s in config.stacks}
    found = {}
    for path in paths:
        name = names[path].removesuffix(".weight")
        found[path] = [name.format(i) for i in layers.get(path.partition(".")[0], range(1))]
    return found


def _has_module(config: Config, path: str) -> bool:
    """Whether a weight is alone in a module that is no router's or expert's."""
    fused = {one for each in FAMILIES[config.family].fused.values() for one in each.weights}
    own, name = lora.within(path), lora.named(hf.hub_names(config))[path]
    others = own == "router" or own in fused or name.count("{}") > 1
    return name.endswith(".weight") and not others


def _tensors(tree: Params, config: Config) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file by name, from what is trained."""
    every = lora.named(tree)
    for path, names in modules(config, every).items():
        for i, name in enumerate(names):
            leaf: Any = every[path]
            parts = {_A: leaf.down, _B: leaf.up} if isinstance(leaf, Adapter) else {".weight": leaf}
            for suffix, part in parts.items():
                yield _PREFIX + name + suffix, part[i].contiguous() if lora.within(path) else part


def _put_together(stored: Mapping[str, Tensor], shapes: Params, config: Config) -> Params:
    """What is trained, from the tensors of a file; `shapes` has tensors of the same shapes."""
    every, found = lora.named(shapes), {}
    for path, names in modules(config, every).items():

        def whole(suffix: str, path: str = path, names: list[str] = names) -> Tensor:
            parts = [stored[_PREFIX + name + suffix].float() for name in names]
            return torch.stack(parts) if lora.within(path) else parts[0]

        adapted = isinstance(every[path], Adapter)
        found[path] = Adapter(whole(_A), whole(_B)) if adapted else whole(".weight")
    return lora.nested(found)


def _tune(about: Mapping[str, Any], stored: Mapping[str, Tensor], config: Config) -> Tune:
    """Which weights the tensors of a file are for, by their names."""
    known = filter(lambda path: _has_module(config, path), lora.named(model.shapes(config)))
    adapted, full = [], []
    for path, names in modules(config, known).items():
        if any(_PREFIX + name + _A in stored for name in names):
            adapted.append(path)
        elif any(f"{_PREFIX}{name}.weight" in stored for name in names):
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
