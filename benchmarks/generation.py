"""Texts of the Llama example on one core, against transformers' `generate`, by CPU time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import xfunc as xf
from benchmarks.timing import Contender, Row, race, table
from benchmarks.training import on_one_core
from examples.llama import model
from examples.llama.hub import hf
from examples.llama.model import generate
from examples.llama.model.sampling import Sampling, Settings

CONFIG = model.Config(32000, 512, 1344, layers=4, heads=8, kv_heads=4)
TEXTS, NEW, ROUNDS = 8, 64, 3
PROMPTS = (30, 400)  # tokens of the longest one


def main() -> None:
    """Print the table."""
    on_one_core("benchmarks.generation")


def measure() -> None:
    """Make greedy texts from prompts of several lengths, equal ones by both."""
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    shapes = model.shapes(CONFIG, torch.float32)
    params = xf.tree.map(
        lambda s: torch.randn(s.shape, generator=draw) * s.shape[-1] ** -0.5, shapes
    )
    peer = _in_transformers(params)
    put = xf.device_put(params)
    rows = []
    for longest in PROMPTS:
        texts = [
            torch.randint(3, CONFIG.vocab, (longest - 3 * i,), generator=draw).tolist()
            for i in range(TEXTS)
        ]
        tokens, lengths = generate.pad(texts)
        sampling = Sampling.of([Settings()] * TEXTS)

        def ours() -> torch.Tensor:
            made = generate.generate(put, tokens, sampling, lengths=lengths, config=CONFIG, new=NEW)  # noqa: B023
            return xf.device_get(made)

        def theirs() -> torch.Tensor:
            return peer(tokens, lengths)  # noqa: B023

        assert torch.equal(ours(), theirs())
        name = f"transformers, {TEXTS} texts after up to {longest} tokens"
        both = {"xfunc": Contender(ours), "transformers": Contender(theirs)}
        best = race(both, ROUNDS, budget=300.0, clock=time.process_time)
        mine, other = (seconds / (TEXTS * NEW) for seconds in best.values())
        rows.append(Row(name, mine, other, 1 / 0.8))
    print(table(f"generation: CPU time of a token, {NEW} after each text", rows))


def _in_transformers(params: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made, "model")
        hf.save(folder, CONFIG, params, context=2048)
        of_hub: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def run(tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        width = tokens.shape[1]
        mask = (torch.arange(width) >= width - lengths[:, None]).long()
        how = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW, "pad_token_id": 0}
        with torch.inference_mode():
            return of_hub.generate(tokens, attention_mask=mask, **how)[:, width:]

    return run


if __name__ == "__main__":
    measure()
