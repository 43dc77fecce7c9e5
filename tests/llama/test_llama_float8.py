"""Products in 8 bits: against quantisation in plain torch, and training in bfloat16."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import model, train
from examples.llama.config import Run
from examples.llama.model import float8
from examples.llama.model.plan import Plan
from examples.llama.options import SettingError
from examples.llama.parallel.sharding import Sharding
from examples.llama.train import fit
from examples.llama.tune.lora import Tune

Tensor = torch.Tensor
E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
TINY = model.TINY["tiny"]


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def simulated(x: Tensor, dtype: torch.dtype, largest: float) -> Tensor:
    """What is left of `x` after scaling, clamping and rounding, in float64."""
    scale = torch.tensor(largest).float() / torch.finfo(dtype).max
    end = torch.finfo(dtype).max
    return (x.float() / scale).clamp(-end, end).to(dtype).double() * scale.double()


HISTORIES = {
    "none": (0.0, 0.0, 0.0),  # each scale is that of the numbers themselves
    "larger": (9.0, 7.0, 30.0),
    "smaller": (0.5, 0.25, 1.0),  # some are clamped
    "some": (5.0, 0.0, 4.0),
}


@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float8_product_and_grads_match_quantisation(name: str, dtype: torch.dtype) -> None:
    x, w, ct = (drawn(*s, seed=k).to(dtype) for k, s in enumerate([(2, 5, 16), (8, 16), (2, 5, 8)]))
    history = torch.zeros(3, float8.HISTORY)
    history[:, 3] = torch.tensor(HISTORIES[name])
    history[:, 7] = history[:, 3] / 2

    @xf.jit
    def both(*given: Tensor) -> Any:
        made, pull = xf.vjp(float8.product, *given)
        return made, pull(ct)

    made, (of_x, of_w, after) = xf.device_get(both(x, w, history))
    now = [t.abs().max().item() for t in (x, w, ct)]
    used = [known or own for known, own in zip(HISTORIES[name], now, strict=True)]
    q = [simulated(t, d, s) for t, d, s in zip((x, w, ct), (E4, E4, E5), used, strict=True)]
    flat = q[2].flatten(0, 1)
    tolerance = 2e-6 if dtype == torch.float32 else 0.016
    for found, expected in (
        (made, q[0] @ q[1].t()),
        (of_x, q[2] @ q[1]),
        (of_w, flat.t() @ q[0].flatten(0, 1)),
    ):
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected.to(dtype), rtol=tolerance, atol=2e-6)
    assert after[:, 0].tolist() == now
    assert torch.equal(after[:, 1:], history[:, :-1])


def test_float8_product_of_non_finite_input() -> None:
    w, history = drawn(4, 3, seed=0), torch.ones(3, float8.HISTORY)
    for bad in (math.inf, -math.inf, math.nan):
        x = torch.tensor([[1.0, bad, 2.0], [1.0, 1.0, 1.0]])
        made = xf.device_get(xf.jit(float8.product)(x, w, history))
        assert made[0].isnan().all()
        assert made[1].isfinite().all()
        after = xf.grad(lambda h, x=x: float8.product(x, w, h).sum(), 0)(history)
        assert after[0, 0].item() == 0.0


def test_float8_product_of_zeros() -> None:
    zero, history = torch.zeros(2, 3), torch.zeros(3, float8.HISTORY)
    made, grads = xf.value_and_grad(lambda x, w, h: float8.product(x, w, h).sum(), (0, 1, 2))(
        zero, zero, history
    )
    assert made.item() == 0
    assert all(g.isfinite().all() for g in grads)


# -- steps ------------------------------------------------------------------------------------


def recipe_of(precision: str, **settings: Any) -> train.Recipe:
    return train.Recipe(TINY, 40, precision=precision, warmup=5, peak_lr=3e-3, **settings)


def trained(recipe: train.Recipe, steps: int = 40) -> tuple[list[float], train.State]:
    """The losses of steps on one batch, and the last state."""
    state, losses = train.init(recipe), []
    tokens = torch.randint(TINY.vocab, (4, 33), generator=torch.Generator().manual_seed(0))
    if recipe.plan.sharding is not None:
        state = xf.device_put(state, train.shardings(recipe))
    for _ in range(steps):
        state, metrics = train.train_step(state, model.batch_of(tokens), recipe=recipe)
        losses.append(metrics.loss)
    return [x.item() for x in losses], state


@pytest.mark.slow
def test_float8_training_close_to_bfloat16() -> None:
    mixed, _ = trained(recipe_of("mixed"))
    found, state = trained(recipe_of("float8"))
    assert found[0] == pytest.approx(mixed[0], rel=2e-3)
    assert mixed[-1] < 0.3 * mixed[0]
    for ours, theirs in zip(found, mixed, strict=True):
        assert ours == pytest.approx(theirs, rel=0.25)
    assert found != mixed
    histories = xf.device_get(state.scaling)["layers"]
    assert sorted(histories) == "w_down w_gate w_up wk wo wq wv".split()
    for history in histories.values():
        assert history.shape == (TINY.layers, 3, float8.HISTORY)
        assert (history > 0).all()


@pytest.mark.slow
def test_float8_microbatches_close_to_whole_batch() -> None:
    one, whole = trained(recipe_of("float8"), 3)
    two, parts = trained(recipe_of("float8", plan=Plan(microbatches=2)), 3)
    assert two == pytest.approx(one, rel=2e-3)
    for a, b in zip(xf.tree.leaves(parts.scaling), xf.tree.leaves(whole.scaling), strict=True):
        torch.testing.assert_close(a[:, :2].cpu(), b[:, :2].cpu(), rtol=0.3, atol=0)
        # Gradients have 2 bits: where the last bit of a bfloat16 differs, one may differ by 1/4.
        torch.testing.assert_close(a[:, 2].cpu(), b[:, 2].cpu(), rtol=0.5, atol=0)
        assert torch.equal(a[:, 1, 2].cpu(), b[:, 1, 2].cpu())  # the weights of the first step


def test_float8_scaling_is_replicated() -> None:
    plan = Plan(sharding=Sharding.of({"fsdp": 4, "tensor": 2}, abstract=True))
    recipe = recipe_of("float8", plan=plan)
    placed = train.shardings(recipe).scaling
    assert placed is not None
    assert {tuple(where.spec) for where in xf.tree.leaves(placed)} == {()}


def test_float8_recipe_without_trained_matrices_raises() -> None:
    with pytest.raises(ValueError, match="precision float8 is for matrices within layers that are"):
        recipe_of("float8", tune=Tune(lora=("layers.w*",)))
    with pytest.raises(ValueError, match="precision float8 is not for pairs"):
        recipe_of("float8", pairs=True)
    some = recipe_of("float8", tune=Tune(lora=("layers.wq",), full=("layers.wo", "head")))
    state = xf.eval_shape(lambda: train.start(some, _trained_shapes(some)))
    assert [*state.scaling["layers"]] == ["wo"]


def _trained_shapes(recipe: train.Recipe) -> Any:
    plan = dataclasses.replace(recipe.plan, sharding=Sharding.of({}, abstract=True))
    shapes = train.abstract_state(dataclasses.replace(recipe, plan=plan)).params
    return xf.tree.map(lambda a: torch.zeros(a.shape, dtype=a.dtype), shapes)


# -- runs -------------------------------------------------------------------------------------


def test_float8_resume_of_other_precision_raises(run_of: Callable[..., Run]) -> None:
    fit.fit(run_of("a", "train.precision=mixed", "train.steps=4"))
    with pytest.raises(SettingError, match="is float32 with the scales of float8"):
        fit.fit(run_of("a", "train.precision=float8"))
