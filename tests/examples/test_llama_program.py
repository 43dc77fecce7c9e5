"""The training program: settings, runs, what they write, and how they end."""

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import xfunc as xf
from examples.llama import __main__ as program
from examples.llama import config, fit, flops, hosts, metrics, options, train, trained
from examples.llama.checkpoints import Checkpoints
from examples.llama.config import Run
from examples.llama.interrupts import Interrupts
from examples.llama.options import SettingError
from examples.llama.reader import DataChangedError, Reader
from tests.examples.interrupted import Killed, at_step
from xfunc.sharding import storage

STEPS = 8  # of the runs of `settings`
CURVE = ("step", "loss", "grad_norm", "lr", "tokens", "skipped", "held_out_loss")


def lines(run: Run) -> list[dict[str, Any]]:
    file = Path(run.folder, "metrics.jsonl")
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def curve(run: Run) -> list[dict[str, Any]]:
    """What must not depend on time."""
    return [{k: line[k] for k in CURVE if k in line} for line in lines(run)]


def losses(run: Run) -> list[Any]:
    return [line["loss"] for line in lines(run) if "loss" in line]


def saved(run: Run, step: int | None = None) -> Any:
    """The state in a checkpoint, on the host."""
    target = train.abstract_state(run.recipe(1))
    found = Checkpoints(Path(run.folder, "checkpoints")).restore(target, step)
    return xf.device_get(found.state)


def assert_equal(a: Any, b: Any) -> None:
    xf.tree.map(lambda x, y: torch.testing.assert_close(x, y, rtol=0.0, atol=0.0), a, b)


# -- settings ---------------------------------------------------------------------------------


def test_settings_are_written_and_read_back(tmp_path: Path) -> None:
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


def test_a_later_setting_wins(tmp_path: Path) -> None:
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
            r"train\.precision is 'half': use one of float32, mixed, float8",
        ),
        (
            "dtype=bfloat16",
            r"no setting dtype: use train\.precision, one of float32, mixed, float8",
        ),
        ("steps", "cannot read 'steps': write key=value"),
    ],
)
def test_wrong_settings(pair: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        config.read(pairs=[pair])


def test_wrong_files_of_settings(tmp_path: Path) -> None:
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
def test_presets(preset: str) -> None:
    run = config.read(preset)
    chips = int(preset.rpartition("-")[2]) if "-v6e-" in preset else 1
    axes = run.mesh.axes(chips)
    assert run.data.batch % (axes["data"] * axes["fsdp"] * axes["expert"]) == 0
    assert run.train.model in options.NAMED[type(run.train.model)].values()
    assert preset.startswith(Path(run.folder).name)


def test_mesh_takes_all_devices() -> None:
    assert config.Mesh(tensor=4).axes(256) == {
        "data": 1,
        "fsdp": 64,
        "tensor": 4,
        "expert": 1,
    }
    assert config.Mesh().axes(1) == dict.fromkeys(("data", "fsdp", "tensor", "expert"), 1)
    for mesh in (config.Mesh(fsdp=3), config.Mesh(tensor=16)):
        with pytest.raises(SettingError, match=r"the devices are 8: use others, or mesh\.data=1"):
            mesh.axes(8)


# -- runs -------------------------------------------------------------------------------------


def test_fit_learns_and_writes(run_of: Callable[..., Run]) -> None:
    run = run_of("a", "train.steps=20", "keep=2", "profile=2", "train.peak_lr=0.02")
    before = xf.trace_count(train.train_step)
    outcome = fit.fit(run)
    assert xf.trace_count(train.train_step) == before + 1
    found = losses(run)
    assert found[-1] < found[0] - 1
    assert outcome.held_out is not None
    assert outcome.held_out < found[0] - 1
    assert (outcome.step, outcome.ended) == (20, "done")

    folder = Path(run.folder)
    assert config.read(folder / "config.yaml") == run
    assert [line["step"] for line in lines(run) if "loss" in line] == [*range(1, 21)]
    held_out = {line["step"]: line["held_out_loss"] for line in lines(run) if "loss" not in line}
    assert [*held_out] == [4, 8, 12, 16, 20]
    assert held_out[20] == outcome.held_out
    assert all(line["tokens"] == 4 * 16 for line in lines(run)[:3])
    assert Checkpoints(folder / "checkpoints").steps() == [16, 20]
    assert [*folder.glob("profile/step-2/**/*.xplane.pb")]
    board = EventAccumulator(str(folder / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("loss")] == [*range(1, 21)]
    shown = [event.value for event in board.Scalars("held_out_loss")]
    assert shown == pytest.approx([*held_out.values()], rel=1e-6)


def test_metrics_are_read_one_step_late(
    run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, int]] = []
    step, tell = train.train_step, metrics.Log.step

    def launch(*args: Any, **kwargs: Any) -> Any:
        events.append(("launch", 1 + sum(what == "launch" for what, _ in events)))
        return step(*args, **kwargs)

    def read(self: metrics.Log, number: int, *args: Any) -> Any:
        events.append(("read", number))
        return tell(self, number, *args)

    monkeypatch.setattr(train, "train_step", launch)
    monkeypatch.setattr(metrics.Log, "step", read)
    fit.fit(run_of("a", "train.steps=4", "save_every=100", "eval_every=100"))
    late = [("launch", 1)]
    for number in (2, 3, 4):
        late += [("launch", number), ("read", number - 1)]
    assert events == [*late, ("read", 4)]


@pytest.mark.parametrize("how", ["killed", "SIGTERM", "SIGINT"])
def test_a_resumed_run_is_the_same_run(
    how: str, run_of: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parts = run_of("whole"), run_of("parts")
    fit.fit(whole)

    def kill() -> None:
        raise Killed("at once")

    with pytest.MonkeyPatch.context() as patch:
        if how == "killed":
            at_step(7, kill, patch)
            with pytest.raises(Killed, match="at once"):
                fit.fit(parts)
            # The lines of steps 5 and 6, and a torn one, are after the checkpoint.
            with Path(parts.folder, "metrics.jsonl").open("a") as file:
                file.write('{"step": 6, "lo')
            [board] = Path(parts.folder, "tensorboard").iterdir()
            board.rename(re.sub(r"tfevents\.\d+", "tfevents.0", str(board)))  # an hour ago
            left = 4
        else:
            at_step(3, lambda: signal.raise_signal(signal.Signals[how]), patch)
            outcome = fit.fit(parts)
            assert (outcome.step, outcome.ended) == (3, "interrupted")
            assert (
                "stopped after step 3, which is saved: the same command" in capsys.readouterr().out
            )
            left = 3
    assert Checkpoints(Path(parts.folder, "checkpoints")).latest() == left
    assert fit.fit(parts).step == STEPS
    assert curve(parts) == curve(whole)
    assert len(losses(parts)) == STEPS
    assert_equal(saved(parts), saved(whole))
    if how == "killed":
        shown = EventAccumulator(str(Path(parts.folder, "tensorboard"))).Reload().Scalars("loss")
        assert [event.step for event in shown] == [*range(1, STEPS + 1)]


def test_a_finished_run_has_nothing_to_do(run_of: Callable[..., Run]) -> None:
    run = run_of("a")
    fit.fit(run)
    before = lines(run)
    assert fit.fit(run) == fit.Outcome(STEPS, None, "done")
    assert lines(run) == before


def test_other_data_is_refused(run_of: Callable[..., Run]) -> None:
    run = run_of("a")
    fit.fit(run)
    with pytest.raises(DataChangedError, match="seed was 0, is 1"):
        fit.fit(run_of("a", "data.seed=1"))
    assert config.read(Path(run.folder, "config.yaml")) == run


def test_a_second_signal_interrupts_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.noted
        with pytest.raises(KeyboardInterrupt, match=r"^SIGINT$"):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_before_the_first_step(
    name: str,
    settings: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    number = signal.Signals[name]
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(fit, "begin", lambda *_: signal.raise_signal(number))
        assert program.main(["fit", *settings("a")]) == os.EX_TEMPFAIL
    said = capsys.readouterr().err
    assert said == f"interrupted by {name}: the same command continues from the last checkpoint\n"
    assert signal.getsignal(number) == before
    assert program.main(["fit", *settings("a")]) == 0

    def arrives(*_: object, **__: object) -> None:
        signal.raise_signal(number)

    run = str(tmp_path / "a")
    capsys.readouterr()
    monkeypatch.setattr(trained, "load", arrives)
    monkeypatch.setattr(trained, "import_published", arrives)
    for command in (
        ["eval", run],
        ["generate", run, "--prompt", "a"],
        ["export-hf", run, "--out", str(tmp_path / "out")],
        ["import-hf", run],
    ):
        assert program.main(command) == 128 + number
        assert capsys.readouterr().err == f"interrupted by {name}\n"
        assert signal.getsignal(number) == before


def test_a_checkpoint_that_cannot_be_written_does_not_end_training(
    run_of: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save, calls = Checkpoints.save, []

    def fail_once(self: Checkpoints, step: int, *args: Any) -> None:
        calls.append(step)
        if len(calls) == 2:
            raise xf.errors.CheckpointWriteError("the disk is full")
        save(self, step, *args)

    monkeypatch.setattr(Checkpoints, "save", fail_once)
    run = run_of("a")
    assert fit.fit(run).ended == "done"
    assert calls == [4, 8, 8]
    assert "a checkpoint is missing: the disk is full" in capsys.readouterr().out


# -- bad steps --------------------------------------------------------------------------------


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make the loss and the gradient of some steps, counted from 1, not a number."""

    def make(*steps: int) -> None:
        gradient, read = train.gradient, Reader.batch

        def poisoned(params: Any, batch: Any, recipe: train.Recipe, *more: None) -> Any:
            nan = torch.where((batch.tokens == 0).all(), math.nan, 1.0)
            return xf.tree.map(lambda x: x * nan, gradient(params, batch, recipe, *more))

        def batch(self: Reader, step: int) -> Any:
            found = read(self, step)
            bad = step + 1 in steps
            return found._replace(tokens=torch.zeros_like(found.tokens)) if bad else found

        monkeypatch.setattr(train, "gradient", poisoned)
        monkeypatch.setattr(Reader, "batch", batch)
        xf.clear_caches()

    return make


def test_bad_steps_are_skipped(run_of: Callable[..., Run], poison: Callable[..., None]) -> None:
    poison(3, 6)
    run = run_of("a")
    assert fit.fit(run).ended == "done"
    found = [line for line in lines(run) if "loss" in line]
    assert [line["step"] for line in found if line["skipped"]] == [3, 6]
    assert [line["step"] for line in found if line["loss"] is None] == [3, 6]
    assert found[2]["lr"] == found[3]["lr"]
    assert saved(run).opt.step == STEPS - 2


def test_a_bad_step_stops(
    run_of: Callable[..., Run],
    settings: Callable[..., list[str]],
    poison: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    poison(5)
    assert program.main(["fit", *settings("a", "on_bad=stop", "eval_every=100")]) == 1
    assert "stopped after step 6, for bad losses or gradients" in capsys.readouterr().out
    run = run_of("a")
    assert Checkpoints(Path(run.folder, "checkpoints")).steps() == [4, 6]
    after = saved(run)
    assert after.opt.step == 5
    assert all(torch.isfinite(p).all() for p in xf.tree.leaves(after.params))
    assert fit.fit(run).ended == "done"  # The bad step is behind it.


def test_bad_steps_are_taken_if_told_so(
    run_of: Callable[..., Run], poison: Callable[..., None]
) -> None:
    poison(3)
    run = run_of("a", "on_bad=ignore")
    assert fit.fit(run).ended == "diverged"
    assert [loss is None for loss in losses(run)] == [False] * 2 + [True] * (STEPS - 2)


def test_skipping_ends_when_it_does_not_help(
    run_of: Callable[..., Run], poison: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(2, 4, 5)
    monkeypatch.setattr(fit, "_HOPELESS", 2)
    run = run_of("a", "eval_every=100", "save_every=100")
    assert fit.fit(run) == fit.Outcome(6, None, "bad")
    assert saved(run).opt.step == 3


# -- what is told -----------------------------------------------------------------------------


def test_speed_is_told_where_it_is_known(
    run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert metrics.chip() is None
    assert metrics.hbm_gib() is None
    monkeypatch.setattr(metrics, "chip", lambda: "v6e")
    monkeypatch.setattr(metrics, "hbm_gib", lambda: 12.5)
    run, screen = run_of("a", "eval_every=100", "save_every=100"), io.StringIO()
    fit.fit(run, Console(file=screen, force_terminal=True, width=200))
    assert re.search(r"8/8.* loss \d.\d{3}  \S+ tokens/s  MFU .*HBM 12.50 GiB", screen.getvalue())
    first, second, *_ = lines(run)
    assert first["hbm_gib"] == 12.5
    assert first["host_ms"] > 0
    assert "tokens_per_second" not in first
    per_token = flops.per_token(run.train.model, run.data.seq)
    assert second["mfu"] == pytest.approx(second["tokens_per_second"] * per_token / 918e12)


def test_processes_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hosts.is_first()
    assert [hosts.agree(True), hosts.agree(False)] == [True, False]

    def other_wants(votes: torch.Tensor, op: Any) -> None:
        assert op == torch.distributed.ReduceOp.MAX
        votes.clamp_(min=1)

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "all_reduce", other_wants)
    assert hosts.agree(False)
    assert not hosts.is_first()


# -- the command line -------------------------------------------------------------------------


@pytest.mark.parametrize("command", [None, *program.COMMANDS])
def test_help(command: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        program.main(["--help"] if command is None else [command, "--help"])
    printed = capsys.readouterr().out
    if command is None:
        assert all(f"  {name} " in printed for name in program.COMMANDS)
    elif command in ("aot", "curves"):  # which take no settings
        assert {"aot": "--topology", "curves": "--out"}[command] in printed
    else:
        assert f"train.peak_lr={'2.0e-05' if command == 'import-hf' else 0.005}" in printed
        assert "train.model=demo-1m" in printed
        assert max(map(len, printed.splitlines())) <= 100


def test_commands(
    settings: Callable[..., list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def command(*args: Any) -> str:
        assert program.main([*map(str, args)]) == 0
        return capsys.readouterr().out

    monkeypatch.setattr(storage, "FULL", 1)
    run, hub, again = tmp_path / "run", tmp_path / "hub", tmp_path / "again"
    printed = command("fit", *settings("run"))
    assert f"finished at step {STEPS}, which is saved" in printed
    told = command("eval", run)
    assert told.startswith(f"step {STEPS} of {run}: held-out loss ")
    loss = told.split("held-out loss ")[1]
    assert f"step {STEPS}: held-out loss {loss.split(',')[0]}\n" in printed
    assert command("eval", run, "--step", 4).split("held-out loss ")[1] != loss

    # What the optimizer has is not read: it may be anything.
    [optimizer] = (run / "checkpoints" / str(STEPS)).glob("__0_1.distcp")
    optimizer.write_bytes(bytes(optimizer.stat().st_size))
    assert command("eval", run) == told

    assert command("export-hf", run, "--out", hub) == f"step {STEPS} of {run} is in {hub}\n"
    assert command("eval", hub, *settings("other")) == f"{hub}: held-out loss {loss}"

    start = ["--prompt", "the cat", "--new", 5, "--temperature", 0]
    assert command("generate", run, *start).startswith("the cat")
    assert command("generate", run, *start) == command("generate", hub, *start)
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat\n"))
    assert command("generate", run, *start[2:]) == command("generate", run, *start)

    told = command("import-hf", hub, *settings("again", "train.steps=2", "train.warmup=1"))
    assert f"fit --config {again}/config.yaml" in told
    command("fit", "--config", again / "config.yaml")
    imported = [json.loads(line) for line in (again / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in imported] == [1, 2, 2]
    assert imported[0]["loss"] == pytest.approx(float(loss.split(",")[0]), abs=0.2)


def test_errors_are_told_in_a_line(
    settings: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = {
        ("fit", "train.step=3"): "error: there is no setting train.step: did you mean",
        ("fit", *settings("a", "data.files=nothing")): "error: no data at 'nothing'",
        ("fit", *settings("b", "train.model.vocab=200")): "error: the tokenizer has 277 tokens",
        ("eval", str(tmp_path)): f"error: {tmp_path} has neither",
        ("import-hf", str(tmp_path)): "error: there is no ",
    }
    for argv, message in cases.items():
        assert program.main(argv) == 2
        assert capsys.readouterr().err.startswith(message)


def test_sigterm_saves_on_one_mesh_and_another_goes_on(
    run_of: Callable[..., Run], settings: Callable[..., list[str]]
) -> None:
    root, pairs = Path(__file__).parents[2], ["train.schedule=constant", "save_every=1000"]
    environment = os.environ | {"CPU_NUM_DEVICES": "8", "PYTHONPATH": str(root)}
    argv = [sys.executable, "-u", "-m", "examples.llama", "fit"]
    argv += settings("parts", *pairs, "mesh.tensor=2", "train.steps=100000")
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = ""
        while "step 4: held-out loss" not in told:
            told = process.stdout.readline()
            assert told, "it ended before step 4"
        process.send_signal(signal.SIGTERM)
        told = process.stdout.read()
    assert process.returncode == os.EX_TEMPFAIL
    [stopped] = re.findall(r"stopped after step (\d+), which is saved: the same command", told)
    pairs.append(f"train.steps={int(stopped) + 2}")
    parts, whole = run_of("parts", *pairs), run_of("whole", *pairs)
    fit.fit(parts)
    fit.fit(whole)
    assert len(losses(parts)) == int(stopped) + 2
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-4)
    assert lines(parts)[-1]["step"] == lines(whole)[-1]["step"] == int(stopped) + 2
