"""Resuming from checkpoints: with other data, and with useless weights."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xfunc as xf
from examples.llama import train
from examples.llama.checkpoint.checkpoints import Checkpoints
from examples.llama.config import Run
from examples.llama.data.data_config import DataConfig
from examples.llama.data.reader import DataChangedError, Reader
from examples.llama.model.parameters import NotFiniteError
from examples.llama.options import SettingError
from examples.llama.train import fit

Command = Callable[..., tuple[int, str]]


def checkpoints_of(run: Run) -> Checkpoints:
    return Checkpoints(Path(run.folder, "checkpoints"))


def state_of(run: Run) -> tuple[train.State, dict[str, Any]]:
    """The newest state, on the host, and what was saved beside it."""
    target = train.abstract_state(run.recipe(1))
    _, state, extra = checkpoints_of(run).restore(target)
    return xf.device_get(state), extra


# -- other data -----------------------------------------------------------------------------------


def rows_of(reader: Reader, steps: range) -> list[bytes]:
    return [row.numpy().tobytes() for step in steps for row in reader.batch(step).tokens]


@pytest.mark.parametrize("batch", [1, 2, 6])
def test_reader_resume_with_other_batch_size(tmp_path: Path, batch: int) -> None:
    """No row is left out or seen twice, and so over a second change and through JSON."""
    sizes: dict[str, Any] = {"vocab": 300, "seq": 64}
    reader = Reader(DataConfig(batch=4, **sizes), tmp_path)
    expected, found = rows_of(reader, range(40)), rows_of(reader, range(10))
    for step, size, steps in [(10, batch, 6), (16, 3, 10)]:
        state = json.loads(json.dumps(reader.state(step)))
        reader = Reader(DataConfig(batch=size, **sizes), tmp_path)
        with pytest.raises(DataChangedError, match=r"batch was \d, is \d\. .* use fit --new-data"):
            reader.go_on(state)
        told = reader.go_on(state, new_data=True)
        assert told.startswith(f"from step {step + 1} on the data is different: batch was ")
        again = Reader(DataConfig(batch=size, **sizes), tmp_path)
        assert again.go_on(json.loads(json.dumps(reader.state(step + 1)))) == ""
        assert rows_of(again, range(step, step + steps)) == rows_of(
            reader, range(step, step + steps)
        )
        found += rows_of(reader, range(step, step + steps))
    assert found == expected[: len(found)]


@pytest.mark.slow
def test_fit_resume_with_new_data(
    settings: Callable[..., list[str]], run_of: Callable[..., Run], text: Path, command: Command
) -> None:
    pairs = ["eval_every=100", "train.schedule=constant"]
    assert command("fit", *settings("a", *pairs))[0] == 0
    before, saved = state_of(run_of("a"))

    other = text.with_name("other.txt")
    other.write_text(text.read_text(encoding="utf-8")[::-1], encoding="utf-8")
    pairs += ["train.steps=10", f"data.files={other}", "data.batch=2"]
    status, told = command("fit", *settings("a", *pairs))
    assert status == 2
    assert "use fit --new-data" in told
    status, told = command("fit", "--new-data", *settings("a", *pairs))
    assert status == 2
    assert "the tokenizer is not that of the checkpoint" in told
    pairs.append(f"data.tokenizer={run_of('a').folder}/tokenizer")
    status, told = command("fit", "--new-data", *settings("a", *pairs))
    assert status == 0
    assert "from step 9 on the data is different: text was " in told
    assert "batch was 4, is 2" in told

    after, extra = state_of(run_of("a"))
    assert after.step == before.step + 2 == 10
    data = extra["data"]
    assert (data["since"], data["row"]) == (8, 0)
    [ended] = data["before"]
    was = {key: value for key, value in saved["data"].items() if key not in ("step", "before")}
    assert ended == was | {"since": 0, "row": 0, "until": 8}
    # From here on these are the run's data, which nothing has to be asked for.
    assert command("fit", *settings("a", *pairs, "train.steps=11"))[0] == 0


# -- checkpoints that stay ------------------------------------------------------------------------


def test_fit_keep_every(run_of: Callable[..., Run]) -> None:
    run = run_of("a", "save_every=2", "keep=1", "keep_every=3", "eval_every=100")
    fit.fit(run)
    assert checkpoints_of(run).steps() == [3, 6, 8]
    with pytest.raises(SettingError, match="keep_every is 0: use 1 or more"):
        run_of("a", "keep_every=0")


# -- weights that are of no use -------------------------------------------------------------------


def test_fit_with_diverged_weights(
    run_of: Callable[..., Run], settings: Callable[..., list[str]], command: Command
) -> None:
    pairs = ["train.steps=4", "on_bad=ignore", "save_every=2"]
    assert fit.fit(run_of("a", *pairs)).ended == "done"
    folder = run_of("a").folder
    state, extra = state_of(run_of("a"))
    state.params["norm"][0] = math.nan
    with checkpoints_of(run_of("a")) as checkpoints:
        checkpoints.save(5, state, extra)

    with pytest.raises(NotFiniteError, match=r"checkpoints/5 has weights that are not finite"):
        fit.fit(run_of("a"))
    status, told = command("fit", *settings("a", *pairs, "train.steps=7"))
    assert status == 1
    assert told.count("is taken, as on_bad=ignore says: loss nan") == 1
    assert "finished at step 7, which is saved, but its weights or their held-out loss are" in told
    assert command("fit", *settings("a", *pairs, "train.steps=7"))[0] == 1
    assert f"error: step 7 of {folder} has weights that are not" in command("eval", folder)[1]


def test_generate_non_finite_logits_are_refused(
    run_of: Callable[..., Run], command: Command
) -> None:
    """Weights may be finite, and too large for what is computed of them not to overflow."""
    run = run_of("a", "train.steps=4")
    fit.fit(run)
    state, extra = state_of(run)
    state.params["norm"] *= 1e20
    state.params["head"] *= 1e30
    with checkpoints_of(run) as checkpoints:
        checkpoints.save(5, state, extra)
    for temperature in (0, 1):
        argv = ["generate", run.folder, "--prompt", "the", "--new", 3]
        status, told = command(*argv, "--temperature", temperature)
        assert status == 2
        assert (
            f"error: step 5 of {run.folder}: the model produces logits that are not finite" in told
        )
