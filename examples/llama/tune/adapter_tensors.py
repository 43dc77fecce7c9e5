"""The tensors in PEFT's files of adapters: their names, and the forms that experts have there.

In transformers 5 the experts of a layer are two parameters, `gate_up_proj` and `down_proj`. PEFT
keeps the adapters of all experts in one pair of matrices for each: `lora_A` has the rows of one
expert after those of another, and `lora_B` the columns of all experts for each rank. A module that
wraps `down_proj` wraps the one of `gate_up_proj` as its `base_layer`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..families import FAMILIES
from ..families.fields import FormatError
from ..hub import hf
from ..model import Config, Params
from . import lora
from .lora import Adapter

PREFIX = "base_model.model."
EXPERTS = "layers.e_gate", "layers.e_up", "layers.e_down"
_GATE, _UP, _DOWN = EXPERTS
MODULE = "model.layers.{}.mlp.experts"
A, B = ".lora_A.weight", ".lora_B.weight"


def names(config: Config) -> dict[str, str]:
    """The names of weights in the modules of transformers; ``{}`` is the number of a layer.

    Those of experts name a parameter, of which they are all or half.

    Raises:
        FormatError: the family keeps several weights in one tensor, which has one adapter there.
    """
    if len(config.stacks) > 1:
        raise FormatError(
            f"models of the family {config.family} have layers of several kinds, and adapters of "
            "such models have no files: leave out --adapter, and export merged weights"
        )
    if fused := FAMILIES[config.family].fused:
        several = ", ".join(name for each in fused.values() for name in each.weights)
        raise FormatError(
            f"models of the family {config.family} keep {several} in tensors for several of them, "
            "for which PEFT has one adapter: leave out --adapter, and export merged weights"
        )
    every = {path: _newer(name) for path, name in lora.named(hf.hub_names(config)).items()}
    parameters = f"{MODULE}.gate_up_proj", f"{MODULE}.gate_up_proj", f"{MODULE}.down_proj"
    own = {path: name for path, name in zip(EXPERTS, parameters, strict=True) if path in every}
    return every | own


def of_layers(name: str, layers: int) -> list[str]:
    """The names of all layers' parts of a weight."""
    return [name.format(i) for i in range(layers)] if "{}" in name else [name]


def tensors(tree: Params, config: Config) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file by name, from what is trained."""
    every = lora.named(tree)
    for path, name in names(config).items():
        if path not in every or path in EXPERTS:
            continue
        leaf = every[path]
        for layer, one in enumerate(of_layers(PREFIX + name, config.layers)):
            parts: Any = leaf if isinstance(leaf, Adapter) else (leaf,)
            for key, part in zip(_keys(one, isinstance(leaf, Adapter)), parts, strict=True):
                yield key, part[layer].contiguous() if "{}" in name else part
    for layer, module in enumerate(of_layers(PREFIX + MODULE, config.layers)):
        for inner, paths in _wrapped(every).items():
            downs, ups = zip(*(every[path] for path in paths), strict=True)
            up = torch.cat([up[layer] for up in ups], -2)
            yield from zip(_keys(module + inner, True), _of_all(downs[0][layer], up), strict=True)


def put_together(stored: Mapping[str, Tensor], shapes: Params, config: Config) -> Params:
    """What is trained, from the tensors of a file.

    Args:
        stored: the tensors.
        shapes: what is trained, as tensors of these shapes.
        config: the sizes.
    """
    every, found = lora.named(shapes), {}
    where = {path: inner for inner, paths in _wrapped(every).items() for path in paths}
    known = names(config)
    for path, leaf in every.items():
        adapted = isinstance(leaf, Adapter)
        name = MODULE + where[path] if path in where else known[path]
        keys = [_keys(one, adapted) for one in of_layers(PREFIX + name, config.layers)]
        layers = [[stored[key].float() for key in column] for column in zip(*keys, strict=True)]
        whole = [torch.stack(parts) if "{}" in known[path] else parts[0] for parts in layers]
        if not adapted:
            found[path] = whole[0]
            continue
        down, up = whole
        if path in where:
            down, up = _of_experts(down, up, config, path)
        found[path] = Adapter(None if leaf.down is None else down, up)
    return lora.nested(found)


def _of_all(down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The adapters of all experts in a layer, from those of each."""
    return down.flatten(0, 1), up.permute(1, 2, 0).flatten(1).contiguous()


def _of_experts(down: Tensor, up: Tensor, config: Config, path: str) -> tuple[Tensor, Tensor]:
    """The adapters of each expert, from those of all."""
    assert config.experts is not None
    count = config.experts.count
    up = up.unflatten(-1, (-1, count)).permute(0, 3, 1, 2)
    if path != _DOWN:
        up = up.chunk(2, -2)[path == _UP]
    return down.unflatten(1, (count, -1)), up.contiguous()


def _wrapped(every: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Which weights of experts have adapters, by the part of the file's names that follows the
    module of the experts.
    """
    gates, downs = (isinstance(every.get(path), Adapter) for path in (_GATE, _DOWN))
    found: dict[str, tuple[str, ...]] = {}
    if gates:
        found[".base_layer" if downs else ""] = (_GATE, _UP)
    if downs:
        found[""] = (_DOWN,)
    return found


def _keys(name: str, adapted: bool) -> tuple[str, ...]:
    if not adapted:
        return (name,)
    module = name.removesuffix(".weight")
    return module + A, module + B


def _newer(name: str) -> str:
    return name.replace(".block_sparse_moe.", ".mlp.")
