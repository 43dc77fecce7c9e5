"""Schedule-free AdamW, against the paper's algorithm in eager torch."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

import xfunc as xf
from examples.llama import model, train
from examples.llama.checkpoint import trained_weights
from examples.llama.config import Run
from examples.llama.model.plan import Plan
from examples.llama.options import SettingError
from examples.llama.train import fit, schedule_free
from tests.llama import tuned
from tests.llama.test_llama_optimizer import random_tree

CONFIG = model.Config.tiny(vocab=64)
PLAN = Plan(attention="dense", policy="everything")
RECIPE = train.Recipe(
    CONFIG,
    8,
    PLAN,
    optimizer="schedule_free",
    schedule="constant",
    warmup=3,
    peak_lr=0.02,
    weight_decay=0.2,
)


def algorithm(
    start: Sequence[torch.Tensor],
    gradient: Callable[[list[torch.Tensor], int], Sequence[torch.Tensor]],
    rates: Sequence[float],
    decays: Sequence[float],
    *,
    beta1: float,
    beta2: float,
    eps: float,
) -> Iterator[list[torch.Tensor]]:
    """x after each step of algorithm 1 of the paper, line by line.

    The bias is corrected in v. (The paper corrects it in the rate. With beta2 = 0 there is none.)
    """
    x, z = [p.clone() for p in start], [p.clone() for p in start]
    v, total = [torch.zeros_like(p) for p in start], 0.0
    for t, rate in enumerate(rates, 1):
        y = [(1 - beta1) * z + beta1 * x for x, z in zip(x, z, strict=True)]
        total += rate**2
        c = rate**2 / total
        for i, g in enumerate(gradient(y, t)):
            v[i] = beta2 * v[i] + (1 - beta2) * g**2
            root = (v[i] / (1 - beta2**t)).sqrt()
            z[i] = z[i] - rate * g / (root + eps) - rate * decays[i] * y[i]
            x[i] = (1 - c) * x[i] + c * z[i]
        yield [p.clone() for p in x]


@pytest.mark.parametrize(
    ("beta1", "beta2", "eps"),
    [(0.9, 0.95, 1e-8), (0.6, 0.999, 1e-3), (0.9, 0.0, 1e-6), (0.0, 0.9, 1e-8)],
)
def test_schedule_free_update_matches_the_paper(beta1: float, beta2: float, eps: float) -> None:
    """Of gradients that depend on where they are taken; with a warm-up."""
    params, goal = random_tree(0), xf.tree.leaves(random_tree(1))
    rates = [0.1 * min(1.0, t / 4) for t in range(1, 11)]

    def gradient(y: Sequence[torch.Tensor], t: int) -> list[torch.Tensor]:
        return [t * (p - q) + torch.sin(t + p) for p, q in zip(y, goal, strict=True)]

    options = {"beta1": beta1, "beta2": beta2, "eps": eps}
    leaves, treedef = xf.tree.flatten(params)
    theirs = algorithm(leaves, gradient, rates, [0.2, 0.0, 0.0], **options)
    decayed = {"matrix": True, "vector": False, "wide": [False]}
    state = schedule_free.schedule_free_init(params)
    for t, (rate, expected) in enumerate(zip(rates, theirs, strict=True), 1):
        points = xf.tree.leaves(schedule_free.between(params, state, beta1))
        grads = xf.tree.unflatten(treedef, gradient(points, t))
        params, state = schedule_free.schedule_free_update(
            grads, state, params, rate, weight_decay=0.2, decayed=decayed, **options
        )
        assert int(state.step) == t
        for ours, other in zip(xf.tree.leaves(params), expected, strict=True):
            assert ours.dtype == torch.float64
            torch.testing.assert_close(ours, other, rtol=1e-6, atol=1e-6)


def batches() -> list[model.Batch]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randint(0, 64, (4, 17), generator=generator) for _ in range(RECIPE.steps)]
    return [model.batch_of(tokens) for tokens in drawn]


def by_eager_torch() -> tuple[list[float], list[torch.Tensor]]:
    """Losses, and the last averaged weights, of float32 training with `algorithm`."""
    leaves, treedef = xf.tree.flatten(xf.device_get(model.init(CONFIG)))
    decays = [0.2 * yes for yes in xf.tree.leaves(model.decayed(CONFIG, False, True))]
    losses, found = [], batches()

    def gradient(y: list[torch.Tensor], t: int) -> list[torch.Tensor]:
        given = [p.requires_grad_() for p in y]
        with xf.disable_jit():
            loss = model.loss(xf.tree.unflatten(treedef, given), found[t - 1], CONFIG, PLAN)
        loss.backward()
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(given, RECIPE.clip)
        for p in given:
            p.requires_grad_(False)
        return [p.grad for p in given if p.grad is not None]

    rates = [0.02 * min(1.0, t / 3) for t in range(1, RECIPE.steps + 1)]
    *_, last = algorithm(leaves, gradient, rates, decays, beta1=0.9, beta2=0.95, eps=1e-8)
    return losses, last


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "stochastic", "compensated", "mixed"])
def test_schedule_free_training_matches_eager_torch(precision: str) -> None:
    """Gradients are taken between the two sequences, and the state's weights are the average."""
    recipe = dataclasses.replace(RECIPE, precision=precision)
    state, losses = train.init(recipe), []
    for batch in batches():
        state, metrics = train.train_step(state, batch, recipe=recipe)
        losses.append(metrics.loss.item())
    expected, last = by_eager_torch()
    exact = precision == "float32"
    assert losses == pytest.approx(expected, rel=1e-4 if exact else 5e-3)
    start, found = (xf.device_get(each.params) for each in (train.init(recipe), state))
    for p, ours, other in zip(xf.tree.leaves(start), xf.tree.leaves(found), last, strict=True):
        wrong = (ours.float() - other).norm() / (other - p.float()).norm()
        assert wrong < (1e-4 if exact else 0.25)
    assert {p.dtype for p in xf.tree.leaves(state.params)} == {recipe.numbers.weights}
    assert {p.dtype for p in xf.tree.leaves(state.opt.fast)} == {torch.float32}
    points = recipe.points(state.params, state.opt)  # They are computed with in their dtype.
    assert {p.dtype for p in xf.tree.leaves(points)} == {recipe.numbers.weights}


def test_schedule_free_bad_step_keeps_both_sequences() -> None:
    state, _ = train.train_step(train.init(RECIPE), batches()[0], recipe=RECIPE)
    before = xf.device_get(state.opt)
    state = state._replace(params=xf.tree.map(lambda p: p * torch.nan, state.params))
    state, metrics = train.train_step(state, batches()[1], recipe=RECIPE)
    assert metrics.skipped.item()
    assert xf.tree.all(xf.tree.map(lambda a, b: torch.equal(a.cpu(), b), state.opt, before))


def test_schedule_free_resumed_run_loads_the_average(made: Path, tmp_path: Path) -> None:
    """The average, also of adapters; after it stopped in between, too."""
    whole = tuned.begin(made, tmp_path / "whole", "adapters")
    fit.fit(whole)
    run = tuned.begin(made, tmp_path / "parts", "adapters")
    assert run.train.optimizer == "schedule_free"
    fit.fit(dataclasses.replace(run, train=dataclasses.replace(run.train, steps=3)))
    fit.fit(run)
    assert tuned.curve(run.folder) == tuned.curve(whole.folder)
    state = tuned.saved(run)
    assert not xf.tree.all(xf.tree.map(torch.equal, state.params, state.opt.fast))
    found = trained_weights.load(Path(run.folder))
    same = xf.tree.map(lambda a, b: torch.equal(a.cpu(), b), found.params, state.params)
    assert xf.tree.all(same)


def test_schedule_free_with_schedule_or_momentum_raises(run_of: Callable[..., Run]) -> None:
    with pytest.raises(SettingError, match="schedule is cosine, and schedule_free averages the we"):
        run_of("a", "train.optimizer=schedule_free")
    with pytest.raises(ValueError, match="momentum: not an option of the optimizer, schedule_free"):
        dataclasses.replace(RECIPE, momentum=0.5)
