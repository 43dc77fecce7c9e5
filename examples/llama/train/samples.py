"""Texts that a model generates during training."""

import json
from pathlib import Path

from ..checkpoint.trained_weights import Trained
from ..config import Run
from ..data.tokenizer import Tokenizer
from ..model import Params
from ..model.complete import complete, prompts_of
from ..model.sampling import Settings
from ..parallel import hosts
from .train_config import Recipe

_TEMPERATURE = 0.8


def write(
    run: Run, recipe: Recipe, params: Params, base: Params | None, known: Tokenizer, step: int
) -> list[str]:
    """Continue the prompts in `run.samples`, and add the texts to ``samples.jsonl``.

    Every step draws the same random numbers.
    """
    weights = Trained(run.folder, run, recipe, params, Path(run.folder), base).computing()
    made = complete(
        weights,
        known,
        prompts_of(known, run.samples),
        run.sample_tokens,
        Settings(_TEMPERATURE, seed=run.seed),
        config=recipe.model,
        plan=recipe.plan,
    )
    texts = [prompt + text for prompt, text in zip(run.samples, made, strict=True)]
    if not hosts.is_first():
        return texts
    with Path(run.folder, "samples.jsonl").open("a", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"step": step, "text": text}, ensure_ascii=False) + "\n")
    return texts
