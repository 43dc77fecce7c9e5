"""Training by several processes has the losses of one, also when others resume it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import xfunc as xf
from examples.llama.config import Run
from examples.llama.data.data_config import DataConfig
from examples.llama.data.reader import Reader
from examples.llama.parallel import hosts
from tests.llama import tuned
from tests.llama.several_processes import curve, ends, settings, started, until

COMMANDS = "tests.llama.several_processes"


def used(run: Path, out: Path, *step: str) -> list[str]:
    """Commands that use the weights of a run: of one step, or the newest."""
    asked = ["--prompt", "the", "--prompt", "sings", "--new", "6", "--temperature", "0"]
    return [
        *("+", "eval", str(run), *step),
        *("+", "generate", str(run), *step, *asked),
        *("+", "export-hf", str(run), *step, "--out", str(out)),
    ]


@pytest.mark.slow
def test_fit_resumes_with_another_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "programs"))
    run, whole = tmp_path / "run", tmp_path / "whole"
    fit = ["fit", *settings(tmp_path, f"folder={run}", "keep=9")]

    # A signal to one of them is one to all.
    many = [*fit, *used(run, tmp_path / "two")]
    with started(2, 4, *many, module=COMMANDS) as running:
        until(running[0], "step 1:")
        running[1].send_signal(signal.SIGTERM)
        (first, said), (second, nothing) = ends(running)
    assert (first, second) == (0, 0), said + nothing
    assert f"fit ends with {os.EX_TEMPFAIL}" in said
    (step,) = re.findall(r"stopped after step (\d+), which is saved", said)
    assert "step" not in nothing, "The first one speaks."
    _, _, of_two = said.partition("fit ends with")

    # If one is killed, the others say so and end.
    with started(2, 4, *fit) as running:
        until(running[0], "step 9:")
        running[1].kill()
        (first, said), (second, _) = ends(running)
    assert (first, second) == (os.EX_UNAVAILABLE, -signal.SIGKILL), said
    assert "error: process 1 is gone: it was killed" in said

    # One process goes on from there, and finds what the two found.
    undisturbed = ["fit", *settings(tmp_path, f"folder={whole}")]
    more = [*fit, *used(run, tmp_path / "one", "--step", step), "+", *undisturbed]
    with started(1, 8, *more, module=COMMANDS) as running:
        ((status, said),) = ends(running)
    assert status == 0, said
    assert re.search("^[48] of 12 steps are done", said, re.MULTILINE), "8 may not be complete."
    assert curve(run) == curve(whole)
    assert [line["step"] for line in curve(run) if "loss" in line] == [*range(1, 13)]
    _, _, of_one = said.partition("fit ends with")
    assert of_one.splitlines()[1:6] == of_two.splitlines()[1:6]
    weights = [tmp_path / name / "model.safetensors" for name in ("one", "two")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adapters", "quantised"])
def test_fine_tuning_by_two_processes_matches_one(kind: str, made: Path, tmp_path: Path) -> None:
    """Import, training and export find what one process finds."""
    found = []
    for count in (1, 2):
        run, out = tmp_path / f"by{count}", tmp_path / f"out{count}"
        commands = [
            *("import-hf", str(made / "hub"), *tuned.settings(made, run, kind), "mesh.fsdp=2"),
            *("+", "fit", "--config", str(run / "config.yaml")),
            *("+", "export-hf", str(run), "--adapter", "--out", str(out)),
        ]
        with started(count, 2 // count, *commands, module=COMMANDS) as running:
            (status, said), *others = ends(running)
        assert [status, *(s for s, _ in others)] == [0] * count, said + str(others)
        assert re.findall(r"^(\S+) ends with 0$", said, re.MULTILINE) == [
            "import-hf",
            "fit",
            "export-hf",
        ]
        found.append((tuned.curve(run), load_file(out / "adapter_model.safetensors")))
    (losses, adapters), (theirs, others) = found
    for line, other in zip(losses, theirs, strict=True):  # They add in another order.
        assert line == pytest.approx(other, rel=1e-5)
    torch.testing.assert_close(adapters, others, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_abort_reports_the_process_that_is_gone() -> None:
    with started(2, 1, "abort", module=COMMANDS) as running:
        (first, _), (second, said) = ends(running)
    assert (first, second) == (-signal.SIGKILL, os.EX_UNAVAILABLE), said
    assert "error: process 0 is gone: it was killed, crashed, or has said nothing" in said


@pytest.mark.slow
def test_fit_signal_before_the_first_step(tmp_path: Path) -> None:
    fit = ["early", "fit", *settings(tmp_path, f"folder={tmp_path / 'run'}")]
    with started(2, 1, *fit, module=COMMANDS) as running:
        (first, said), (second, why) = ends(running)
    assert (first, second) == (os.EX_UNAVAILABLE, os.EX_TEMPFAIL), said + why
    assert "process 1: interrupted by SIGTERM: the same command continues" in why
    assert "error: process 1 failed: interrupted by SIGTERM" in said


def arrays(reader: Reader, step: int) -> list[torch.Tensor]:
    return [x for x in reader.batch(step) if x is not None]


@pytest.mark.parametrize("kind", ["packed", "dynamic"])
def test_reader_rows_of_processes_form_the_batch(kind: str, tmp_path: Path) -> None:
    """What processes read makes up the batch, in every epoch; one by length is read whole."""
    (tmp_path / "text.txt").write_text(" ".join(f"w{i % 37}" for i in range(600)))
    config = DataConfig((str(tmp_path / "text.txt"),), vocab=300, batch=6, seq=16)
    if kind == "dynamic":
        lines = "\n".join(f'{{"text": "{"ab " * (1 + i % 9)}"}}' for i in range(40))
        (tmp_path / "text.jsonl").write_text(lines)
        config = DataConfig(
            (str(tmp_path / "text.jsonl"),), vocab=300, batch=6, seq=16, dynamic=True
        )
    whole, *parts = (Reader(config, tmp_path, rows=rows) for rows in (None, [0, 1, 4], [2, 3], [5]))
    for batch in (whole.batch(0), whole.batch(40), whole.held_out(0)):
        assert batch.tokens.shape[0] == 6
    for step in range(0, 60, 7):
        expected, found = arrays(whole, step), [arrays(part, step) for part in parts]
        for k, x in enumerate(expected):
            if kind == "dynamic":
                assert all(torch.equal(each[k], x) for each in found)
            else:
                made = torch.cat([each[k] for each in found])
                assert torch.equal(made[np.argsort([0, 1, 4, 2, 3, 5])], x)
    assert parts[0].state(7) == whole.state(7), "The place in the data is of all."


@pytest.mark.parametrize(
    ("variables", "joins"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),  # a pod of its own
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, True),
    ],
)
def test_join_in_kubernetes_pods(
    variables: dict[str, str], joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    joined: list[bool] = []
    monkeypatch.setattr(xf.distributed, "initialize", lambda: joined.append(True))
    hosts.join()
    assert joined == [True] * joins
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    hosts.join()
    assert joined == [True] * joins, "On TPUs torch_xla connects them."


def test_hosts_functions_in_one_process() -> None:
    hosts.join()
    hosts.check_same_settings(Run())
    hosts.check_same_data({"seq": 3})
    assert not hosts.are_several()
    assert hosts.from_first([3]) == [3]
    assert hosts.fetch({"a": xf.device_put(torch.ones(2))})["a"].tolist() == [1.0, 1.0]
    hosts.leave()
