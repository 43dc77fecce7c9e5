"""The estimated peak of a train step, against the figures of libtpu's compiler."""

from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import model, train
from examples.llama.model.plan import Plan
from xfunc.hlo.estimate.liveness import peak

DENSE = Plan(attention="dense", loss_chunk=4096)


def test_peak_of_train_step_near_tpu_compiler():
    """Of libtpu 0.0.21 for a v6e chip: arguments, temporaries, results; 537 million parameters."""
    compiled = (5.909 + 2.66 + 5.909) * 2**30
    config = model.Config(32000, 2048, 8192, layers=8, heads=16, kv_heads=8)
    recipe = train.Recipe(config, steps=100, plan=DENSE)
    weights = model.shapes(config, torch.bfloat16)
    state = xf.eval_shape(lambda params: train.start(recipe, params), weights)
    tokens: Any = xf.ShapeDtypeStruct((4, 2048), torch.int64)
    batch = model.Batch(tokens, tokens)
    module = train.train_step.lower(state, batch, recipe=recipe).module
    assert peak(module).bytes == pytest.approx(compiled, rel=0.1)
