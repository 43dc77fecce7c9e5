"""The internals of the engine: the state of its slots."""

import pytest
import torch

import xfunc as xf
from examples.llama import model
from examples.llama.engine import Engine, Job
from examples.llama.plan import Plan
from tests.llama.test_llama_engine import LENGTH, PIECES, numbers, prompts

CONFIG = model.TINY["tiny"]


@pytest.fixture
def engine() -> Engine:
    params = model.init(CONFIG)
    made = Engine(params, CONFIG, size=3, length=LENGTH, plan=Plan(block=8), pieces=PIECES)
    made.warm_up()
    return made


@pytest.mark.slow
def test_engine_slot_ignores_former_state(engine: Engine) -> None:
    """Nor where it is no number."""
    text = prompts(6)[0]
    first, again = Job(text, 5), Job(text, 5)
    engine.submit(first)
    engine.finish()
    engine._state = xf.jit(
        lambda state: xf.tree.map(
            lambda x: torch.full_like(x, torch.nan if x.is_floating_point() else True), state
        )
    )(engine._state)
    engine.submit(again)
    engine.finish()
    assert numbers(again) == numbers(first)
