"""Weights in Hugging Face's format: a folder with `config.json` and safetensors files.

Files are read and written so that the host never holds the model more than once: `load` with
shardings holds one tensor; `save` holds one file.
"""

import contextlib
import functools
import itertools
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

import xfunc as xf

from .. import model
from ..data import tokenizer as tokenizers
from ..families import FAMILIES, NAMES, Fused
from ..families.fields import FormatError as FormatError
from ..families.fields import read_json
from ..files import written
from ..model import Config, Params, quantised
from ..model.quantised import Form
from ..parallel import hosts
from .hf_config import config_json as config_json
from .hf_config import is_text_part, read_text_config
from .hf_config import load_config as load_config

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_BESIDE_TOKENIZER = ("special_tokens_map.json", "chat_template.jinja", "generation_config.json")
_DTYPES = ("F64", "F32", "BF16", "F16")
_UNUSED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")  # in older files
_WITHIN = {  # names of a text model's tensors in a larger model, and on their own
    "language_model.model.": "model.",
    "model.language_model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "lm_head.": "lm_head.",
}


def hub_names(config: Config) -> dict[str, Any]:
    """The hub's names, in a tree like the parameters; ``{}`` is the number of a layer or expert."""
    names = NAMES | dict(FAMILIES[config.family].names)
    sparse = {stack.name for stack in config.stacks if stack.experts}

    def of(weight: str, stack: str = "") -> str:
        shared = f"shared_{weight}" if stack in sparse else weight
        return names.get(shared) or names[weight]

    return {
        name: {inner: of(inner, name) for inner in weight} if isinstance(weight, dict) else of(name)
        for name, weight in model.weights(config).items()
    }


class _Part(NamedTuple):
    """A weight in the files, or one layer of it, or one expert of one layer.

    It is the named tensor, or the outputs `outputs` of that, which are its dimension `dim`.
    """

    name: str
    layer: int  # its number; -1: the weight is in none
    shape: tuple[int, ...]
    at: tuple[int, ...]
    outputs: slice = slice(None)
    dim: int = 0
    fused: Fused = Fused(())

    def of(self, tensor: Any) -> Tensor:
        """The values in a tensor of the files, or a slice of safetensors."""
        values = tensor[:].mT if self.fused.transposed else tensor[:]
        return values[(slice(None),) * self.dim + (self.outputs,)]

    def join(self, values: list[Tensor]) -> Tensor:
        """A tensor of the files, from the values of this part and the others in it."""
        dim = self.dim
        made = torch.cat(values, dim) if len(values) > 1 else values[0]
        if self.fused.alternating:
            made = torch.stack(values, dim + 1).flatten(dim, dim + 1)
        return made.mT.contiguous() if self.fused.transposed else made


@dataclass(frozen=True)
class _FileParts:
    """The tensors in the files that a weight is made of."""

    parts: list[_Part]


def _layout(config: Config) -> Any:
    """How each weight is stored, in a tree like the parameters."""
    names, shapes = hub_names(config), model.shapes(config)
    within: Any = xf.tree.map(lambda _: (), shapes)
    for stack, (name, fused) in itertools.product(
        config.stacks, FAMILIES[config.family].fused.items()
    ):
        start, ndim = 0, 1 if fused.weights[0].startswith("b") else 2
        for i, one in enumerate(fused.weights):
            shape = shapes[stack.name][one].shape
            size, dim = shape[-ndim], len(shape) - 1 - ndim
            apart = slice(start, start + size)
            outputs = slice(i, None, len(fused.weights)) if fused.alternating else apart
            within[stack.name][one] = outputs, dim, fused
            names[stack.name][one], start = name, start + size

    def stored(
        name: str, shape: xf.ShapeDtypeStruct, more: tuple[Any, ...], first: int
    ) -> _FileParts:
        if not (stacked := name.count("{}")):
            return _FileParts([_Part(name, -1, tuple(shape.shape), (), *more)])
        inner = tuple(shape.shape[stacked:])
        parts = []
        for at in itertools.product(*map(range, shape.shape[:stacked])):
            layer = first + at[0]
            parts.append(_Part(name.format(layer, *at[1:]), layer, inner, at, *more))
        return _FileParts(parts)

    first = {stack.name: stack.layers.start for stack in config.stacks}
    starts = {
        name: xf.tree.map(lambda _, name=name: first.get(name, 0), tree)
        for name, tree in shapes.items()
    }
    return xf.tree.map(stored, names, shapes, within, starts)


def load(
    folder: str | Path, dtype: torch.dtype | None = None, shardings: Any = None, forms: Any = None
) -> tuple[Config, Params]:
    """The sizes and the weights in a folder with `config.json` and safetensors.

    Args:
        folder: with one file of tensors, or several and an index of them.
        dtype: of the parameters, but for buffers, see `model.weights`; None: as stored.
        shardings: a tree like the parameters: each tensor is put on the devices before the next one
            is read. None: CPU tensors.
        forms: a tree like the parameters: which of them are quantised as they are read.

    Raises:
        FormatError: it is another kind of model, a file is damaged, or tensors are missing, left
            over or of other shapes; the message lists them.
    """
    folder = Path(folder)
    config = load_config(folder)
    layout, shapes = _layout(config), model.shapes(config, dtype or torch.bfloat16)
    with contextlib.ExitStack() as stack:
        stored = _open(folder, stack)
        _check_tensors(folder, stored, layout)

        def read(weight: _FileParts, shape: xf.ShapeDtypeStruct) -> Tensor:
            first = weight.parts[0].of(stored[weight.parts[0].name])
            kind = first.dtype if dtype is None else shape.dtype
            if not weight.parts[0].at:
                return first.to(kind)
            found = first.new_empty(shape.shape, dtype=kind)
            for part in weight.parts:
                found[part.at] = part.of(stored[part.name])
            return found

        if shardings is None:
            return config, xf.tree.map(read, layout, shapes)

        def begun(
            weight: _FileParts, shape: xf.ShapeDtypeStruct, place: Any, form: Form
        ) -> _Placed:
            first = stored[weight.parts[0].name]
            kind = first[:0].dtype if dtype is None else shape.dtype
            whole = xf.ShapeDtypeStruct(shape.shape, kind, place)
            arrays = xf.tree.map(_Array, quantised.abstract(whole, form))
            return _Placed(weight.parts, form, arrays)

        forms = forms or xf.tree.map(lambda _: "plain", shapes)
        placed = xf.tree.map(begun, layout, shapes, shardings, forms)
    _fill(folder, xf.tree.leaves(placed))
    return config, xf.tree.map(lambda one: xf.tree.map(lambda a: a.value, one.arrays), placed)


@dataclass(frozen=True)
class _Placed:
    """A weight on the devices that is filled part by part, and the arrays that it is kept in."""

    parts: list[_Part]
    form: Form
    arrays: Any


class _Array:
    """An array on the devices that is filled part by part."""

    def __init__(self, whole: xf.ShapeDtypeStruct):
        self._shape, self._dtype, self._place = whole.shape, whole.dtype, whole.sharding
        self.value: Any = None

    def fill(self, part: Tensor, at: tuple[int, ...]) -> None:
        """Fill in a part of it, or all of it."""
        spec = xf.P(*tuple(self._place.spec)[len(at) :])
        found = xf.device_put(part.to(self._dtype), xf.NamedSharding(self._place.mesh, spec))
        if not at:
            self.value = found
            return
        if self.value is None:
            make = functools.partial(torch.zeros, self._shape, dtype=self._dtype)
            self.value = xf.jit(lambda: make(), out_shardings=self._place)()
        self.value = _filled(self._place)(self.value, found, *map(torch.tensor, at))
        xf.block_until_ready(self.value)  # Otherwise parts would pile up in memory.


@functools.cache
def _filled(place: xf.NamedSharding) -> Any:
    """A function that puts a part into a stack, in the stack's own memory."""

    def fill(stack: Tensor, part: Tensor, *at: Tensor) -> Tensor:
        return xf.at(stack)[at].set(part)

    return xf.jit(fill, donate_argnums=0, out_shardings=place)


def _fill(folder: Path, placed: list[_Placed]) -> None:
    """Fill weights one tensor after another, so that only one is in memory at a time."""
    wanted: dict[str, list[tuple[_Placed, _Part]]] = {}
    for weight in placed:
        for part in weight.parts:
            wanted.setdefault(part.name, []).append((weight, part))
    where: dict[str, tuple[Path, str]] = {}
    for path in files(folder):
        with safe_open(path, framework="pt") as file:
            where |= {name: (path, key) for name, key in _text_names(folder, file.keys()).items()}

    def tensor(name: str) -> Tensor:
        # All that was read of a file is kept in memory while it is open.
        path, key = where[name]
        with safe_open(path, framework="pt") as file:
            return file.get_tensor(key)

    for name in filter(wanted.__contains__, where):
        values = tensor(name)
        for weight, part in wanted[name]:
            made = quantised.made(part.of(values), weight.form)
            xf.tree.map(lambda a, x, at=part.at: a.fill(x, at), weight.arrays, made)


def _text_names(folder: Path, keys: Iterable[str]) -> dict[str, str]:
    """The names in files of a text model's tensors, by those that they have on their own.

    Those of layers that predict tokens after the next one are left out.
    """
    if is_text_part(folder):
        found = {}
        for inner, own in _WITHIN.items():
            found |= {own + key.removeprefix(inner): key for key in keys if key.startswith(inner)}
    else:
        found = {key: key for key in keys}
    config = read_text_config(folder)
    layers, more = (config.get(f"num_{of}_layers") or 0 for of in ("hidden", "nextn_predict"))
    beyond = tuple(f"model.layers.{i}." for i in range(layers, layers + more))
    return {name: key for name, key in found.items() if not name.startswith(beyond)}


def left_out(folder: str | Path) -> list[str]:
    """The names of tensors that `load` ignores."""
    with contextlib.ExitStack() as stack:
        paths = files(Path(folder))
        opened = [stack.enter_context(safe_open(path, framework="pt")) for path in paths]
        keys = [key for file in opened for key in file.keys()]  # noqa: SIM118
    return sorted(set(keys) - set(_text_names(Path(folder), keys).values()))


def _open(folder: Path, stack: contextlib.ExitStack) -> dict[str, Any]:
    """The tensors in a folder's files, by name: slices, which are read when they are indexed."""
    paths = files(folder)
    if missing := [str(path) for path in paths if not path.exists()]:
        raise FileNotFoundError(
            f"there is no {', '.join(missing)}: download the whole folder, with safetensors files"
        )
    found = {}
    for path in paths:
        try:
            file = stack.enter_context(safe_open(path, framework="pt"))
        except SafetensorError as error:
            raise FormatError(f"{path} is damaged ({error}): download it again") from None
        names = _text_names(folder, file.keys())
        found |= {name: file.get_slice(key) for name, key in names.items()}
    return found


def files(folder: Path) -> list[Path]:
    """The files with the weights in a folder, whether they exist or not."""
    index = folder / INDEX
    if not index.exists():
        return [folder / SINGLE]
    named = read_json(index).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise FormatError(f"{index} is damaged (its weight_map names no files): download it again")
    return [folder / name for name in sorted(set(named.values()))]


def _check_tensors(folder: Path, stored: Mapping[str, Any], layout: Any) -> None:
    """Raise an error unless the files hold exactly the tensors of the model."""
    parts = [(part, None) for weight in xf.tree.leaves(layout) for part in weight.parts]
    wanted = {name: tensor.shape for name, tensor in _tensors(parts).items()}
    lines = [f"  {name}: missing" for name in wanted if name not in stored]
    for name, tensor in stored.items():
        have, dtype = tuple(tensor.get_shape()), tensor.get_dtype()
        if name in wanted and have != wanted[name]:
            lines.append(f"  {name}: {have} in the files, {wanted[name]} by config.json")
        elif name in wanted and dtype not in _DTYPES:
            lines.append(f"  {name}: {dtype}, and weights are one of {', '.join(_DTYPES)}")
        elif name not in wanted and name != NAMES["head"] and not _UNUSED.fullmatch(name):
            lines.append(f"  {name}: not a tensor of this model")
    if lines:
        raise FormatError(
            "\n".join([f"the tensors in {folder} do not fit its config.json:", *lines])
            + "\ngive weights and config.json of the same model"
        )


def save(
    folder: str | Path,
    config: Config,
    params: Params,
    tokenizer: str | Path | None = None,
    *,
    dtype: torch.dtype | None = None,
    context: int = 131072,
    max_shard_size: int | str = "5GB",
) -> None:
    """Write a new folder that `transformers` loads like one from the hub.

    Every process must call it; the first one writes. A folder with the final name is complete.

    Args:
        folder: must not exist.
        config: the sizes.
        params: the weights; sharded ones are gathered one layer at a time.
        tokenizer: a `tokenizer.json` or the folder of one; the files beside it are copied too.
        dtype: that they are stored in, buffers in float32 at least; None: that of embeddings.
        context: how many tokens the model was trained for; other tools take this as a limit.
        max_shard_size: of each file: bytes, or a string such as ``"5GB"``.

    Raises:
        FileExistsError: `folder` already exists.
        NotWrittenError: the disk is full, or fails.
        DataError: there is no tokenizer at `tokenizer`, or it has more tokens than the model.
    """
    folder = Path(folder)
    if folder.exists():
        raise FileExistsError(f"{folder} already exists: give a new folder")
    stored: torch.dtype = dtype or params["embed"].dtype
    if not hosts.is_first():  # It takes part in gathering; the first process writes.
        _write(folder, config, params, stored, max_shard_size)
        return
    with written(folder) as partial:
        partial.mkdir(parents=True)
        fields = config_json(config, stored, context)
        if tokenizer is not None:
            fields |= _copy_tokenizer(tokenizers.load(tokenizer), partial, config)
        (partial / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
        _write(partial, config, params, stored, max_shard_size)


def _write(
    folder: Path, config: Config, params: Params, dtype: torch.dtype, max_shard_size: int | str
) -> None:
    tensors = by_name(config, params)
    empty = {
        name: torch.empty(tensor.shape, dtype=tensor.parts[0][1].dtype, device="meta")
        for name, tensor in by_name(config, model.shapes(config, dtype)).items()
    }
    split = split_torch_state_dict_into_shards(empty, max_shard_size=max_shard_size)
    for file, names in split.filename_to_tensors.items():
        found = {name: tensors[name].fetch().to(empty[name].dtype) for name in names}
        if hosts.is_first():
            save_file(found, folder / file, metadata={"format": "pt"})
    if split.is_sharded and hosts.is_first():
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


class FileTensor(NamedTuple):
    """A tensor of the files: parts of weights."""

    parts: list[tuple[_Part, Any]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        like = [torch.empty(part.shape, device="meta") for part, _ in self.parts]
        return tuple(self.parts[0][0].join(like).shape)

    def fetch(self) -> Tensor:
        """Its values, on the CPU."""
        return self.parts[0][0].join([_fetch(weight, part.at) for part, weight in self.parts])


def by_name(config: Config, params: Params) -> dict[str, FileTensor]:
    """The tensors that `save` writes, one layer after another."""
    pairs = zip(xf.tree.leaves(_layout(config)), xf.tree.leaves(params), strict=True)
    return _tensors([(part, weight) for stored, weight in pairs for part in stored.parts])


def _tensors(parts: list[tuple[_Part, Any]]) -> dict[str, FileTensor]:
    parts.sort(key=lambda pair: (pair[0].layer, pair[0].outputs.start or 0))
    found: dict[str, FileTensor] = {}
    for part, weight in parts:
        found.setdefault(part.name, FileTensor([])).parts.append((part, weight))
    return found


def _fetch(weight: Tensor, at: tuple[int, ...]) -> Tensor:
    """A weight or one layer of it, or one expert of that, on the CPU."""
    # Arrays of JAX's runtime have a class of their own, and report that they are on the CPU.
    is_on_host = type(weight) is Tensor and weight.device.type == "cpu"
    for i in at:
        weight = weight[i] if is_on_host else _take(weight, i)
    return hosts.fetch(weight).contiguous()


@xf.jit
def _take(stack: Tensor, i: int | Tensor) -> Tensor:
    return stack[i]


def _copy_tokenizer(found: tokenizers.Tokenizer, folder: Path, config: Config) -> dict[str, Any]:
    """Copy the files, and return the fields of `config.json` about it."""
    found.check_fits(config.vocab)
    found.save(folder)
    for name in _BESIDE_TOKENIZER:
        beside = found.files[0].with_name(name)
        if beside.exists():
            shutil.copy(beside, folder)
    if not (folder / "tokenizer_config.json").exists():
        # Without it transformers uses the class of Llama 2, which changes the tokens.
        plain = {"tokenizer_class": "PreTrainedTokenizerFast"}
        (folder / "tokenizer_config.json").write_text(json.dumps(plain) + "\n")
    return {"bos_token_id": found.begin, "eos_token_id": found.end}
