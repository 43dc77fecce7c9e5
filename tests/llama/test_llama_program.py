"""The training program: runs, their files and messages, and bad steps."""

import functools
import io
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import xfunc as xf
from examples.llama import __main__ as program
from examples.llama import config, train
from examples.llama.checkpoint.checkpoints import Checkpoints
from examples.llama.config import Run
from examples.llama.data.reader import DataChangedError
from examples.llama.model import flops
from examples.llama.parallel import hosts
from examples.llama.train import fit, metrics, steps
from examples.llama.train.interrupts import Interrupts
from tests.llama import interrupted
from tests.llama.interrupted import Killed, at_step
from tests.llama.runs import STEPS, assert_equal, curve, lines, losses, saved

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


def test_fit_reads_metrics_one_step_late(
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

    monkeypatch.setattr(steps, "train_step", launch)
    monkeypatch.setattr(metrics.Log, "step", read)
    fit.fit(run_of("a", "train.steps=4", "save_every=100", "eval_every=100"))
    late = [("launch", 1)]
    for number in (2, 3, 4):
        late += [("launch", number), ("read", number - 1)]
    assert events == [*late, ("read", 4)]


@pytest.mark.parametrize("how", ["killed", "SIGTERM", "SIGINT"])
def test_fit_resumed_equals_undisturbed(
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


def test_fit_of_finished_run_does_nothing(run_of: Callable[..., Run]) -> None:
    run = run_of("a")
    fit.fit(run)
    before = lines(run)
    assert fit.fit(run) == fit.Outcome(STEPS, None, "done")
    assert lines(run) == before


def test_fit_resume_with_other_data_raises(run_of: Callable[..., Run]) -> None:
    run = run_of("a")
    fit.fit(run)
    with pytest.raises(DataChangedError, match="seed was 0, is 1"):
        fit.fit(run_of("a", "data.seed=1"))
    assert config.read(Path(run.folder, "config.yaml")) == run


def test_interrupts_second_signal_raises() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.noted
        with pytest.raises(KeyboardInterrupt, match=r"^SIGINT$"):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == before


def test_fit_continues_after_failed_checkpoint(
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
    return functools.partial(interrupted.poison, monkeypatch)


@pytest.mark.slow
def test_fit_skips_bad_steps(run_of: Callable[..., Run], poison: Callable[..., None]) -> None:
    poison(3, 6)
    run = run_of("a")
    assert fit.fit(run).ended == "done"
    found = [line for line in lines(run) if "loss" in line]
    assert [line["step"] for line in found if line["skipped"]] == [3, 6]
    assert [line["step"] for line in found if line["loss"] is None] == [3, 6]
    assert found[2]["lr"] == found[3]["lr"]
    assert saved(run).step == STEPS - 2


def test_fit_on_bad_stop_ends_after_bad_step(
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
    assert after.step == 5
    assert all(torch.isfinite(p).all() for p in xf.tree.leaves(after.params))
    assert fit.fit(run).ended == "done"  # The bad step is behind it.


def test_fit_on_bad_ignore_takes_bad_steps(
    run_of: Callable[..., Run], poison: Callable[..., None]
) -> None:
    poison(3)
    run = run_of("a", "on_bad=ignore")
    assert fit.fit(run).ended == "diverged"
    assert [loss is None for loss in losses(run)] == [False] * 2 + [True] * (STEPS - 2)


# -- what is told -----------------------------------------------------------------------------


def test_fit_reports_speed_on_known_chips(
    run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert metrics.chip() is None
    monkeypatch.setattr(metrics, "chip", lambda: "v6e")
    monkeypatch.setattr(xf, "memory_stats", lambda: {"bytes_in_use": 12.5 * 2**30})
    run, screen = run_of("a", "eval_every=100", "save_every=100"), io.StringIO()
    fit.fit(run, Console(file=screen, force_terminal=True, width=200))
    assert re.search(r"8/8.* loss \d.\d{3}  \S+ tokens/s  MFU .*HBM 12.50 GiB", screen.getvalue())
    first, second, *_ = lines(run)
    assert first["hbm_gib"] == 12.5
    assert first["host_ms"] > 0
    assert "tokens_per_second" not in first
    per_token = flops.per_token(run.train.model, run.data.seq)
    assert second["mfu"] == pytest.approx(second["tokens_per_second"] * per_token / 918e12)


def test_agree_between_processes(monkeypatch: pytest.MonkeyPatch) -> None:
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
