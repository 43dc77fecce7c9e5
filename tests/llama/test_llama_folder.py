"""A run's folder: who may write to it, and what its files say."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.llama import __main__ as program
from examples.llama import config
from examples.llama.checkpoint.checkpoints import Checkpoints
from examples.llama.checkpoint.run_lock import FolderInUseError, owned
from examples.llama.config import Run
from examples.llama.options import SettingError
from examples.llama.parallel import hosts
from examples.llama.train import fit
from xfunc.errors import DamagedCheckpointError

ROOT = Path(__file__).parents[2]


def content(folder: Path) -> dict[str, bytes]:
    """All files of a folder, but TensorBoard's, which a thread writes."""
    files = (path for path in folder.rglob("*") if path.is_file() and "tfevents" not in path.name)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_fit_in_folder_in_use_is_refused(
    run_of: Callable[..., Run],
    settings: Callable[..., list[str]],
    at_step: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, told = run_of("a", "eval_every=100"), []

    def second() -> None:
        leftover = Path(run.folder, "checkpoints", "9.partial")
        leftover.mkdir(parents=True)
        before = content(Path(run.folder))
        status = program.main(["fit", *settings("a", "train.peak_lr=0.1", "save_every=1")])
        told.append((status, capsys.readouterr().err))
        assert content(Path(run.folder)) == before
        assert leftover.exists()

    at_step(3, second)
    assert fit.fit(run).ended == "done"
    [(status, message)] = told
    assert status == 2
    assert f"error: {run.folder} is in use by process {os.getpid()} on " in message
    assert ", since 20" in message
    assert fit.fit(run).ended == "done"  # It has let go.
    assert not Path(run.folder, "owner.json").exists()


def test_fit_after_killed_owner(run_of: Callable[..., Run]) -> None:
    run = run_of("a")
    code = (
        "import sys, time, pathlib; from examples.llama.checkpoint.run_lock import owned\n"
        "with owned(pathlib.Path(sys.argv[1])): print('mine', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, run.folder],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "mine\n"
        with pytest.raises(FolderInUseError, match=f"in use by process {process.pid} on "):
            fit.fit(run)
        process.send_signal(signal.SIGKILL)
    assert Path(run.folder, "owner.json").exists()
    assert fit.fit(run).ended == "done"


def test_owned_by_first_process_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    monkeypatch.setattr(hosts, "is_first", lambda: False)
    monkeypatch.setattr(hosts, "agree", lambda refused: refused)
    with owned(folder):
        assert not folder.exists()
    monkeypatch.setattr(hosts, "agree", lambda refused: True)  # The first one was refused.
    with (
        pytest.raises(FolderInUseError, match="run is in use by another process: wait"),
        owned(folder),
    ):
        raise AssertionError("it is not owned")


def test_fit_writes_settings_with_new_steps_only(
    run_of: Callable[..., Run],
) -> None:
    run = run_of("a")
    fit.fit(run)
    before = content(Path(run.folder))
    assert fit.fit(run_of("a", "train.peak_lr=0.9")).step == 8
    assert content(Path(run.folder)) == before
    longer = run_of("a", "train.steps=9")
    fit.fit(longer)
    assert config.read(Path(run.folder, "config.yaml")) == longer


def test_fit_fewer_steps_than_checkpoint_is_refused(
    run_of: Callable[..., Run],
    settings: Callable[..., list[str]],
    command: Callable[..., tuple[int, str]],
) -> None:
    """Whether the checkpoint is that of a finished run or not; nothing in the folder changes."""
    run = run_of("a")
    fit.fit(run)
    before = content(Path(run.folder))
    for steps in (4, 7):
        status, told = command("fit", *settings("a", f"train.steps={steps}"))
        assert status == 2
        assert (
            f"error: train.steps is {steps}, but the newest checkpoint in {run.folder} is of step "
            "8: use 8 or more to continue, or another folder for a shorter run"
        ) in told
        assert content(Path(run.folder)) == before
    status, told = command("fit", *settings("a"))  # A finished run has nothing to do.
    assert status == 0


def test_config_read_truncated_settings(run_of: Callable[..., Run]) -> None:
    run = run_of("a", "train.steps=4")
    fit.fit(run)
    file = Path(run.folder, "config.yaml")
    whole = file.read_text()
    file.write_text(whole[: whole.index("  optimizer")])
    with pytest.raises(SettingError, match=r"config\.yaml is truncated: .*Remove it: `fit`"):
        config.read(file)
    file.write_text("")
    with pytest.raises(SettingError, match=r"config\.yaml is truncated: .*Remove it: `fit`"):
        config.read(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match=r"config\.yaml is not valid YAML; fix it: .*0xff"):
        config.read(file)
    longer = run_of("a", "train.steps=5")
    assert fit.fit(longer).step == 5
    assert config.read(file) == longer


def test_checkpoints_restore_skips_renamed_step(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        for step in (100, 150):
            checkpoints.save(step, {"step": step}, {"rows": step})
    shutil.copytree(tmp_path / "150", tmp_path / "186")
    message = r"186 holds the checkpoint of step 150: rename the folder to 150"
    with pytest.warns(UserWarning, match=f"step 186 is skipped: .*{message}"):
        step, state, extra = Checkpoints(tmp_path).restore({"step": 0})
    assert (step, state, extra) == (150, {"step": 150}, {"rows": 150})
    with pytest.raises(DamagedCheckpointError, match=message):
        Checkpoints(tmp_path).restore({"step": 0}, step=186)
