"""The Llama example's optimizers and schedules against torch's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import get_wsd_schedule

import xfunc as xf
from examples.llama import model, train
from examples.llama.train import optimizer, schedule_free

SHAPES: dict[str, Any] = {"matrix": (6, 5), "vector": (5,), "wide": [(3, 8)]}


def random_tree(seed: int, dtype: torch.dtype = torch.float64, shapes: Any = SHAPES) -> Any:
    generator = torch.Generator().manual_seed(seed)

    def leaf(shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    return xf.tree.map(leaf, shapes, is_leaf=lambda x: isinstance(x, tuple))


def assert_updates_match(theirs: Any, reference: list[torch.Tensor], update: Callable) -> None:
    """Five steps of `update(grads, step)` against an optimizer of torch's over `reference`."""
    for step in range(1, 6):
        grads = xf.tree.map(lambda g: g * step, random_tree(step))  # noqa: B023
        for p, g in zip(reference, xf.tree.leaves(grads), strict=True):
            p.grad = g.clone()
        theirs.step()
        params = update(grads, step)
        for ours, expected in zip(xf.tree.leaves(params), reference, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("beta1", "beta2", "eps"), [(0.9, 0.95, 1e-8), (0.8, 0.999, 1e-3), (0.0, 0.0, 1e-6)]
)
def test_adamw_matches_torch(beta1: float, beta2: float, eps: float) -> None:
    params = random_tree(0)
    reference = [p.clone() for p in xf.tree.leaves(params)]
    groups = [{"params": reference[:1]}, {"params": reference[1:], "weight_decay": 0.0}]
    theirs = torch.optim.AdamW(groups, 0.1, (beta1, beta2), eps, weight_decay=0.2)
    state = optimizer.adamw_init(params)
    options = {"beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": 0.2}
    decayed = {"matrix": True, "vector": False, "wide": [False]}

    def update(grads: Any, step: int) -> Any:
        nonlocal params, state
        params, state = optimizer.adamw_update(
            grads, state, params, 0.1, **options, decayed=decayed
        )
        assert int(state.step) == step
        return params

    assert_updates_match(theirs, reference, update)


def test_adafactor_matches_torch() -> None:
    params = random_tree(0)
    reference = [p.clone() for p in xf.tree.leaves(params)]
    # Theirs scales the rate by the size of the parameter, but at least by the second eps, and
    # lowers it to 1 / sqrt(step): with these numbers it is 1e-5 * 1e4 throughout.
    theirs = torch.optim.Adafactor(reference, lr=1e-5, eps=(1e-15, 1e4), weight_decay=2e3)
    state = optimizer.adafactor_init(params)

    def update(grads: Any, step: int) -> Any:
        nonlocal params, state
        params, state = optimizer.adafactor_update(grads, state, params, 0.1, weight_decay=0.2)
        assert int(state.step) == step
        return params

    assert_updates_match(theirs, reference, update)


def test_adafactor_updates_stacked_layers_separately() -> None:
    stacked, grads = random_tree(0, shapes=(4, 6, 5)), random_tree(1, shapes=(4, 6, 5))
    grads[2] *= 100  # must not change the clipping of other layers
    params, state = optimizer.adafactor_update(
        grads, optimizer.adafactor_init(stacked), stacked, 0.1
    )
    for i in range(4):
        alone, of_one = optimizer.adafactor_update(
            grads[i], optimizer.adafactor_init(stacked[i]), stacked[i], 0.1
        )
        torch.testing.assert_close(params[i], alone)
        torch.testing.assert_close(state.rows[i], of_one.rows)
        torch.testing.assert_close(state.columns[i], of_one.columns)


def test_adafactor_init_factors_matrices_only() -> None:
    shapes = {"stacked": (4, 6, 5), "embed": (7, 6), "norm": (6,)}
    state = optimizer.adafactor_init(random_tree(0, torch.bfloat16, shapes))
    sizes = [xf.tree.map(lambda x: tuple(x.shape), tree) for tree in state[1:]]
    assert sizes == [
        {"stacked": (4, 6), "embed": (7,), "norm": (0,)},
        {"stacked": (4, 5), "embed": (6,), "norm": (0,)},
        {"stacked": (0,), "embed": (0,), "norm": (6,)},
    ]


UPDATES = {
    "adamw": (optimizer.adamw_init, optimizer.adamw_update),
    "adafactor": (optimizer.adafactor_init, optimizer.adafactor_update),
    "schedule_free": (schedule_free.schedule_free_init, schedule_free.schedule_free_update),
}


@pytest.mark.parametrize("name", UPDATES)
def test_update_of_bfloat16_parameters_is_in_float32(name: str) -> None:
    init, update = UPDATES[name]
    params, grads = random_tree(0, torch.bfloat16), random_tree(1, torch.bfloat16)
    wide, wide_grads = (xf.tree.map(torch.Tensor.float, tree) for tree in (params, grads))
    new, state = update(grads, init(params), params, 0.1)
    expected, wide_state = update(wide_grads, init(wide), wide, 0.1)
    rounded = xf.tree.map(torch.Tensor.bfloat16, expected)
    assert xf.tree.all(xf.tree.map(torch.equal, new, rounded))
    assert xf.tree.all(xf.tree.map(torch.equal, state, wide_state))
    dtypes = {x.dtype for x in xf.tree.leaves(state)}
    assert dtypes == {torch.int64, torch.float32}


@pytest.mark.parametrize("name", UPDATES)
def test_update_compiled_matches_eager(name: str) -> None:
    init, update = UPDATES[name]
    params, grads = random_tree(0, torch.float32), random_tree(1, torch.float32)
    eager, compiled = (params, init(params)), (params, init(params))
    step = xf.jit(lambda grads, params, state: update(grads, state, params, 0.1))
    before = xf.trace_count(step)
    for _ in range(2):
        eager, compiled = update(grads, eager[1], eager[0], 0.1), step(grads, *compiled)
    assert xf.trace_count(step) == before + 1
    leaves = xf.tree.leaves(xf.device_get(compiled))
    for ours, expected in zip(leaves, xf.tree.leaves(eager), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", UPDATES)
def test_update_with_zero_gradients_only_decays(name: str) -> None:
    init, update = UPDATES[name]
    params = random_tree(0)
    grads = xf.tree.map(torch.zeros_like, params)
    new, _ = update(grads, init(params), params, 0.1, weight_decay=0.5)
    for p, q in zip(xf.tree.leaves(params), xf.tree.leaves(new), strict=True):
        torch.testing.assert_close(q, 0.95 * p)


@pytest.mark.parametrize("name", UPDATES)
def test_update_without_decay_keeps_the_parameter(name: str) -> None:
    init, update = UPDATES[name]
    params = random_tree(0)
    grads = xf.tree.map(torch.zeros_like, params)
    decayed = {"matrix": True, "vector": False, "wide": [True]}
    new, _ = update(grads, init(params), params, 0.1, weight_decay=0.5, decayed=decayed)
    assert torch.equal(new["vector"], params["vector"])
    torch.testing.assert_close(new["matrix"], 0.95 * params["matrix"])
    torch.testing.assert_close(new["wide"], [0.95 * params["wide"][0]])


@pytest.mark.parametrize("optimizer_name", UPDATES)
@pytest.mark.parametrize(("norms", "embeddings"), [(False, True), (True, False)])
def test_recipe_update_decays_norms_and_embeddings_if_set(
    optimizer_name: str, norms: bool, embeddings: bool
) -> None:
    recipe = train.Recipe(
        model.Config.tiny(tied=embeddings),
        steps=9,
        optimizer=optimizer_name,
        schedule="constant",
        weight_decay=0.5,
        decay_norms=norms,
        decay_embeddings=embeddings,
    )
    params = xf.device_get(model.init(recipe.model))
    grads = xf.tree.map(torch.zeros_like, params)
    state = UPDATES[optimizer_name][0](params)
    new, _ = recipe.update(grads, state, params, torch.tensor(0.1))
    for (path, p), q in zip(xf.tree.leaves_with_path(params), xf.tree.leaves(new), strict=True):
        kept = ("norm" in path and not norms) or ("embed" in path and not embeddings)
        torch.testing.assert_close(q, p if kept else 0.95 * p)


def by_torch(name: str, *, warmup: int, total: int, floor: float) -> list[float]:
    """Rates for a peak of one, by the schedulers of torch, for steps 0 to `total + 2`."""
    schedulers = torch.optim.lr_scheduler
    parameter = torch.nn.Parameter(torch.zeros(()))
    sgd = torch.optim.SGD([parameter], lr=1.0)
    rise = schedulers.LinearLR(sgd, 1 / warmup, total_iters=warmup - 1)
    n = total - warmup
    fall: Any = {
        "cosine": schedulers.CosineAnnealingLR(sgd, n, eta_min=floor),
        "linear": schedulers.LinearLR(sgd, 1.0, floor, total_iters=n),
        "constant": schedulers.ConstantLR(sgd, 1.0),
    }[name]
    parts: list[Any] = [rise, fall]
    schedule = schedulers.SequentialLR(sgd, parts, milestones=[warmup])
    rates = []
    for _ in range(total + 1):
        rates.append(sgd.param_groups[0]["lr"])
        sgd.step()
        schedule.step()
    return rates


@pytest.mark.parametrize("name", ["cosine", "linear", "constant"])
def test_schedules_match_torch(name: str) -> None:
    expected = by_torch(name, warmup=5, total=14, floor=0.2)  # Theirs ends after its last step.
    assert len(set(expected)) >= 5
    for step, rate in enumerate(expected):
        ours = optimizer.rate(name, torch.tensor(step), peak=3.0, warmup=5, total=15, floor=0.2)
        torch.testing.assert_close(ours, torch.tensor(3 * rate), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "last"), [("cosine", 0.1), ("linear", 0.1), ("wsd", 0.1), ("constant", 1.0)]
)
def test_schedules_reach_their_last_rate_and_stay(name: str, last: float) -> None:
    for step in (14, 15, 99):
        lr = optimizer.rate(name, torch.tensor(step), peak=1.0, warmup=5, total=15, floor=0.1)
        torch.testing.assert_close(lr, torch.tensor(last))
    assert optimizer.rate(name, torch.tensor(13), peak=1.0, warmup=5, total=15, floor=0.1) >= last


@pytest.mark.parametrize("name", ["cosine", "linear", "constant", "wsd"])
def test_schedules_without_warmup_start_at_the_peak(name: str) -> None:
    for total in (0, 10):
        lr = optimizer.rate(name, torch.tensor(0), peak=2.0, warmup=0, total=total, floor=0.1)
        assert lr == 2.0


@pytest.mark.parametrize("floor", [0.0, 0.2])
def test_stable_decay_matches_transformers(floor: float) -> None:
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=3.0)
    # Theirs begins at `floor`, and not one step above zero.
    theirs = get_wsd_schedule(
        sgd, 6, num_training_steps=40, num_decay_steps=7, decay_type="1-sqrt", min_lr_ratio=floor
    )
    kinds = {"peak": 3.0, "warmup": 6, "total": 40, "floor": floor, "cooldown": 0.2}
    for step in range(45):
        sgd.step()
        theirs.step()
        ours = optimizer.rate("wsd", torch.tensor(step), **kinds)
        if step >= 5 or not floor:
            torch.testing.assert_close(float(ours), theirs.get_last_lr()[0], rtol=1e-5, atol=1e-6)


def test_check_warmup_overlapping_cooldown_raises() -> None:
    recipe = train.Recipe(model.Config.tiny(), 10, schedule="wsd", warmup=6, cooldown=0.5)
    with pytest.raises(ValueError, match="so that the rate falls from step 5 on: make one of"):
        recipe.check_warmup()
