"""The commands of the training program: what they tell, their errors, and how signals end them."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.llama import __main__ as program
from examples.llama import config, options
from examples.llama.checkpoint import trained_weights
from examples.llama.config import Run
from examples.llama.train import fit
from tests.llama.runs import lines, losses


@pytest.mark.parametrize("command", [None, *program.COMMANDS])
def test_commands_help(command: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        program.main(["--help"] if command is None else [command, "--help"])
    printed = capsys.readouterr().out
    if command is None:
        assert all(f"  {name} " in printed for name in program.COMMANDS)
    elif command == "aot":
        assert "--topology" in printed
    else:
        # What starts a run tells its defaults; otherwise settings are those of the run.
        shown = {"fit": "=0.005", "import-hf": "=2.0e-05"}.get(command, "")
        assert f"  train.peak_lr{shown} " in printed
        assert f"  train.model{shown and '=demo-1m'} " in printed
        assert max(map(len, printed.splitlines())) <= 100
        # Every setting is in a group, once, and the common ones are in the first.
        sections = re.findall(r"^([A-Z].*):\n((?: .*\n)+)", printed, re.MULTILINE)
        assert [title for title, _ in sections] == list(config.GROUPS)
        listed = re.findall(r"^  ([\w.]+)[= ]", "".join(text for _, text in sections), re.MULTILINE)
        assert sorted(listed) == sorted([*options.texts(Run()), "train.model"])
        assert {"train.model", "data.files", "train.steps", "folder"} <= {*listed[:12]}


def test_commands_errors_in_one_line(
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


@pytest.mark.slow
def test_fit_sigterm_then_resume_on_another_mesh(
    run_of: Callable[..., Run], settings: Callable[..., list[str]]
) -> None:
    root = Path(__file__).parents[2]
    pairs = ["train.schedule=constant", "save_every=1000", "train.precision=float32"]
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


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_commands_signal_before_first_step(
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
    monkeypatch.setattr(trained_weights, "load", arrives)
    monkeypatch.setattr(trained_weights, "import_published", arrives)
    for command in (
        ["eval", run],
        ["generate", run, "--prompt", "a"],
        ["export-hf", run, "--out", str(tmp_path / "out")],
        ["import-hf", run],
    ):
        assert program.main(command) == 128 + number
        assert capsys.readouterr().err == f"interrupted by {name}\n"
        assert signal.getsignal(number) == before
