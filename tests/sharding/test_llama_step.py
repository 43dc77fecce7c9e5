"""The Llama example on 8 devices: the step of `fit` is the one that `aot` compiles."""

from pathlib import Path

import pytest

from examples.llama import config, fit, train
from examples.llama.footprint import Case

SETTINGS = {
    "mixed": "train.precision=mixed train.optimizer=adafactor train.plan.microbatches=2",
    "compensated": "train.precision=compensated train.plan.policy=offload on_bad=ignore",
    "stochastic": "train.precision=stochastic mesh.fsdp=2 mesh.data=2 train.optimizer=adafactor",
}


class Seen(Exception):
    """The step was reached."""


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("name", SETTINGS)
def test_aot_compiles_the_step_of_fit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 300, encoding="utf-8")
    pairs = (
        f"folder={tmp_path / 'run'} data.files={text} data.vocab=300 train.model=tiny "
        "train.model.vocab=304 data.batch=16 data.seq=32 mesh.tensor=2 train.steps=2 "
        f"train.warmup=1 train.plan.block=16 {SETTINGS[name]}"
    )
    run = config.read(pairs=pairs.split())
    seen = []

    def step(state: train.State, batch: train.Batch, base: None, *, recipe: train.Recipe) -> None:
        seen.append(lower(state, batch, base, recipe=recipe).as_text())
        raise Seen("enough")

    lower = train.train_step.lower
    monkeypatch.setattr(train, "train_step", step)
    with pytest.raises(Seen, match="enough"):
        fit.fit(run)
    monkeypatch.undo()
    assert Case(run, "v6e:2x4").lower().as_text() == seen[0]
    assert "sharding={devices=[" in seen[0]
