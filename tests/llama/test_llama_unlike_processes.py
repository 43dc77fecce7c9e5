"""Processes that are given other settings, arguments or files end with an error that names them."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xfunc as xf
from examples.llama import config, files, model
from examples.llama.checkpoint import trained_weights
from examples.llama.config import Run
from examples.llama.data import tokenizer
from examples.llama.hub import hf
from examples.llama.parallel import hosts
from examples.llama.train import fit, steps, trackers
from examples.llama.tune import adapters
from tests.llama import tuned
from tests.llama.several_processes import ends, started
from tests.llama.unlike_processes import MODULE

BOTH = ": give all processes the same settings and arguments"
FILES = ": let all processes read the same files"
SUM = r"[0-9a-f]{16}"


@pytest.fixture(scope="module")
def places(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two folders with files of the same names, which differ: one for each process."""
    both = a, b = tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("b")
    for seed, (place, word) in enumerate(zip(both, ("yes", "no"), strict=True)):
        shutil.copytree(made / "hub", place / "hub")
        with xf.disable_jit():
            shutil.copytree(made / "hub", place / "theirs")
            hf.save(place / "new", tuned.SIZES, model.init(tuned.SIZES, seed))
        shutil.copy(place / "new" / hf.SINGLE, place / "theirs")
        shutil.copytree(made / "hub", place / "worded")
        tokenizer.train([f"{word} and the rest of it " * 20], tuned.SIZES.vocab, place / "worded")
        (place / "t.txt").write_text(f"{word} and ")
        (place / "same.txt").write_text("yes and ")
        pairs = tuned.settings(made, place / "run", "adapters")
        trained_weights.import_published(place / "theirs", pairs=[*pairs, f"seed={seed}"])
        trained_weights.export_adapters(trained_weights.load(place / "run"), place / "adapter")
    shutil.copy(a / "adapter" / adapters.CONFIG, b / "adapter")  # It names the base.
    shutil.copy(a / "run" / "config.yaml", b / "run")
    return both


def differ(what: str, one: str = SUM, other: str = SUM) -> str:
    return f"{what} is {one} in process 0, and {other} in process 1"


def of(name: str, number: int, where: str) -> str:
    return differ(f"the hash of {name}, file {number} of {where},")


@pytest.mark.sample(9, seed=0)
def test_unlike_processes_are_refused(places: tuple[Path, Path], made: Path) -> None:
    a, b = places
    out, run = ["folder=out", "mesh.fsdp=2"], ["run", "mesh.fsdp=2"]
    lora = "train.tune.lora=[layers.w*]"
    tuning = ["fit", *tuned.settings(made, Path("run"), "adapters"), "mesh.fsdp=2"]
    rates = "@1:train.peak_lr=1e-3", "@1:data.seq=32"
    cases = {  # What each does and says, and what the error is.
        # settings
        ("import-hf", f"cd={a}", "hub", *out, lora, "@0:seed=1", "@1:seed=2"): (
            differ("seed", "1", "2") + BOTH
        ),
        ("import-hf", "hub", *out, "@0:train.precision=mixed", "@1:train.precision=bfloat16"): (
            differ("train.precision", "mixed", "bfloat16") + BOTH
        ),
        ("import-hf", "hub", *out, *rates): (
            differ("train.peak_lr", "2.0e-05", "0.001")
            + "; "
            + differ("data.seq", r"\d+", "32")
            + BOTH
        ),
        ("fit", *out, "@1:on_bad=stop"): differ("on_bad", "skip", "stop") + BOTH,
        # arguments
        ("generate", *run, "@0:--new=4", "@1:--new=12"): differ("--new", "4", "12") + BOTH,
        ("generate", *run, "@0:--seed=1", "@1:--seed=0"): differ("--seed", "1", "0") + BOTH,
        ("generate", *run, "@0:--prompt=yes"): differ("--prompt", r"\['yes'\]", "absent") + BOTH,
        ("export-hf", *run, "@0:--out=one", "@1:--out=two"): differ("--out", "one", "two") + BOTH,
        ("eval", "@0:run", "@1:hub"): differ("the folder", "run", "hub") + BOTH,
        ("fit", *out, "@1:--new-data"): differ("--new-data", "absent", "True") + BOTH,
        ("@0:eval", "@1:generate", "run"): differ("the command", "eval", "generate") + BOTH,
        # files
        ("import-hf", f"@1:cd={b}", "theirs", *out): of("model.safetensors", 2, "theirs") + FILES,
        ("import-hf", "hub", "--adapter=adapter", *out): (
            of("adapter_model.safetensors", 2, "adapter") + FILES
        ),
        ("generate", "worded", "--prompt=yes"): of("tokenizer.json", 1, "worded") + FILES,
        ("eval", *run, f"base={made / 'hub'}"): (
            of("manifest.json", 1, "run/checkpoints/0") + FILES
        ),
        (*tuning, "base=theirs"): differ("the sha256 of the base, theirs,") + FILES,
    }
    last = ["eval", *run, "@1:eval_batches=2"]
    words = [word for case in (*cases, last) for word in ("+", *case)]
    with started(2, 1, *words[1:], module=MODULE) as running:
        found = ends(running)
    for k, (status, said) in enumerate(found):
        lines = [line for line in said.splitlines() if re.match(r"[a-z-]+(:| ends with)", line)]
        assert (status, len(lines)) == (2, len(cases)), said
        for case, line in zip(cases, lines, strict=True):
            command = "generate" if case[0].startswith("@") and k else case[0].removeprefix("@0:")
            assert re.match(f"{command}: {cases[case]}", line), line
    # The first process to see it says why all of them end.
    ended = re.findall(r"^process \d: error: (.*)$", found[0][1] + found[1][1], re.MULTILINE)
    assert ended == [f"eval: {differ('eval_batches', '16', '2')}{BOTH}"]


@pytest.mark.slow
def test_unlike_processes_that_read_the_same_are_accepted(
    places: tuple[Path, Path], made: Path
) -> None:
    """Where a process is, and the file that settings are from, if what is read is the same."""
    a, b = places
    for place in places:
        shutil.copytree(made, place / "made")
    pairs = [*tuned.settings(Path("made"), a / "out", "text"), "data.tokenizer=made"]
    pairs += ["mesh.fsdp=2", "train.steps=2", "profile=[2]", "trackers=[]"]
    config.write(config.read(pairs=pairs), a / "one.yaml")
    shutil.copy(a / "one.yaml", b / "two.yaml")
    words = [*("fit", f"@0:cd={a}", f"@1:cd={b}"), "--config", "@0:one.yaml", "@1:two.yaml"]
    with started(2, 1, *words, module=MODULE) as running:
        found = ends(running)
    assert [status for status, _ in found] == [0, 0], str(found)
    assert "finished at step 2" in found[0][1]
    for k in range(2):  # XLA names the files of both for their host.
        assert len([*(a / "out/profile/step-2" / f"process-{k}").rglob("*.xplane.pb")]) == 1


def test_fit_processes_wait_for_the_first_ones_trackers(
    run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes wait for the first one's before the first step, where XLA would not for long."""
    order: list[str] = []

    def agree(wanted: bool) -> bool:
        order.append("agree")
        return wanted

    def step(*args: Any, **how: Any) -> Any:
        raise InterruptedError("the first step")

    monkeypatch.setattr(trackers, "begin", lambda *args: order.append("begin") or [])
    monkeypatch.setattr(hosts, "agree", agree)
    monkeypatch.setattr(steps, "train_step", step)
    with pytest.raises(InterruptedError, match="the first step"):
        fit.fit(run_of("run"))
    assert order[order.index("begin") :] == ["begin", "agree"]


def test_samples_differ_for_changed_large_files(tmp_path: Path) -> None:
    whole = np.random.default_rng(0).integers(0, 256, (16 << 20) + 5, np.uint8)
    found = []
    for k, change in enumerate([None, 0, -1, 65535, "scaled", "longer"]):
        data = whole.copy()
        if isinstance(change, int):
            data[change] ^= 1
        data = {"scaled": data * 2, "longer": np.append(data, data[:1])}.get(str(change), data)
        (tmp_path / str(k)).write_bytes(data.tobytes())
        found += files.samples([tmp_path / str(k)])
    assert len(set(found)) == 6
    (tmp_path / "small").write_bytes(b"abc")
    small, missing = files.samples([tmp_path / "small", tmp_path / "missing"])
    assert (small, missing) == (hashlib.sha256(b"abc").hexdigest(), "")
