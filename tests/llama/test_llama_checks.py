"""Settings, data and weights that cannot work are refused before anything is done with them."""

import json
import math
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import xfunc as xf
from examples.llama import config, model, train
from examples.llama.checkpoint.checkpoints import Checkpoints
from examples.llama.config import Run
from examples.llama.data import corpus, documents
from examples.llama.data.documents import DataError
from examples.llama.options import SettingError
from examples.llama.train import fit, metrics
from examples.llama.tune import adapters, lora
from tests.llama import tuned

Command = Callable[..., tuple[int, str]]


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("train.steps=0", "train: steps is 0: use 1 or more"),
        ("train.steps=-5", "train: steps is -5: use 1 or more"),
        ("train.warmup=-3", "train: warmup is -3: use 0 or more"),
        ("train.weight_decay=-1", r"train: weight_decay is -1\.0: use 0 or more"),
        ("train.weight_decay=.nan", "train: weight_decay is nan: use 0 or more"),
        ("train.floor=-2", r"train: floor is -2\.0: use a fraction of the rate, from 0 to 1"),
        ("train.cooldown=2", r"train: cooldown is 2\.0: use a fraction of the steps, from 0 to 1"),
        ("train.beta1=1", r"train: beta1 is 1\.0: use 0 or more, below 1"),
        ("train.beta2=-1", r"train: beta2 is -1\.0: use 0 or more, below 1"),
        ("train.eps=0", r"train: eps is 0\.0: use a number above 0"),
        (
            "train={optimizer: adafactor, beta1: 0.8, eps: 1e-6}",
            "train: beta1, eps: not an option of the optimizer, adafactor. Leave",
        ),
        ("train.peak_lr=.inf", "train: peak_lr is inf: use a number above 0"),
        ("train.clip=.nan", "train: clip is nan: use a number above 0"),
        (f"seed={2**64}", f"seed is {2**64}: use a number of at most 63 bits"),
        (f"train.steps={2**63}", f"train.steps is {2**63}: use a number of at most 63 bits"),
        ("seed=-1", "seed is -1: use 0 or more"),
        ("context=-1", "context is -1: use 0 or more"),
        ("profile=[3,0]", "profile has 0: steps are counted from 1"),
        ("train.model.rope_theta=0", r"train\.model: rope_theta is 0\.0: use a number above 0"),
        ("train.model.norm_eps=-1", r"train\.model: norm_eps is -1\.0: use a number above 0"),
        ("train.model.score_cap=.nan", "score_cap is nan: use a number above 0"),
        ("train.model.rope_scaling.factor=.nan", "factor is nan: use a number above 0"),
        ("train.model.rope_scaling.attention_factor=-1", "attention_factor is -1"),
    ],
)
def test_config_out_of_range_numbers_raise(pair: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        config.read(pairs=[pair])


def test_fit_long_warmup_raises_before_folder_is_made(run_of: Callable[..., Run]) -> None:
    run = run_of("a", "train.warmup=8")
    with pytest.raises(SettingError, match="train: warmup is 8 steps of 8: make it shorter"):
        fit.fit(run)
    assert not Path(run.folder).exists()


def test_fit_small_vocabulary_raises_before_encoding(
    run_of: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*_: object) -> None:
        raise AssertionError("documents are encoded")

    monkeypatch.setattr(corpus, "write", encode)
    with pytest.raises(DataError, match="the tokenizer has 277 tokens and the model 200"):
        fit.fit(run_of("a", "train.model.vocab=200", f"data.cache={tmp_path / 'cache'}"))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--temperature", "nan"), "temperature is nan: use 0, for the likeliest token, or more"),
        (("--temperature", "inf"), "temperature is inf: use 0"),
        (("--new", "0"), "--new is 0: generate 1 token or more"),
        (("--batch", "0"), "--batch is 0: make 1 text or more at a time"),
        (("--stop", ""), "--stop is empty: every text ends with that"),
        (("--seed", 2**64), f"seed is {2**64}: use a 64-bit integer"),
    ],
)
def test_generate_options_checked_before_loading(
    option: tuple[object, ...], message: str, command: Command
) -> None:
    status, told = command("generate", "nowhere", "--prompt", "a", *option)
    assert status == 2
    assert told.startswith(f"error: {message}")


def test_import_hf_settings(
    settings: Callable[..., list[str]], command: Command, tmp_path: Path
) -> None:
    run, hub, tuned = tmp_path / "run", tmp_path / "hub", tmp_path / "tuned"
    assert command("fit", *settings("run", "train.steps=4"))[0] == 0
    assert command("export-hf", run, "--out", hub)[0] == 0
    for name in ("import-hf", "eval"):
        status, told = command(name, hub, "train.model.layers=7", f"folder={tuned}")
        assert status == 2
        assert "config.json: train.model.layers is 7, but 2 there. Leave" in told
    assert not tuned.exists()

    status, told = command("import-hf", hub, f"folder={tuned}", "data.seq=16")
    assert status == 0
    assert told.endswith("config.yaml data.files=...\n")
    written = config.read(tuned / "config.yaml")
    assert (written.train.peak_lr, written.train.weight_decay) == (2e-5, 0.0)
    assert (written.data.files, written.data.seq) == ((), 16)
    status, told = command("fit", "--config", tuned / "config.yaml")
    assert status == 2
    assert "data.files is empty: give files, folders or patterns" in told
    assert command("eval", hub, "--step", 3) == (
        2,
        f"error: {hub} has one set of weights: leave out --step\n",
    )


def test_commands_refuse_non_finite_checkpoint(
    run_of: Callable[..., Run], command: Command
) -> None:
    run = run_of("a", "train.steps=4")
    fit.fit(run)
    with Checkpoints(Path(run.folder, "checkpoints")) as checkpoints:
        target = train.abstract_state(run.recipe(1))
        _, state, extra = checkpoints.restore(target)
        state = xf.device_get(state)
        state.params["norm"][0] = math.nan
        checkpoints.save(5, state, extra)
    message = "has weights that are not finite, in 1 of "
    for argv in (["eval"], ["generate", "--prompt", "a"], ["export-hf", "--out", "never"]):
        status, told = command(argv[0], run.folder, *argv[1:])
        assert status == 2
        assert f"error: step 5 of {run.folder} {message}" in told
    assert command("eval", run.folder, "--step", 4)[0] == 0


def test_commands_refuse_non_finite_imported_weights(
    made: Path, tmp_path: Path, command: Command
) -> None:
    """The advice is for a folder that has no checkpoints."""
    hub = shutil.copytree(made / "hub", tmp_path / "hub")
    tensors = load_file(hub / "model.safetensors")
    tensors["model.norm.weight"][0] = math.nan
    save_file(tensors, hub / "model.safetensors")
    said = f"error: {hub} has weights that are not finite, in 1 of 12 arrays: download or export"
    for argv in (["eval"], ["generate", "--prompt", "a"], ["import-hf", f"folder={tmp_path}/run"]):
        status, told = command(argv[0], hub, *argv[1:])
        assert status == 2
        assert told.startswith(said)
        assert "--step" not in told
    for setting in ("files", "validation"):  # Found missing before the weights are read.
        argv = ("import-hf", hub, f"folder={tmp_path}/run", f"data.{setting}={tmp_path}/*.jsonl")
        assert command(*argv)[1].startswith(f"error: no data at '{tmp_path}/*.jsonl': give a file")
    assert not (tmp_path / "run").exists()

    tune, whole = lora.Tune(("layers.wq",)), model.shapes(tuned.SIZES)
    shapes = lora.trained(whole, tuned.SIZES, tune, lora.abstract(tune))
    bad = xf.tree.map(lambda a: torch.full(a.shape, math.nan), shapes)
    adapters.save(tmp_path / "adapter", bad, tuned.SIZES, tune, "hub")
    status, told = command("import-hf", made / "hub", "--adapter", tmp_path / "adapter")
    assert status == 2
    assert f"hub, with the adapters in {tmp_path}/adapter, has weights that are not fin" in told


# -- metrics ------------------------------------------------------------------------------------


def test_metrics_cut_removes_damaged_lines(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    good = [json.dumps({"step": step, "loss": 1.0}) + "\n" for step in (1, 2, 3)]
    damaged = [good[0], "garbage\n", good[1], "[1]\n", good[2], '{"step": 4, "lo']
    file.write_text("".join(damaged))
    metrics.cut(file, 2)
    assert file.read_text() == good[0] + good[1]


def test_fit_continues_when_metrics_cannot_be_written(
    run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, step: int) -> None:
        path.symlink_to("/dev/full")

    monkeypatch.setattr(metrics, "cut", full)
    assert fit.fit(run_of("a", "train.steps=4")).ended == "done"
    told = "metrics are not written, but training continues: [Errno 28] No space left on device"
    assert capsys.readouterr().out.count(told) == 1


def test_documents_find_refuses_tables(tmp_path: Path) -> None:
    for name in ("a.csv", "a.tsv.gz"):
        (tmp_path / name).write_text("text\na\n")
        with pytest.raises(DataError, match=f"{name} is a table .* convert it to JSON lines"):
            documents.find([str(tmp_path / name)])


def test_fit_sigterm_exit_status(
    settings: Callable[..., list[str]], at_step: Callable[..., None], command: Command
) -> None:
    at_step(2, lambda: signal.raise_signal(signal.SIGTERM))
    assert command("fit", *settings("a"))[0] == 75
    assert command("fit", *settings("a"))[0] == 0


def test_fit_reports_tokenizer_training_and_encoding(
    run_of: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of("a", f"data.cache={tmp_path / 'cache'}", "train.steps=3")
    told = ["training a tokenizer of 300 tokens on 1 files", "encoding the documents of 1 files"]
    for times in (1, 0):  # What is made once is found again.
        fit.fit(run)
        out = capsys.readouterr().out
        assert [out.count(text) for text in told] == [times] * 2
