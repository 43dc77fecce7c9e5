"""Trained weights: of a run's checkpoint, or of a folder in Hugging Face's format."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import xfunc as xf

from . import config, hf, options, tokenizer, train
from .checkpoints import Checkpoints
from .config import Run
from .finite import check_finite
from .hf_config import load_config, load_context
from .model import Params
from .options import SettingError
from .owner import owned
from .restored import restore
from .train import Recipe


class Trained(NamedTuple):
    """Weights on the devices, and what belongs to them."""

    name: str  # what they are, for people
    run: Run
    recipe: Recipe
    params: Params
    tokenizer: Path  # a folder that has one

    def computing(self) -> Params:
        """The weights as the model is computed with them."""
        return xf.jit(self.recipe.numbers.computing)(self.params)


def load(
    folder: Path, step: int | None = None, source: str | None = None, pairs: Iterable[str] = ()
) -> Trained:
    """The weights in a folder.

    Args:
        folder: a run's, or one in Hugging Face's format.
        step: which checkpoint of a run; None: the newest.
        source: settings, see `config.read`; None: those of the run.
        pairs: settings that differ from those.
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
    # The folder may have been moved, and a tokenizer made of the data anew be another one.
    data = dataclasses.replace(run.data, tokenizer=str(folder / "tokenizer"))
    run = dataclasses.replace(run, folder=str(folder), data=data)
    recipe = run.recipe(xf.device_count())
    found = restore(Checkpoints(folder / "checkpoints"), recipe, step)
    name = f"step {found.step} of {folder}"
    return _usable(Trained(name, run, recipe, found.state.params, folder / "tokenizer"))


def load_published(folder: Path, source: str | None, pairs: Iterable[str], base: Run) -> Trained:
    """The weights in a folder in Hugging Face's format; its model and tokenizer are the run's.

    Args:
        folder: has config.json and safetensors.
        source: settings, see `config.read`.
        pairs: settings that differ from those.
        base: the settings that neither gives, without the model.
    """
    sizes = load_config(folder)
    base = dataclasses.replace(base, train=dataclasses.replace(base.train, model=sizes))
    run = config.read(source, pairs, base)
    if run.train.model != sizes:
        was, given = options.plain(sizes), options.plain(run.train.model)
        differ = "; ".join(
            f"train.model.{key} is {given[key]}, and there it is {was[key]}"
            for key in was
            if given[key] != was[key]
        )
        raise SettingError(
            f"the model is that of {folder / 'config.json'}: {differ}. Leave these settings out"
        )
    data = dataclasses.replace(run.data, tokenizer=str(folder.absolute()))
    run = dataclasses.replace(run, data=data, context=load_context(folder))
    recipe = run.recipe(xf.device_count())
    shardings: Any = train.shardings(recipe)
    _, params = hf.load(folder, recipe.numbers.weights, shardings.params)
    return Trained(str(folder), run, recipe, params, folder)


def _usable(trained: Trained) -> Trained:
    """The same; raises an error if weights are not finite."""
    check_finite(trained.params, trained.name, "use an older checkpoint, with --step")
    return trained


def import_published(source: Path, given: str | None = None, pairs: Iterable[str] = ()) -> Run:
    """Make a run of weights in Hugging Face's format: they are its checkpoint of step 0.

    Args:
        source: has config.json and safetensors.
        given: settings, see `config.read`.
        pairs: settings that differ from those; what neither gives is that of `config.TUNING`.
    """
    trained = _usable(load_published(source, given, pairs, config.TUNING))
    folder = Path(trained.run.folder)
    with owned(folder):
        _save_as_run(trained, source, folder)
    return trained.run


def _save_as_run(trained: Trained, source: Path, folder: Path) -> None:
    start = xf.jit(
        lambda params: train.start(trained.recipe, params),
        out_shardings=train.shardings(trained.recipe),
    )
    with Checkpoints(folder / "checkpoints") as checkpoints:
        extra = {"data": None, "run": options.plain(trained.run)}
        checkpoints.save(0, start(trained.params), extra)
    if (source / "tokenizer.json").exists():
        tokenizer.load(source).save(folder / "tokenizer")
    config.write(trained.run, folder / "config.yaml")


def export_published(trained: Trained, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write weights and tokenizer in Hugging Face's format.

    Args:
        trained: the weights.
        folder: a new one.
        dtype: in which they are stored; None: that in which the model was computed.
    """
    dtype = dtype or trained.recipe.numbers.arithmetic
    model, context = trained.recipe.model, max(trained.run.context, trained.run.data.seq)
    hf.save(folder, model, trained.params, trained.tokenizer, dtype=dtype, context=context)
