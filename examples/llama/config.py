"""The settings of a run: model, data, sharding, and what is written when."""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

import xfunc as xf

from . import checks, model, options
from .data.data_config import DataConfig
from .files import write_text
from .model import parameters
from .model.plan import KERNELS
from .options import SettingError
from .parallel.sharding import AXES, Sharding
from .train.train_config import Recipe

_PRESETS = Path(__file__).parent / "configs"
_BEGIN, _END = "# All settings of this run, up to the end mark.\n", "# end\n"
_DEMO = Recipe(model.CONFIGS["demo-1m"], steps=1000)


@dataclass(frozen=True)
class Mesh:
    """The mesh of devices.

    Attributes:
        data: parts of the batch, each with a replica of the weights.
        fsdp: parts of the batch and the weights; -1: the devices that are left.
        tensor: devices that share each matrix product.
        expert: parts of the batch, the experts and other weights.
        context: parts of each row and of the weights. Attention must be blockwise.
    """

    data: int = 1
    fsdp: int = -1
    tensor: int = 1
    expert: int = 1
    context: int = 1

    def __post_init__(self) -> None:
        checks.at_least(self, 1, *(axis for axis in AXES if axis != "fsdp" or self.fsdp != -1))

    def axes(self, devices: int) -> dict[str, int]:
        """The size of each axis on so many devices."""
        sizes = dataclasses.asdict(self)
        if self.fsdp == -1:
            others = math.prod(size for axis, size in sizes.items() if axis != "fsdp")
            sizes["fsdp"] = max(devices // others, 1)
        if math.prod(sizes.values()) != devices:
            text = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
            raise SettingError(
                f"mesh is {text}, and the devices are {devices}: use others, or mesh.data=1 "
                "mesh.fsdp=-1 mesh.tensor=1"
            )
        return sizes


@dataclass(frozen=True)
class Run:
    """All settings of a run.

    Attributes:
        folder: the run's folder: checkpoints, metrics, these settings.
        train: the model, and how it is trained.
        data: what it is trained on.
        mesh: the mesh of devices.
        base: a folder in Hugging Face's format that the run started from. Frozen weights are read
            from there, and pairs are compared with it.
        seed: seed of the weights before the first step.
        on_bad: what to do at a step whose loss or gradient is not finite. `skip` leaves the weights
            unchanged, `stop` also saves and ends the run, `ignore` takes the step.
        watchdog: how many times its usual duration a step may take. When one takes longer, and more
            than a minute, each process prints where its threads are.
        save_every: steps between checkpoints.
        keep: the number of newest checkpoints to keep.
        keep_every: steps between checkpoints that are never deleted; null: none.
        eval_every: steps between evaluations on held-out data.
        eval_batches: the maximum number of held-out batches to evaluate.
        context: longest sequence of an exported model in other tools; at least data.seq.
        trackers: where metrics are also shown: tensorboard, or wandb, which must be installed.
        profile: steps to profile for xprof, such as [10, 11].
        programs: a folder that keeps compiled programs for the next process; runs may share it.
    """

    folder: str = "runs/demo"
    train: Recipe = _DEMO
    data: DataConfig = field(default_factory=DataConfig)
    mesh: Mesh = Mesh()
    base: str | None = None
    seed: int = 0
    on_bad: Literal["skip", "stop", "ignore"] = "skip"
    watchdog: float | None = 20.0
    save_every: int = 500
    keep: int = 3
    keep_every: int | None = None
    eval_every: int = 250
    eval_batches: int = 16
    context: int = 0
    trackers: tuple[str, ...] = ("tensorboard",)
    profile: tuple[int, ...] = ()
    programs: str | None = None

    def __post_init__(self) -> None:
        names = "save_every keep keep_every eval_every eval_batches"
        checks.at_least(self, 1, *names.split())
        checks.at_least(self, 0, "seed", "context")
        if self.watchdog is not None and not 1 < self.watchdog < math.inf:
            raise SettingError(f"watchdog is {self.watchdog}: use a number above 1, or null")
        if wrong := [step for step in self.profile if step < 1]:
            raise SettingError(f"profile has {wrong[0]}: steps are counted from 1")
        for name, given in (("folder", self.folder), ("programs", self.programs)):
            if given == "":
                raise SettingError(f"{name} is empty: give a folder")
        if self.data.kind in ("pairs", "unpaired"):
            wanted = "unpaired" if self.train.preference == "kto" else "pairs"
            if self.data.kind != wanted:
                raise SettingError(
                    f"data.kind is {self.data.kind}, and train.preference is "
                    f"{self.train.preference}: use data.kind={wanted}, or train.preference="
                    f"{'kto' if wanted == 'pairs' else 'dpo or orpo'}"
                )
        if self.data.batch % self.train.plan.microbatches:
            raise SettingError(
                f"data.batch is {self.data.batch}, and train.plan.microbatches is "
                f"{self.train.plan.microbatches}: make the batch a multiple of it"
            )

    def check_shares(self, devices: int) -> None:
        """Raise an error if the devices cannot share the batch, or its rows, evenly."""
        axes = self.mesh.axes(devices)
        if self.data.batch % (parts := axes["data"] * axes["fsdp"] * axes["expert"]):
            raise SettingError(
                f"data.batch is {self.data.batch}, and {parts} devices share it: make it a "
                f"multiple of {parts}, or mesh.fsdp smaller"
            )
        chunks = 2 * self.mesh.context
        if chunks > 2 and self.data.seq % chunks:
            raise SettingError(
                f"data.seq is {self.data.seq}, and mesh.context is {self.mesh.context}: make "
                f"data.seq a multiple of {chunks}"
            )

    def keep_programs(self) -> None:
        """Keep compiled programs in the folder that `programs` names."""
        if self.programs is not None:
            folder = Path(self.programs).expanduser()
            folder.mkdir(parents=True, exist_ok=True)
            xf.config.set_compilation_cache_dir(folder / "compiled")

    def recipe(self, devices: int, *, abstract: bool = False) -> Recipe:
        """The recipe to compile for this many devices; if `abstract`, for absent TPUs."""
        kernel, kind = self.train.plan.attention, "tpu" if abstract else xf.default_backend()
        made_for = KERNELS.get(kernel, kind)
        if kind != made_for:
            raise SettingError(
                f"train.plan.attention is {kernel}, a kernel for {made_for.upper()}s, and these "
                f"devices are {kind.upper()}s: use train.plan.attention=blockwise"
            )
        if self.mesh.context > 1 and kernel != "blockwise":
            raise SettingError(
                f"train.plan.attention is {kernel}, and mesh.context is {self.mesh.context}: only "
                "blockwise attention divides rows"
            )
        try:
            self.train.check_warmup()
        except ValueError as error:
            raise SettingError(f"train: {error}") from None
        sharding = Sharding.of(self.mesh.axes(devices), abstract=abstract)
        plan = dataclasses.replace(self.train.plan, sharding=sharding, on_tpu=kind == "tpu")
        pairs = self.data.kind in ("pairs", "unpaired")
        skip_bad = self.on_bad != "ignore"
        return dataclasses.replace(self.train, plan=plan, pairs=pairs, skip_bad=skip_bad)


# The groups of settings in `--help`, with patterns of keys.
GROUPS = {
    "Common settings": (
        "train.model data.files data.tokenizer train.steps data.batch data.seq train.peak_lr "
        "train.precision mesh.fsdp mesh.tensor folder"
    ),
    "Model": "train.model.*",
    "Data": "data.*",
    "Fine-tuning": "base train.tune.* train.preference train.dpo_* train.orpo_* train.kto_*",
    "Memory": "train.plan.*",
    "Training": "train.* seed",
    "Sharding": "mesh.*",
    "Checkpoints, evaluation and reports": "*",
}

# Defaults of a run with imported weights, on data that must be given.
TUNING = Run(
    folder="runs/tuned",
    train=Recipe(_DEMO.model, steps=1000, peak_lr=2e-5, weight_decay=0.0),
    data=DataConfig(files=()),
)


def presets() -> list[str]:
    """The names that `read` accepts besides files."""
    return sorted(path.stem for path in _PRESETS.glob("*.yaml"))


def read(
    source: str | Path | None = None, pairs: Iterable[str] = (), run: Run | None = None
) -> Run:
    """Settings from a YAML file or a preset, then from texts such as ``train.steps=100``.

    `run` has the defaults; None: those for training the model from the start, or the demo's if no
    model is named.
    """
    pairs = tuple(pairs)

    def changed(run: Run) -> Run:
        given = run if source is None else _changed_by(run, Path(source))
        return options.override(given, pairs)

    found = changed(run or Run())
    if run is not None or found.train.model == _DEMO.model:
        return found
    return changed(from_start(found.train.model))


# The highest learning rates of models up to so many parameters, from the start. Sources: Biderman
# et al., "Pythia", 2023 (70M); Brown et al., "Language Models are Few-Shot Learners", 2020 (125M);
# Dubey et al., "The Llama 3 Herd of Models", 2024 (8B, 70B, 405B).
_RATES = {100e6: 1e-3, 300e6: 6e-4, 20e9: 3e-4, 100e9: 1.5e-4, math.inf: 8e-5}


def from_start(sizes: model.Config) -> Run:
    """The defaults for training a model from the start."""
    rate = next(rate for most, rate in _RATES.items() if parameters.count(sizes) <= most)
    recipe = Recipe(sizes, steps=1000, precision="mixed", peak_lr=rate, weight_decay=0.1)
    return Run(folder="runs/model", train=recipe, data=DataConfig(seq=2048))


def tuned(found: Run, start: Run) -> Run:
    """The defaults for tuning what `found` says: all weights, adapters, or with pairs.

    Sources: "Llama 2", 2023, for all weights; "QLoRA", 2023, for adapters; "Zephyr", 2023, "ORPO",
    2024, and TRL for pairs; for adapters ten times as much, as in "LoRA Without Regret", 2025.
    """
    loss = found.train.preference if found.data.kind in ("pairs", "unpaired") else "tokens"
    rates = {"tokens": (2e-5, 2e-4), "dpo": (5e-7, 5e-6), "orpo": (5e-6, 5e-5)}
    rates |= {"kto": (1e-6, 1e-5)}
    rate = rates[loss][bool(found.train.tune.lora)]
    return dataclasses.replace(start, train=dataclasses.replace(start.train, peak_lr=rate))


def _changed_by(run: Run, source: Path) -> Run:
    path = _PRESETS / f"{source}.yaml" if str(source) in presets() else source
    try:
        text = path.read_text(encoding="utf-8")
        values: Any = yaml.safe_load(text)
    except FileNotFoundError:
        known = ", ".join(presets())
        raise SettingError(f"there is no file {source}: give one, or one of {known}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingError(f"{source} is not valid YAML; fix it: {error}") from None
    if not text or (text.startswith(_BEGIN) and not text.endswith(_END)):
        raise SettingError(
            f"{source} is truncated: its last line should be {_END.strip()!r}. Remove it: `fit` "
            "with the settings of the run recreates it"
        )
    try:
        return options.changed(run, values or {})
    except SettingError as error:
        raise SettingError(f"{source}: {error}") from None


def write(run: Run, path: Path) -> None:
    """Write all settings, for `read`."""
    text = yaml.safe_dump(options.plain(run), sort_keys=False)
    write_text(path, f"{_BEGIN}{text}{_END}")
