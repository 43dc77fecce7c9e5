"""The Llama example's optimizers and schedules against torch's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import get_wsd_schedule

import xfunc as xf
from examples.llama import model, train
from examples.llama.train import optimizer
from examples.llama.train.optimizer import OPTIMIZERS

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


USUAL: dict[str, Any] = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "momentum": 0.95}


def made(
    name: str, decay: float = 0.0, decayed: Any = None, rate: float = 0.1, **options: float
) -> xf.optim.GradientTransformation:
    """An optimizer of the example's."""
    known = OPTIMIZERS[name]
    return known.make(
        rate, decay, decayed, **{key: (USUAL | options)[key] for key in known.options}
    )


def stepped(opt: xf.optim.GradientTransformation, grads: Any, state: Any, params: Any) -> Any:
    updates, state = opt.update(grads, state, params)
    return xf.optim.apply_updates(params, updates), state


@pytest.mark.parametrize(
    ("beta1", "beta2", "eps"), [(0.9, 0.95, 1e-8), (0.8, 0.999, 1e-3), (0.0, 0.0, 1e-6)]
)
def test_adamw_matches_torch(beta1: float, beta2: float, eps: float) -> None:
    params = random_tree(0)
    reference = [p.clone() for p in xf.tree.leaves(params)]
    groups = [{"params": reference[:1]}, {"params": reference[1:], "weight_decay": 0.0}]
    theirs = torch.optim.AdamW(groups, 0.1, (beta1, beta2), eps, weight_decay=0.2)
    decayed = {"matrix": True, "vector": False, "wide": [False]}
    ours = made("adamw", 0.2, decayed, beta1=beta1, beta2=beta2, eps=eps)
    state = ours.init(params)

    def update(grads: Any, step: int) -> Any:
        nonlocal params, state
        params, state = stepped(ours, grads, state, params)
        return params

    assert_updates_match(theirs, reference, update)


def test_adafactor_matches_torch() -> None:
    params = random_tree(0)
    reference = [p.clone() for p in xf.tree.leaves(params)]
    # Theirs scales the rate by the size of the parameter, but at least by the second eps, and
    # lowers it to 1 / sqrt(step): with these numbers it is 1e-5 * 1e4 throughout.
    theirs = torch.optim.Adafactor(reference, lr=1e-5, eps=(1e-15, 1e4), weight_decay=2e3)
    ours = made("adafactor", 0.2)
    state = ours.init(params)

    def update(grads: Any, step: int) -> Any:
        nonlocal params, state
        params, state = stepped(ours, grads, state, params)
        return params

    assert_updates_match(theirs, reference, update)


def test_adafactor_updates_stacked_layers_separately() -> None:
    stacked, grads = random_tree(0, shapes=(4, 6, 5)), random_tree(1, shapes=(4, 6, 5))
    grads[2] *= 100  # must not change the clipping of other layers
    ours = made("adafactor")
    params, (state, *_) = stepped(ours, grads, ours.init(stacked), stacked)
    for i in range(4):
        alone, (of_one, *_) = stepped(ours, grads[i], ours.init(stacked[i]), stacked[i])
        torch.testing.assert_close(params[i], alone)
        torch.testing.assert_close(state.v_row[i], of_one.v_row)
        torch.testing.assert_close(state.v_col[i], of_one.v_col)


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
    matrices = [*params["layers"]["wq"].clone(), *params["layers"]["wide"].clone().flatten(0, 1)]
    rest = [params["layers"]["norm"].clone(), params["embed"].clone()]
    theirs = [
        torch.optim.Muon(matrices, 0.05, weight_decay=0.2, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest[:1], 0.05, (0.9, 0.95), weight_decay=0.0),
        torch.optim.AdamW(rest[1:], 0.05, (0.9, 0.95), weight_decay=0.2),
    ]
    decayed = {"layers": {"wq": True, "wide": True, "norm": False}, "embed": True}
    ours = made("muon", 0.2, decayed, rate=0.05)
    state = ours.init(params)
    step = xf.jit(lambda grads, state, params: stepped(ours, grads, state, params))
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
    within = [*found["layers"]["wq"], *found["layers"]["wide"].flatten(0, 1)]
    for mine, expected in zip(within, matrices, strict=True):  # It multiplies in bfloat16.
        torch.testing.assert_close(mine, expected, rtol=0.03, atol=0.01)
    for mine, expected in zip((found["layers"]["norm"], found["embed"]), rest, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_update_compiled_matches_eager(name: str) -> None:
    ours = made(name)
    params, grads = random_tree(0, torch.float32), random_tree(1, torch.float32)
    eager = compiled = params, ours.init(params)
    step = xf.jit(lambda grads, params, state: stepped(ours, grads, state, params))
    before = xf.trace_count(step)
    for _ in range(2):
        eager, compiled = stepped(ours, grads, eager[1], eager[0]), step(grads, *compiled)
    assert xf.trace_count(step) == before + 1
    leaves = xf.tree.leaves(xf.device_get(compiled))
    for mine, expected in zip(leaves, xf.tree.leaves(eager), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("tied", [False, True])
def test_recipe_decays_matrices_and_embeddings(optimizer_name: str, tied: bool) -> None:
    sizes = model.Config.tiny(tied=tied)
    recipe = train.Recipe(sizes, steps=9, optimizer=optimizer_name, weight_decay=0.5)
    params = xf.device_get(model.init(recipe.model))
    grads = xf.tree.map(torch.zeros_like, params)
    ours = recipe.transformation(torch.tensor(0.1))
    new, _ = stepped(ours, grads, ours.init(params), params)
    for (path, p), q in zip(xf.tree.leaves_with_path(params), xf.tree.leaves(new), strict=True):
        torch.testing.assert_close(q, p if "norm" in path else 0.95 * p)


def test_recipe_optimizer_option_errors() -> None:
    sizes = model.Config.tiny()
    assert train.Recipe(sizes, 9, optimizer="muon", momentum=0.9, beta1=0.8).momentum == 0.9
    with pytest.raises(ValueError, match="momentum: not an option of the optimizer, adamw"):
        train.Recipe(sizes, 9, momentum=0.9)
    with pytest.raises(ValueError, match=r"momentum is 1\.0: use 0 or more, below 1"):
        train.Recipe(sizes, 9, optimizer="muon", momentum=1.0)


def test_recipe_takes_an_optimizer_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `torch.optim.SGD` computes it."""

    def sgd(rate: Any, decay: float, decayed: Any) -> xf.optim.GradientTransformation:
        return xf.optim.sgd(rate)

    monkeypatch.setitem(OPTIMIZERS, "sgd", optimizer.Optimizer(sgd, ()))
    recipe = train.Recipe(model.Config.tiny(), 9, optimizer="sgd", clip=1e9, warmup=1)
    windows = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(0))
    batch, state = model.batch_of(windows), train.init(recipe)
    params = xf.tree.map(lambda p: p.requires_grad_(), xf.device_get(state.params))
    with xf.disable_jit():
        model.loss(params, batch, recipe.model, recipe.plan).backward()
    leaves = xf.tree.leaves(params)
    torch.optim.SGD(leaves, recipe.peak_lr).step()
    state, _ = train.train_step(state, batch, recipe=recipe)
    for mine, expected in zip(xf.tree.leaves(xf.device_get(state.params)), leaves, strict=True):
        torch.testing.assert_close(mine, expected.detach(), rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_means_are_float32_with_weights_in_bfloat16(name: str) -> None:
    """In bfloat16 they would lose most of what is added to them."""
    config = model.Config(64, 32, 64, layers=2, heads=2, kv_heads=1)
    recipe = train.Recipe(config, steps=100, warmup=5, optimizer=name)
    weights = model.shapes(config, torch.bfloat16)
    state = xf.eval_shape(lambda params: train.start(recipe, params), weights)
    tokens: Any = xf.ShapeDtypeStruct((2, 16), torch.int64)
    batch = model.Batch(tokens, tokens)
    new, _ = xf.eval_shape(lambda s, b: train.train_step(s, b, recipe=recipe), state, batch)
    assert xf.tree.structure(new) == xf.tree.structure(state)
    for found in (state, new):
        assert {x.dtype for x in xf.tree.leaves(found.params)} == {torch.bfloat16}
        floating = {x.dtype for x in xf.tree.leaves(found.opt) if x.dtype.is_floating_point}
        assert floating == {torch.float32}
