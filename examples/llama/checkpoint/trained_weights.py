"""Trained weights: from a run's checkpoint, or a folder in Hugging Face's format."""

import dataclasses
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import xfunc as xf

from .. import config, options, train
from ..config import Run
from ..data import documents, tokenizer
from ..hub import hf
from ..hub.hf_config import load_config, load_context, load_dtype
from ..model import Params
from ..model.parameters import cast, check_finite
from ..options import SettingError
from ..parallel import hosts
from ..train.train_config import Recipe
from ..tune import adapters, base_weights, lora
from .checkpoints import Checkpoints
from .run_lock import owned


class Trained(NamedTuple):
    """Weights on the devices, and what belongs to them."""

    name: str  # a description for people
    run: Run
    recipe: Recipe
    params: Params  # those that are trained
    tokenizer: Path  # a folder that has one
    base: Params | None = None  # those that are not
    step: int | None = None  # of the checkpoint; None: they are in Hugging Face's format

    @property
    def remedy(self) -> str:
        """What to do if the weights are of no use."""
        if self.step is None:
            return "download or export them again"
        return "use an older checkpoint, with --step"

    def whole(self) -> Params:
        """All weights, with adapters merged in."""
        if self.base is None:
            return self.params
        tune, dtype = self.recipe.tune, self.recipe.numbers.arithmetic

        def merge(params: Params, base: Params) -> Params:
            return lora.merged(lora.join(params, base, tune), dtype)

        return xf.jit(merge)(self.params, self.base)

    def computing(self) -> Params:
        """All weights, in the form the model computes with."""
        return xf.jit(self.recipe.numbers.computing)(self.whole())


def load(
    folder: Path, step: int | None = None, source: str | None = None, pairs: Iterable[str] = ()
) -> Trained:
    """The weights in a run's folder, at a step or the newest one, or in Hugging Face's format.

    `source` and `pairs` are settings that differ from the run's, see `config.read`.
    """
    if (folder / "config.json").exists():
        if step is not None:
            raise SettingError(f"{folder} has one set of weights: leave out --step")
        return _usable(load_published(folder, source, pairs, Run()))
    if not (folder / "config.yaml").exists():
        raise SettingError(
            f"{folder} has neither the config.yaml of a run nor the config.json of a model: "
            "give the folder of one"
        )
    run = config.read(source or folder / "config.yaml", pairs)
    # The folder may have been moved, and a tokenizer trained again might differ.
    data = dataclasses.replace(run.data, tokenizer=str(folder / "tokenizer"))
    run = dataclasses.replace(run, folder=str(folder), data=data)
    hosts.check_same_settings(run)
    tokens = folder / "tokenizer"
    hosts.check_same_files(tokens, [tokens / name for name in tokenizer.FILES])
    run.keep_programs()
    recipe = run.recipe(xf.device_count())
    based = base_weights.about(run, recipe)
    found = Checkpoints(folder / "checkpoints").restore(
        {"params": train.abstract_state(recipe).params},
        step,
        lambda extra: base_weights.check_same(based, extra["base"]),
        partial=True,
    )
    name, params = f"step {found.step} of {folder}", found.state["params"]
    frozen = base_weights.load(run, recipe)
    return _usable(Trained(name, run, recipe, params, folder / "tokenizer", frozen, found.step))


def load_published(
    folder: Path,
    source: str | None,
    pairs: Iterable[str],
    defaults: Run,
    adapter: Path | None = None,
) -> Trained:
    """The weights in a folder in Hugging Face's format; its model and tokenizer are the run's.

    `source` and `pairs` are those of `config.read`, and `defaults` what neither gives, except the
    model. `adapter` is a folder of adapters to start from.
    """
    sizes = load_config(folder)
    tune, started = defaults.train.tune, None
    if adapter is not None:
        tune, started = adapters.load(adapter, sizes)
    base_folder, context = str(folder.absolute()), load_context(folder)
    recipe = dataclasses.replace(defaults.train, model=sizes, tune=tune)
    if load_dtype(folder) is torch.bfloat16:
        recipe = dataclasses.replace(recipe, precision="mixed")
    data = dataclasses.replace(defaults.data, seq=min(context or 2048, 2048))
    start = dataclasses.replace(defaults, train=recipe, data=data)
    pairs = tuple(pairs)
    run = config.read(source, pairs, config.tuned(config.read(source, pairs, start), start))
    hosts.check_same_settings(run)
    for files in (run.data.files, run.data.validation):
        documents.find(files)  # An error before the weights are read, which takes long.
    hosts.check_same_files(folder, [folder / "config.json", *hf.files(folder)])
    hosts.check_same_files(folder, [folder / name for name in tokenizer.FILES])
    if adapter is not None:
        hosts.check_same_files(adapter, [adapter / adapters.CONFIG, adapter / adapters.TENSORS])
    run.keep_programs()
    _check_left("model", sizes, run.train.model, folder / "config.json")
    if adapter is not None:
        tune = dataclasses.replace(tune, base=run.train.tune.base)  # Not PEFT's to say.
        _check_left("tune", tune, run.train.tune, adapter / adapters.CONFIG)
    data = dataclasses.replace(run.data, tokenizer=base_folder)
    run = dataclasses.replace(run, data=data, context=context, base=base_folder)
    recipe = run.recipe(xf.device_count())
    if not recipe.has_base:
        _, params = hf.load(folder, recipe.numbers.weights, base_weights.every_sharding(recipe))
        return Trained(str(folder), run, recipe, params, folder)
    _, every = base_weights.read(folder, recipe)
    where = train.shardings(recipe).params
    if started is None:
        params = _begun(every, run, where, recipe)
    else:
        params = xf.device_put(cast(started, recipe.numbers.weights), where)
    name = str(folder) if adapter is None else f"{folder}, with the adapters in {adapter},"
    return Trained(name, run, recipe, params, folder, base_weights.frozen(every, recipe))


def _check_left(key: str, was: Any, now: Any, file: Path) -> None:
    """Raise an error if settings in `train` differ from those in a file."""
    if was == now:
        return
    known, given = options.plain(was), options.plain(now)
    differ = "; ".join(
        f"train.{key}.{name} is {given[name]}, but {known[name]} there"
        for name in known
        if given[name] != known[name]
    )
    raise SettingError(f"train.{key} comes from {file}: {differ}. Leave these settings out")


def _begun(params: Params, run: Run, where: Params, recipe: Recipe) -> Params:
    """The trained part of all weights, before the first step."""

    def begin(params: Params) -> Params:
        adapt = lora.adapters(recipe.model, recipe.tune, xf.random.key(run.seed))
        found = lora.trained(params, recipe.model, recipe.tune, adapt)
        return cast(found, recipe.numbers.weights)

    return xf.jit(begin, out_shardings=where)(params)


def _usable(trained: Trained) -> Trained:
    """The same; raises an error if weights are not finite."""
    every = {"trained": trained.params, "base": trained.base}
    check_finite(every, trained.name, trained.remedy)
    return trained


def import_published(
    folder: Path,
    source: str | None = None,
    pairs: Iterable[str] = (),
    adapter: Path | None = None,
) -> Run:
    """Make a run from weights in Hugging Face's format: they become its checkpoint of step 0."""
    trained = _usable(load_published(folder, source, pairs, config.TUNING, adapter))
    run = Path(trained.run.folder)
    with owned(run):
        _save_as_run(trained, folder, run)
    return trained.run


def _save_as_run(trained: Trained, source: Path, folder: Path) -> None:
    start = xf.jit(
        lambda params: train.start(trained.recipe, params),
        out_shardings=train.shardings(trained.recipe),
    )
    settings = folder / "config.yaml"
    with Checkpoints(folder / "checkpoints") as checkpoints:
        if hosts.is_first() and not settings.exists() and checkpoints.steps() == [0]:
            shutil.rmtree(checkpoints.folder / "0")  # Left by an import that was killed.
        hosts.agree(False)  # The others wait for this.
        run = options.plain(trained.run)
        extra = {"data": None, "run": run, "base": base_weights.about(trained.run, trained.recipe)}
        checkpoints.save(0, start(trained.params), extra, at_once=True)
    if not hosts.is_first():
        return
    if (source / "tokenizer.json").exists():
        tokenizer.load(source).save(folder / "tokenizer")
    config.write(trained.run, settings)


def export_published(trained: Trained, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write weights, in a dtype or the model's, and tokenizer in Hugging Face's format."""
    dtype = dtype or trained.recipe.numbers.arithmetic
    model, context = trained.recipe.model, max(trained.run.context, trained.run.data.seq)
    hf.save(folder, model, trained.whole(), trained.tokenizer, dtype=dtype, context=context)


def export_adapters(trained: Trained, folder: Path) -> None:
    """Write the trained adapters in PEFT's format."""
    recipe, name = trained.recipe, trained.run.base or ""
    adapters.save(folder, trained.params, recipe.model, recipe.tune, name)
