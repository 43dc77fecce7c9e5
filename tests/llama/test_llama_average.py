"""The running mean of the weights, norms and noise of gradients, and Muon."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import swa_utils

import xfunc as xf
from examples.llama import config, model, train
from examples.llama.checkpoint import trained_weights
from examples.llama.checkpoint.checkpoints import Checkpoints
from examples.llama.config import Run
from examples.llama.data.reader import Reader
from examples.llama.hub import hf
from examples.llama.model.plan import Plan
from examples.llama.options import SettingError
from examples.llama.train import evaluate, fit, muon
from examples.llama.tune import lora
from tests.llama import tuned

CONFIG = model.Config.tiny(vocab=64)
PLAN = Plan(attention="dense", policy="everything")


def recipe_of(**settings: Any) -> train.Recipe:
    return train.Recipe(CONFIG, 10, settings.pop("plan", PLAN), warmup=1, **settings)


def batch_of(seed: int) -> model.Batch:
    generator = torch.Generator().manual_seed(seed)
    return model.batch_of(torch.randint(0, 64, (4, 17), generator=generator))


# -- the running mean -------------------------------------------------------------------------


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("precision", ["float32", "mixed", "bfloat16"])
def test_ema_matches_torch_averaged_model(precision: str) -> None:
    """Of float32 weights; where they are kept in bfloat16, it is not rounded with them."""
    recipe = recipe_of(ema=0.8, precision=precision)
    state = train.init(recipe)
    weights = [leaf.float() for leaf in xf.tree.leaves(xf.device_get(state.params))]
    where = torch.nn.ParameterList(weights)
    theirs: Any = swa_utils.AveragedModel(where, avg_fn=swa_utils.get_ema_avg_fn(0.8))
    for step in range(4):
        state, _ = train.train_step(state, batch_of(step), recipe=recipe)
        for mine, ours in zip(where, xf.tree.leaves(xf.device_get(state.params)), strict=True):
            mine.data.copy_(ours)
        theirs.update_parameters(where)
    rough = 2e-2 if precision == "bfloat16" else 1e-6
    for ours, expected in zip(xf.tree.leaves(state.average), theirs.module, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.cpu(), expected.detach(), rtol=rough, atol=rough)
    bits = [leaf.cpu().view(torch.int32) & 0xFFFF for leaf in xf.tree.leaves(state.average)]
    assert any(int(b.count_nonzero()) for b in bits)


def test_ema_unchanged_by_skipped_step() -> None:
    recipe = recipe_of(ema=0.5)
    state, _ = train.train_step(train.init(recipe), batch_of(0), recipe=recipe)
    before = xf.device_get(state.average)
    state = state._replace(params=xf.tree.map(lambda p: p * math.nan, state.params))
    state, metrics = train.train_step(state, batch_of(1), recipe=recipe)
    assert metrics.skipped.item()
    xf.tree.map(lambda a, b: torch.testing.assert_close(a.cpu(), b), state.average, before)


@pytest.mark.slow
def test_ema_is_evaluated_and_exported(made: Path, tmp_path: Path) -> None:
    run = tuned.begin(made, tmp_path / "run", "averaged")
    fit.fit(run)
    target = train.abstract_state(run.recipe(1))
    state = xf.device_get(Checkpoints(tmp_path / "run" / "checkpoints").restore(target).state)
    found, last = (trained_weights.load(tmp_path / "run", pairs=x) for x in ([], ["average=false"]))
    assert found.name == f"the average at step 6 of {tmp_path / 'run'}"
    for tree, expected in ((found.params, state.average), (last.params, state.params)):
        pairs = zip(xf.tree.leaves(tree), xf.tree.leaves(expected), strict=True)
        assert all(torch.equal(a.cpu(), b.to(a.dtype)) for a, b in pairs)
    trained_weights.export_published(found, tmp_path / "out")
    _, published = hf.load(tmp_path / "out")
    for name, weight in lora.named(published).items():
        assert torch.equal(weight, lora.named(state.average)[name].bfloat16())
    reported = [
        line["held_out_loss"] for line in tuned.curve(run.folder) if "held_out_loss" in line
    ]
    assert reported[-1] == pytest.approx(held_out(found), abs=1e-6)
    assert reported[-1] != pytest.approx(held_out(last), abs=1e-4)


def held_out(found: trained_weights.Trained) -> float:
    reader = Reader(found.run.data, Path(found.run.folder), found.recipe.model.vocab)
    return evaluate.held_out_loss(found.params, reader, found.recipe, 4, found.base)


@pytest.mark.slow
def test_ema_setting_errors_and_resume(
    made: Path, tmp_path: Path, run_of: Callable[..., Run]
) -> None:
    for ema in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match=f"ema is {ema}: use a number between 0 and 1"):
            recipe_of(ema=ema)
    with pytest.raises(SettingError, match=r"average is true, and train\.ema is null"):
        run_of("a", "average=true")
    fit.fit(run_of("a", "train.steps=4"))
    with pytest.raises(SettingError, match=r"whether train\.ema is set was False, is True"):
        fit.fit(run_of("a", "train.ema=0.9"))
    fit.fit(run_of("b", "train.steps=4", "train.ema=0.9"))
    fit.fit(run_of("b", "train.steps=5", "train.ema=0.99"))  # Only its decay is another.
    with pytest.raises(SettingError, match=r"average is true, and train\.ema is null"):
        config.read(tmp_path / "a" / "config.yaml", ["average=true"])


# -- norms ------------------------------------------------------------------------------------


def test_layer_grad_norms_match_torch() -> None:
    recipe = recipe_of(layer_norms=True)
    state = train.init(recipe)
    params = xf.tree.map(lambda p: p.requires_grad_(), xf.device_get(state.params))
    with xf.disable_jit():
        model.loss(params, batch_of(0), CONFIG, PLAN).backward()
    _, metrics = train.train_step(state, batch_of(0), recipe=recipe)
    norms = xf.device_get(metrics.norms)
    assert set(norms) == set(params)
    for i in range(CONFIG.layers):
        grads = [leaf.grad[i] for leaf in xf.tree.leaves(params["layers"])]
        expected = torch.nn.utils.get_total_norm(grads)
        torch.testing.assert_close(norms["layers"][i], expected, rtol=1e-4, atol=0)
    for name in ("embed", "head", "norm"):
        torch.testing.assert_close(norms[name], params[name].grad.norm(), rtol=1e-4, atol=0)
    squares = torch.cat([norm.flatten() for norm in norms.values()]).square().sum()
    torch.testing.assert_close(squares.sqrt(), metrics.grad_norm.cpu())


def test_layer_grad_norms_in_metrics(run_of: Callable[..., Run]) -> None:
    run = run_of("a", "train.steps=3", "train.layer_norms=true")
    fit.fit(run)
    line = json.loads(Path(run.folder, "metrics.jsonl").read_text().splitlines()[0])
    names = {"embed", "norm", "head", *(f"layers.{i}" for i in range(run.train.model.layers))}
    norms = {key.removeprefix("grad_norm/"): x for key, x in line.items() if "/" in key}
    assert set(norms) == names
    assert math.hypot(*norms.values()) == pytest.approx(line["grad_norm"], rel=1e-5)


# -- noise ------------------------------------------------------------------------------------


def test_gradient_noise_is_variance_between_microbatches() -> None:
    """Of parts with different numbers of targets; the formulas of an analysis of variance, with
    the gradients of eager torch.
    """
    batch = batch_of(0)
    targets, parts = batch.targets.clone(), 2
    targets[0, :5], targets[1, 2:9] = model.IGNORE, model.IGNORE
    batch = batch._replace(targets=targets)
    plan = dataclasses.replace(PLAN, microbatches=parts)
    recipe = recipe_of(gradient_noise=True, plan=plan)
    state = train.init(recipe)
    params = xf.device_get(state.params)
    counts, means = [], []
    for i in range(parts):
        part = model.Batch(batch.tokens[i::parts], batch.targets[i::parts])
        leaves = xf.tree.map(lambda p: p.clone().requires_grad_(), params)
        with xf.disable_jit():
            model.loss(leaves, part, CONFIG, PLAN).backward()
        means.append(torch.cat([p.grad.flatten() for p in xf.tree.leaves(leaves)]).double())
        counts.append(int((part.targets != model.IGNORE).sum()))
    assert counts[0] != counts[1]
    weights, stacked = torch.tensor(counts).double(), torch.stack(means)
    mean = (weights[:, None] * stacked).sum(0) / weights.sum()
    between = (weights * (stacked - mean).square().sum(1)).sum() / (parts - 1)
    _, metrics = train.train_step(state, batch, recipe=recipe)
    noise = xf.device_get(metrics.noise)
    assert noise.variance.item() == pytest.approx(between.item(), rel=1e-3)
    expected = mean.square().sum() - between / weights.sum()
    assert noise.signal.item() == pytest.approx(expected.item(), rel=1e-3)
    assert metrics.grad_norm.item() == pytest.approx(mean.norm().item(), rel=1e-4)


def test_gradient_noise_in_metrics(run_of: Callable[..., Run]) -> None:
    run = run_of("a", "train.steps=3", "train.gradient_noise=true", "train.plan.microbatches=2")
    fit.fit(run)
    text = Path(run.folder, "metrics.jsonl").read_text()
    lines = [line for line in map(json.loads, text.splitlines()) if "loss" in line]
    signals = [line["gradient_noise/signal"] for line in lines]
    variances = [line["gradient_noise/variance"] for line in lines]
    assert min(variances) > 0
    assert lines[-1]["gradient_noise/scale"] == pytest.approx(sum(variances) / sum(signals))
    with pytest.raises(SettingError, match="gradient_noise compares the parts of a batch, but the"):
        config.read(pairs=["train.gradient_noise=true"])


# -- Muon -------------------------------------------------------------------------------------


def test_muon_matches_torch() -> None:
    """Each layer's matrix, and each expert's, is one of theirs; the rest are AdamW's."""
    generator = torch.Generator().manual_seed(0)

    def drawn() -> Any:
        shapes = {"wq": (2, 6, 5), "wide": (2, 3, 4, 8), "norm": (2, 6)}, {"embed": (7, 6)}
        within, outside = (
            {k: torch.randn(s, generator=generator) for k, s in each.items()} for each in shapes
        )
        return {"layers": within} | outside

    params = drawn()
    state = muon.muon_init(params)
    assert [tuple(x.shape) for x in xf.tree.leaves(state.square)] == [(7, 6), (2, 6), (0,), (0,)]
    matrices = [*params["layers"]["wq"].clone(), *params["layers"]["wide"].clone().flatten(0, 1)]
    rest = [params["layers"]["norm"].clone(), params["embed"].clone()]
    theirs = [
        torch.optim.Muon(matrices, 0.05, weight_decay=0.2, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest[:1], 0.05, (0.9, 0.95), weight_decay=0.0),
        torch.optim.AdamW(rest[1:], 0.05, (0.9, 0.95), weight_decay=0.2),
    ]
    decayed = {"layers": {"wq": True, "wide": True, "norm": False}, "embed": True}
    step = xf.jit(
        lambda grads, state, params: muon.muon_update(
            grads, state, params, 0.05, weight_decay=0.2, decayed=decayed
        )
    )
    for _ in range(4):
        grads = drawn()
        params, state = step(grads, state, params)
        of_matrices = [*grads["layers"]["wq"], *grads["layers"]["wide"].flatten(0, 1)]
        of_rest = [grads["layers"]["norm"], grads["embed"]]
        for p, g in zip(matrices + rest, of_matrices + of_rest, strict=True):
            p.grad = g
        for each in theirs:
            each.step()
    found = xf.device_get(params)
    ours = [*found["layers"]["wq"], *found["layers"]["wide"].flatten(0, 1)]
    for mine, expected in zip(ours, matrices, strict=True):  # It multiplies in bfloat16.
        torch.testing.assert_close(mine, expected, rtol=0.03, atol=0.01)
    for mine, expected in zip((found["layers"]["norm"], found["embed"]), rest, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)
    assert int(state.step) == 4


def test_recipe_optimizer_option_errors() -> None:
    assert recipe_of(optimizer="muon", momentum=0.9, beta1=0.8).momentum == 0.9
    with pytest.raises(ValueError, match="momentum: not an option of the optimizer, adamw"):
        recipe_of(momentum=0.9)
    with pytest.raises(ValueError, match=r"momentum is 1\.0: use 0 or more, below 1"):
        recipe_of(optimizer="muon", momentum=1.0)
