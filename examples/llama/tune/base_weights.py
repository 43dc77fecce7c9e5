"""The weights that a run does not train: a folder in Hugging Face's format, which it refers to."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import xfunc as xf

from .. import model
from ..config import Run
from ..files import sums
from ..hub import hf
from ..model import Config, Params, quantised
from ..model.parameters import is_buffer
from ..options import SettingError
from ..parallel import hosts
from ..train.train_config import Recipe
from . import lora


class BaseChangedError(SettingError):
    """The weights of a run's base are not those that it began with."""


def about(run: Run, recipe: Recipe) -> dict[str, Any] | None:
    """What a checkpoint says about the base, as plain JSON values; None if there is no base.

    Raises:
        ProcessesDifferError: the base has other weights for another process.
    """
    if not recipe.has_base:
        return None
    if run.base is None:
        left = "train.tune leaves weights as they are"
        why = "the loss compares with it" if recipe.compared else left
        raise SettingError(
            f"{why}, but there is no base: start the run with import-hf from the weights to tune"
        )
    found = fingerprint(Path(run.base))
    hosts.check_same({f"the sha256 of the base, {run.base},": found[:16]}, hosts.SAME_FILES)
    return {"folder": run.base, "sha256": found}


def fingerprint(folder: Path) -> str:
    """A hash of all weights in a folder, and of the config.json that says what they mean."""
    files = sorted([*hf.files(folder), folder / "config.json"])
    if missing := [path.name for path in files if not path.is_file()]:
        raise SettingError(
            f"the base, {folder}, has no {', '.join(missing)}: set base to the folder with the "
            "run's original weights"
        )
    each = zip(files, sums(files), strict=True)
    whole = "".join(f"{file.name} {found}\n" for file, found in each)
    return hashlib.sha256(whole.encode()).hexdigest()


def check_same(now: Mapping[str, Any] | None, saved: Mapping[str, Any] | None) -> None:
    """Raise an error if the base is not the one that a checkpoint was saved with; see `about`."""
    if now is not None and saved is not None and now["sha256"] != saved["sha256"]:
        raise BaseChangedError(
            f"the weights in the base, {now['folder']}, are not the run's original ones: "
            f"their sha256 is {now['sha256'][:16]}, and that of {saved['folder']} was "
            f"{saved['sha256'][:16]}. Set base to a folder with the original weights, or start "
            "another run"
        )


def load(run: Run, recipe: Recipe) -> Params | None:
    """The weights that are not trained, on the devices; None if all are."""
    if not recipe.has_base or run.base is None:
        return None
    sizes, params = read(Path(run.base), recipe)
    if sizes != recipe.model:
        raise BaseChangedError(
            f"the base, {run.base}, is a different model from the run's: set base to its original "
            "folder"
        )
    return frozen(params, recipe)


def read(folder: Path, recipe: Recipe) -> tuple[Config, Params]:
    """The sizes and all weights in a folder, on the devices.

    Those that are trained, and frozen ones that are not quantised, are in the dtype of the files.
    """
    forms = lora.forms(recipe.model, recipe.tune)
    return hf.load(folder, None, every_sharding(recipe), forms)


def every_sharding(recipe: Recipe) -> Params:
    """Where each weight of the whole model lies."""
    sharding = recipe.plan.sharding
    assert sharding is not None
    return sharding.params(model.weights(recipe.model))


def frozen(params: Params, recipe: Recipe) -> Params | None:
    """The weights that are not trained: plain ones in the dtype of the arithmetic."""
    kept = lora.frozen(params, recipe.model, recipe.tune, whole=recipe.compared)
    dtype = recipe.numbers.arithmetic

    def cast(path: str, leaf: Any) -> Any:
        plain = isinstance(leaf, torch.Tensor) and leaf.dtype != dtype and not is_buffer(path)
        return xf.jit(lambda x: x.to(dtype))(leaf) if plain else leaf

    return xf.tree.map_with_path(cast, kept, is_leaf=quantised.is_quantised)
