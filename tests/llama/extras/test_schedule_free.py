"""Schedule-free AdamW, against the package of its authors."""

from typing import Any

import pytest
import schedulefree  # pyright: ignore[reportMissingImports]
import torch
from schedulefree import (  # pyright: ignore[reportMissingImports]
    adamw_schedulefree_reference as reference,
)

import xfunc as xf
from examples.llama import model, train
from examples.llama.model.plan import Plan
from examples.llama.train import optimizer, schedule_free
from tests.llama.test_llama_optimizer import random_tree

PLAN = Plan(attention="dense", policy="everything")
THEIRS = [schedulefree.AdamWScheduleFree, reference.AdamWScheduleFreeReference]


@pytest.mark.parametrize("theirs", THEIRS)
@pytest.mark.parametrize(("beta1", "beta2", "eps"), [(0.9, 0.95, 1e-8), (0.6, 0.999, 1e-3)])
def test_schedule_free_update_matches_schedulefree(
    theirs: Any, beta1: float, beta2: float, eps: float
) -> None:
    """Of gradients that depend on where they are taken; with a warm-up."""
    params, goal = random_tree(0), xf.tree.leaves(random_tree(1))
    leaves = [p.clone() for p in xf.tree.leaves(params)]
    groups = [{"params": leaves[:1], "weight_decay": 0.2}, {"params": leaves[1:]}]
    known = theirs(groups, 0.1, (beta1, beta2), eps, warmup_steps=4, foreach=False)
    state, options = schedule_free.schedule_free_init(params), {"beta1": beta1, "beta2": beta2}
    decayed = {"matrix": True, "vector": False, "wide": [False]}

    def gradient(points: Any, step: int) -> Any:
        _, treedef = xf.tree.flatten(points)
        given = zip(xf.tree.leaves(points), goal, strict=True)
        return xf.tree.unflatten(treedef, [step * (p - q) + torch.sin(step + p) for p, q in given])

    for step in range(1, 11):
        known.train()
        for p, g in zip(leaves, gradient(leaves, step), strict=True):
            p.grad = g
        known.step()
        known.eval()
        grads = gradient(schedule_free.between(params, state, beta1), step)
        rate = optimizer.rate("constant", torch.tensor(step - 1), peak=0.1, warmup=4, total=10)
        params, state = schedule_free.schedule_free_update(
            grads, state, params, rate, eps=eps, weight_decay=0.2, decayed=decayed, **options
        )
        for ours, expected in zip(xf.tree.leaves(params), leaves, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


def test_schedule_free_training_matches_schedulefree() -> None:
    """Losses of 20 steps of a small model, and then held-out ones, at the average."""
    config = model.Config.tiny(vocab=64)
    kinds = {"optimizer": "schedule_free", "schedule": "constant", "warmup": 4, "peak_lr": 0.02}
    recipe = train.Recipe(config, 20, PLAN, weight_decay=0.2, **kinds)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randint(0, 9, (4, 17), generator=generator) for _ in range(21)]
    *batches, held_out = [model.batch_of(tokens) for tokens in drawn]
    state = train.init(recipe)
    leaves, treedef = xf.tree.flatten(xf.device_get(state.params))
    leaves = [torch.nn.Parameter(p) for p in leaves]
    decays = xf.tree.leaves(model.decayed(config, False, True))
    groups = [
        {"params": [p for p, yes in zip(leaves, decays, strict=True) if yes is bool(kind)]}
        | {"weight_decay": 0.2 * kind}
        for kind in (0, 1)
    ]
    known = schedulefree.AdamWScheduleFree(groups, 0.02, (0.9, 0.95), 1e-8, warmup_steps=4)

    def loss_of(batch: model.Batch) -> torch.Tensor:
        with xf.disable_jit():
            return model.loss(xf.tree.unflatten(treedef, leaves), batch, config, PLAN)

    known.train()
    for batch in batches:
        state, metrics = train.train_step(state, batch, recipe=recipe)
        known.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(leaves, recipe.clip)
        known.step()
        assert metrics.loss.item() == pytest.approx(loss.item(), rel=1e-4)
    known.eval()
    found = train.eval_loss(state.params, held_out, recipe=recipe)
    assert found.item() == pytest.approx(loss_of(held_out).item(), rel=1e-4)
    assert found.item() < 3.0
