"""Settings of the training program: files, pairs on the command line, presets."""

import re
from pathlib import Path

import pytest

from examples.llama import config, options
from examples.llama.config import Run
from examples.llama.options import SettingError
from examples.llama.parallel.sharding import AXES


def test_config_write_read_round_trip(tmp_path: Path) -> None:
    pairs = (
        "train.model=llama3.1-8b train.model.layers=2 train.model.rope_scaling.factor=4 "
        "train.peak_lr=3e-4 data.files=*.txt data.tokenizer=null profile=[3,5] mesh.tensor=2 "
        "on_bad=stop train.precision=mixed folder=2024"
    )
    run = config.read(pairs=pairs.split())
    assert run.train.model.layers == 2
    assert run.train.model.hidden == 4096
    assert run.train.model.rope_scaling is not None
    assert run.train.model.rope_scaling.factor == 4.0
    assert run.train.peak_lr == 3e-4
    assert (run.data.files, run.data.tokenizer) == (("*.txt",), None)
    assert (run.profile, run.on_bad, run.folder) == ((3, 5), "stop", "2024")
    assert run.train.precision == "mixed"
    config.write(run, tmp_path / "config.yaml")
    assert config.read(tmp_path / "config.yaml") == run


def test_config_read_later_setting_wins(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("train: {steps: 3, peak_lr: 1e-3}\nmesh: {fsdp: 2}\n")
    run = config.read(file, ["train.steps=4", "train.steps=5"])
    assert (run.train.steps, run.train.peak_lr, run.mesh.fsdp) == (5, 1e-3, 2)
    assert run.data == Run().data


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("train.stepz=3", r"there is no setting train\.stepz: did you mean train\.steps\?"),
        ("zzz=1", "there is no setting zzz: use one of folder, train, data, mesh"),
        ("train.plan.sharding=1", r"there is no setting train\.plan\.sharding"),
        ("train.steps=many", r"train\.steps is 'many': give a whole number"),
        ("train.steps=1.5", r"train\.steps is 1\.5: give a whole number"),
        ("train.steps=true", r"train\.steps is True: give a whole number"),
        ("train.peak_lr=true", r"train\.peak_lr is True: give a number"),
        ("train.model.tied=1", r"train\.model\.tied is 1: give true or false"),
        ("train.model=tinny", r"train\.model is 'tinny': did you mean tiny\?"),
        ("train=3", "train: 3 is not a mapping: give keys with values"),
        ("train.plan.policy=some", r"train\.plan\.policy is 'some': use one of full, attention"),
        ("data.batch=0", "data: batch is 0"),
        ("data.files=[1]", r"data\.files\[0\] is 1: give a text"),
        ("on_bad=sto", "on_bad is 'sto': did you mean stop"),
        ("keep=0", "keep is 0: use 1 or more"),
        (
            "train.precision=half",
            r"train\.precision is 'half': use one of float32, mixed, stochastic",
        ),
        (
            "dtype=bfloat16",
            r"no setting dtype: use train\.precision, one of float32, mixed, stochastic",
        ),
        ("steps", "cannot read 'steps': write key=value"),
    ],
)
def test_config_read_wrong_setting_raises(pair: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        config.read(pairs=[pair])


def test_config_read_wrong_file_raises(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"no file nothing: give one, or one of .*small-11m"):
        config.read("nothing")
    file = tmp_path / "run.yaml"
    file.write_text("train: [")
    with pytest.raises(SettingError, match=r"run\.yaml is not valid YAML; fix it: "):
        config.read(file)
    file.write_text("train: {step: 3}")
    with pytest.raises(SettingError, match=r"run\.yaml: there is no setting train\.step: did you"):
        config.read(file)


@pytest.mark.parametrize("preset", config.presets())
def test_config_presets(preset: str) -> None:
    run = config.read(preset)
    chips = int(preset.rpartition("-")[2]) if "-v6e-" in preset else 1
    axes = run.mesh.axes(chips)
    assert run.data.batch % (axes["data"] * axes["fsdp"] * axes["expert"]) == 0
    assert run.train.model in options.NAMED[type(run.train.model)].values()
    assert preset.startswith(Path(run.folder).name)


def test_mesh_axes_take_all_devices() -> None:
    assert config.Mesh(tensor=4).axes(256) == {
        "data": 1,
        "fsdp": 64,
        "tensor": 4,
        "expert": 1,
        "context": 1,
    }
    assert config.Mesh().axes(1) == dict.fromkeys(AXES, 1)
    for mesh in (config.Mesh(fsdp=3), config.Mesh(tensor=16)):
        with pytest.raises(SettingError, match=r"the devices are 8: use others, or mesh\.data=1"):
            mesh.axes(8)


@pytest.mark.parametrize(
    ("name", "rate"), [("small-11m", 1e-3), ("llama3.1-8b", 3e-4), ("llama3.1-405b", 8e-5)]
)
def test_defaults_of_a_named_model_are_not_the_demos(
    name: str, rate: float, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(f"train:\n  model: {name}\ndata:\n  files: [text]\n")
    run = config.read(tmp_path / "mine.yaml", ["train.steps=5", "train.clip=0.5"])
    assert (run.train.peak_lr, run.train.weight_decay, run.train.precision) == (rate, 0.1, "mixed")
    assert (run.data.seq, run.data.files, run.train.clip) == (2048, ("text",), 0.5)
    run.recipe(1)  # There is no warm-up that is longer.
    assert config.read(pairs=["train.peak_lr=5e-3", f"train.model={name}"]).train.peak_lr == 5e-3


@pytest.mark.parametrize(
    ("pairs", "rate"),
    [
        ([], 2e-5),
        (["train.tune.lora=[layers.w*]"], 2e-4),
        (["data.kind=pairs"], 5e-7),
        (["data.kind=pairs", "train.tune.lora=[layers.w*]"], 5e-6),
        (["data.kind=pairs", "train.preference=orpo"], 5e-6),
    ],
    ids=["all weights", "adapters", "pairs", "pairs with adapters", "pairs by orpo"],
)
def test_rates_of_tuning_are_those_of_its_purpose(pairs: list[str], rate: float) -> None:
    found = config.tuned(config.read(pairs=pairs, run=config.TUNING), config.TUNING)
    assert found.train.peak_lr == rate


@pytest.mark.parametrize(
    ("steps", "warmup"), [(5, 0), (200, 10), (50_000, 2000)], ids=["few", "some", "many"]
)
def test_warmup_is_a_part_of_the_steps(steps: int, warmup: int) -> None:
    assert config.read(pairs=[f"train.steps={steps}"]).train.rising == warmup


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (["data.batch=6"], "data.batch is 6, and 8 devices share it: make it a multiple of 8"),
        (
            ["mesh.context=4", "data.seq=100"],
            "data.seq is 100, and mesh.context is 4: make data.seq a multiple of 8",
        ),
    ],
)
def test_shares_of_devices_are_even(pairs: list[str], message: str) -> None:
    with pytest.raises(SettingError, match=re.escape(message)):
        config.read(pairs=pairs).check_shares(8)
