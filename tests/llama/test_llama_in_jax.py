"""The JAX step that `benchmarks.pods` is compared with equals the program's step."""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

import xfunc as xf
from benchmarks import jax_pods, pods
from examples.llama import model, train
from examples.llama.model.plan import Plan

jax.config.update("jax_platforms", "cpu")  # Not libtpu, which may be installed.
SIZES = {"vocab": 96, "hidden": 32, "intermediate": 48, "layers": 3, "heads": 4, "kv_heads": 2}


def in_jax(tree: Any) -> Any:
    return xf.tree.map(lambda x: jnp.asarray(x.cpu().numpy()), tree)


def test_train_step_matches_jax_step_of_benchmark():
    config = dataclasses.replace(pods.CONFIG, **SIZES)
    plan = Plan(policy="everything", attention="dense", loss_chunk=64)
    recipe = train.Recipe(config, steps=40, plan=plan, precision="float32", peak_lr=1e-2)
    windows = torch.randint(96, (4, 25), generator=torch.Generator().manual_seed(0))
    tokens, targets = windows[:, :-1].int(), windows[:, 1:].int().clone()
    targets[0, :5] = model.IGNORE
    batch = model.Batch(tokens, targets)
    theirs = jax_pods.Batch(*in_jax((tokens, targets)))

    step = jax.jit(jax_pods.Step(json.loads(json.dumps(pods.sizes(recipe, 4, 24)))))
    state = train.init(recipe)
    start = in_jax(state)
    there = jax_pods.State(
        start.params,
        start.step.astype(jnp.int32),
        start.opt[0].mu,
        start.opt[0].nu,
    )
    losses = []
    for _ in range(5):
        state, metrics = train.train_step(state, batch, recipe=recipe)
        there, found = step(there, theirs)
        expected = metrics.loss, metrics.grad_norm, metrics.lr, metrics.tokens, metrics.skipped
        assert [float(x) for x in found] == pytest.approx(
            [float(x.item()) for x in expected], rel=1e-5
        )
        losses.append(float(found[0]))
    assert losses[-1] < losses[0] / 2
    for a, b in zip(xf.tree.leaves(state.params), jax.tree.leaves(there.params), strict=True):
        torch.testing.assert_close(a.cpu(), torch.tensor(b.tolist()), rtol=1e-4, atol=1e-5)
