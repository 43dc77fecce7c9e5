"""The parts of `xf.optim`: masks, accumulation, schedules, dtypes, and how transforms take them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc import optim

PARAMS = {"w": torch.tensor([[1.0, -2.0], [0.5, 3.0]]), "b": torch.tensor([0.25, -1.0])}
MASK = {"w": True, "b": False}
OPTIMIZERS = {
    "sgd": optim.sgd(0.1, 0.9, nesterov=True),
    "adamw": optim.adamw(optim.linear_schedule(0.1, 0.01, 5), mask=MASK),
    "adafactor": optim.adafactor(0.1, min_dim_size_to_factor=2),
    "lion": optim.lion(0.1),
    "muon": optim.muon(0.1, ns_dtype=None),
    "multi_steps": optim.multi_steps(optim.adam(0.1), 2),
    "clipped": optim.chain(optim.clip_by_global_norm(1.0), optim.adam(0.1)),
}


def gradient(params: Any, step: Any) -> Any:
    return xf.tree.map(lambda p: torch.cos(p * (step + 1)) * (step - 1.5), params)


def trained(opt: optim.GradientTransformation, steps: int, params: Any = PARAMS) -> Any:
    """The weights and the state after some steps."""
    state, start = opt.init(params), params
    for step in range(steps):
        updates, state = opt.update(gradient(start, step), state, params)
        params = optim.apply_updates(params, updates)
    return params, state


def assert_close(found: Any, expected: Any, rtol: float, atol: float) -> None:
    pairs = zip(xf.tree.leaves(found), xf.tree.leaves(expected), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.cpu(), theirs.cpu(), rtol=rtol, atol=atol)


# Weights after some steps of optax 0.2.8 on the same gradients, in float64.
OF_OPTAX = {
    "lion": (
        optim.lion(0.1, weight_decay=0.3, mask=MASK),
        5,
        {"b": [0.15, -0.9], "w": [[0.9470860067, -1.7943546324], [0.90025359385, 2.6760300961]]},
    ),
    "mean of 2 steps": (
        optim.multi_steps(optim.adamw(0.1, weight_decay=0.2), 2),
        5,
        {
            "b": [0.35569603263106037, -0.7681859375347425],
            "w": [
                [1.1526140624652574, -2.1031613009138304],
                [0.666919336620254, 2.684326367839229],
            ],
        },
    ),
    "sums of 1, 2, 3 steps": (
        optim.multi_steps(optim.sgd(0.1, momentum=0.9), lambda n: n + 1, use_grad_mean=False),
        6,
        {
            "b": [0.4730888372767565, -1.0347803818539003],
            "w": [
                [0.9652196181460997, -2.3862320010129663],
                [1.5105512921810713, 2.6075746412029126],
            ],
        },
    ),
    "masked momentum, clipped": (
        optim.chain(
            optim.masked(optim.trace(0.9), MASK),
            optim.clip_by_global_norm(2.0),
            optim.scale(-0.1),
        ),
        4,
        {
            "b": [0.3157011138114609, -0.8584373229602472],
            "w": [
                [1.3079313367572807, -2.305763194617455],
                [0.9600522579185069, 2.688449519501898],
            ],
        },
    ),
    "adafactor": (
        optim.adafactor(0.1, 2, weight_decay_rate=0.01, weight_decay_mask=MASK),
        4,
        {
            "b": [0.2649993863935457, -0.8098649105884241],
            "w": [
                [1.588589807931208, -2.299759523725349],
                [0.8297932274304054, 2.652861648711607],
            ],
        },
    ),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", OF_OPTAX)
def test_optimizer_equals_optax(name: str) -> None:
    opt, steps, expected = OF_OPTAX[name]
    params = xf.tree.map(lambda p: p.double(), PARAMS)
    found, _ = trained(opt, steps, params)
    for part in expected:
        want = torch.tensor(expected[part], dtype=torch.float64)
        torch.testing.assert_close(found[part].cpu(), want, rtol=1e-7, atol=1e-7)


SCHEDULES = {
    "linear": (
        optim.linear_schedule(2.0, 0.5, 4, 2),
        [2.0, 2.0, 2.0, 1.625, 1.25, 0.875, 0.5, 0.5, 0.5],
    ),
    "cosine": (
        optim.cosine_decay_schedule(2.0, 5, 0.1, 1.5),
        [2.0, 1.748429661, 1.153115295, 0.565534658, 0.253115295, 0.2, 0.2, 0.2, 0.2],
    ),
    "warmup": (
        optim.warmup_cosine_decay_schedule(0.1, 2.0, 3, 7, 0.2, 1.3),
        [0.1, 0.733333333, 1.366666667, 2.0, 1.665117327, 0.931027157, 0.348134298, 0.2, 0.2],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule_equals_optax(name: str) -> None:
    schedule, expected = SCHEDULES[name]
    counts = torch.arange(len(expected), dtype=torch.int32)
    want = torch.tensor(expected)
    traced: Any = xf.jit(xf.vmap(schedule))(counts)
    for found in (torch.stack([torch.as_tensor(schedule(n)) for n in range(9)]), traced.cpu()):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, want, rtol=2e-6, atol=2e-7)


def test_warmup_cosine_equals_torch() -> None:
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedulers = torch.optim.lr_scheduler
    theirs = schedulers.SequentialLR(
        sgd,
        [
            schedulers.LinearLR(sgd, 0.2, total_iters=4),
            schedulers.CosineAnnealingLR(sgd, 6, eta_min=0.1),
        ],
        milestones=[4],
    )
    ours = optim.warmup_cosine_decay_schedule(0.2, 1.0, 4, 10, 0.1)
    rates = []
    for _ in range(11):
        rates.append(theirs.get_last_lr()[0])
        sgd.step()
        theirs.step()
    found = [float(ours(step)) for step in range(11)]
    assert found == pytest.approx(rates, rel=1e-5)
    without = optim.warmup_cosine_decay_schedule(0.2, 1.0, 0, 6, 0.1)
    assert [float(without(n)) for n in range(7)] == pytest.approx(rates[4:], rel=1e-5)


def test_join_schedules_counts_from_each_boundary() -> None:
    joined = optim.join_schedules(
        [optim.constant_schedule(5.0), lambda n: n * 10.0, lambda n: n * 100.0], [2, 5]
    )
    assert [float(joined(n)) for n in range(8)] == [5.0, 5.0, 0.0, 10.0, 20.0, 0.0, 100.0, 200.0]


def test_scale_by_schedule_counts_updates() -> None:
    opt = optim.scale_by_learning_rate(lambda count: count * 2.0, flip_sign=False)
    state = opt.init(PARAMS)
    for step in range(3):
        updates, state = opt.update(torch.ones(2), state)
        assert updates.tolist() == [2.0 * step] * 2
    assert state.count.dtype == torch.int32
    assert state.count == 3


@pytest.mark.parametrize("limit", [1.0, 100.0])
def test_clip_by_global_norm_equals_torch(limit: float) -> None:
    grads = gradient(PARAMS, 4)
    copies = [torch.zeros_like(g) for g in grads.values()]
    for p, g in zip(copies, grads.values(), strict=True):
        p.grad = g.clone()
    norm = torch.nn.utils.clip_grad_norm_(copies, limit)
    assert 1.0 < norm < 100.0
    clipped, _ = optim.clip_by_global_norm(limit).update(grads, ())
    torch.testing.assert_close(optim.global_norm(grads), norm)
    assert_close(clipped, [p.grad for p in copies][::-1], rtol=1e-5, atol=1e-6)


def test_clip_by_global_norm_of_zeros_and_dtypes() -> None:
    grads = [torch.full((3,), 2.0, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.float64)]
    assert optim.global_norm(grads).dtype == torch.float64
    assert optim.global_norm(grads[:1]).dtype == torch.float32
    clipped, _ = optim.clip_by_global_norm(1.0).update(grads, ())
    assert [g.dtype for g in clipped] == [torch.bfloat16, torch.float64]
    assert clipped[0].tolist() == [torch.tensor(3**-0.5).bfloat16().item()] * 3
    zeros, _ = optim.clip_by_global_norm(1.0).update(grads[1:], ())
    assert zeros[0].tolist() == [0.0, 0.0]


def test_masked_has_state_for_the_selected_only() -> None:
    opt = optim.masked(optim.adam(0.1), lambda tree: xf.tree.map(lambda x: x.ndim == 2, tree))
    updates, state = opt.update(PARAMS, opt.init(PARAMS))
    shapes = [tuple(x.shape) for x in xf.tree.leaves(state)]
    assert shapes == [(), (2, 2), (2, 2)]
    assert updates["b"] is PARAMS["b"]
    assert_close(updates["w"], -0.1 * PARAMS["w"].sign(), rtol=1e-5, atol=1e-5)


def test_masked_takes_a_prefix() -> None:
    params = {"frozen": PARAMS, "head": torch.ones(2)}
    opt = optim.masked(optim.scale(2.0), {"frozen": False, "head": True})
    updates, _ = opt.update(params, opt.init(params))
    assert updates["head"].tolist() == [2.0, 2.0]
    assert xf.tree.all(xf.tree.map(torch.equal, updates["frozen"], PARAMS))


def test_multi_steps_changes_weights_at_the_last_step() -> None:
    inner = optim.adam(0.1)
    opt = optim.multi_steps(inner, 3)
    state, first, updates = opt.init(PARAMS), inner.init(PARAMS), None
    for step in range(3):
        updates, state = opt.update(gradient(PARAMS, step), state)
        if step < 2:
            assert xf.tree.all(xf.tree.map(lambda u: (u == 0).all(), updates))
            assert_close(state.inner_opt_state, first, rtol=0.0, atol=0.0)
            assert state.mini_step == step + 1
    grads = [gradient(PARAMS, step) for step in range(3)]
    mean = xf.tree.map(lambda *gs: torch.stack(gs).mean(0), *grads)
    assert_close(updates, inner.update(mean, first)[0], rtol=1e-5, atol=1e-6)
    assert (state.mini_step, state.gradient_step) == (0, 1)
    assert xf.tree.all(xf.tree.map(lambda a: (a == 0).all(), state.acc_grads))


def test_multi_steps_accumulates_bfloat16_in_float32() -> None:
    params = torch.zeros(2, dtype=torch.bfloat16)
    opt = optim.multi_steps(optim.sgd(1.0), 3, use_grad_mean=False)
    state, updates = opt.init(params), params
    for value in (256.0, 1.0, 1.0):  # 257 is no number of bfloat16.
        updates, state = opt.update(torch.full((2,), value, dtype=torch.bfloat16), state)
    assert updates.tolist() == [-258.0, -258.0]
    assert optim.apply_updates(params, updates).dtype == torch.bfloat16


def test_complex_adam_divides_by_the_absolute_value() -> None:
    opt = optim.adam(1.0)
    grads = torch.tensor([3 + 4j, -2j], dtype=torch.complex64)
    updates, state = opt.update(grads, opt.init(torch.zeros_like(grads)))
    assert_close(updates, -grads / grads.abs(), rtol=1e-5, atol=1e-6)
    assert state[0].nu.dtype == torch.float32


# -- dtypes
# --------------------------------------------------------------------------------------


def test_add_decayed_weights_of_bfloat16_to_float32_rounds_nothing() -> None:
    opt, weight = optim.add_decayed_weights(0.1), torch.tensor([3.0], dtype=torch.bfloat16)
    updates, _ = opt.update(torch.zeros(1), opt.init(weight), weight)
    assert updates.item() == pytest.approx(0.3, rel=1e-6)  # bfloat16 has 0.30078.


def test_adamw_of_bfloat16_with_float32_state() -> None:
    opt = optim.adamw(0.1, mu_dtype=torch.float32, nu_dtype=torch.float32, weight_decay=0.2)
    narrow = xf.tree.map(lambda p: p.bfloat16(), PARAMS)
    grads = gradient(narrow, 3)
    updates, state = opt.update(grads, opt.init(narrow), narrow)
    wide, wide_grads = (xf.tree.map(lambda p: p.float(), t) for t in (narrow, grads))
    expected, _ = opt.update(wide_grads, opt.init(wide), wide)
    new = optim.apply_updates(narrow, updates)
    rounded = xf.tree.map(lambda p, u: (p + u).bfloat16(), wide, expected)
    assert xf.tree.all(xf.tree.map(torch.equal, new, rounded))
    assert {x.dtype for x in xf.tree.leaves(state)} == {torch.int32, torch.float32}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_state_keeps_dtypes_and_shapes(name: str, dtype: torch.dtype) -> None:
    """Also for gradients that are wider than the weights."""
    opt = OPTIMIZERS[name]
    params = xf.tree.map(lambda p: p.to(dtype), PARAMS)
    state = opt.init(params)
    before = [(x.shape, x.dtype) for x in xf.tree.leaves(state)]
    grads = xf.tree.map(lambda p: p.float(), params)
    _, state = opt.update(grads, state, params)
    assert [(x.shape, x.dtype) for x in xf.tree.leaves(state)] == before


# -- transforms
# ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_in_scan_equals_steps(name: str) -> None:
    opt = OPTIMIZERS[name]

    @xf.jit
    def run(params: Any) -> Any:
        def step(carry: Any, n: Any) -> Any:
            params, state = carry
            updates, state = opt.update(gradient(PARAMS, n), state, params)
            return (optim.apply_updates(params, updates), state), None

        return xf.scan(step, (params, opt.init(params)), torch.arange(5.0))[0]

    assert_close(run(PARAMS), trained(opt, 5), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ensemble_in_vmap_equals_members(name: str) -> None:
    opt = OPTIMIZERS[name]
    members = [xf.tree.map(lambda p, k=k: p * k, PARAMS) for k in (1.0, -0.5, 2.0)]

    def two_steps(params: Any) -> Any:
        state, start = opt.init(params), params
        for n in range(2):
            updates, state = opt.update(gradient(start, n), state, params)
            params = optim.apply_updates(params, updates)
        return params, state

    found = xf.jit(xf.vmap(two_steps))(xf.tree.map(lambda *ps: torch.stack(ps), *members))
    expected = [trained(opt, 2, member) for member in members]
    assert_close(found, xf.tree.map(lambda *xs: torch.stack(xs), *expected), rtol=2e-5, atol=2e-5)


def test_vmap_over_learning_rates() -> None:
    def step(rate: Any) -> Any:
        opt = optim.adamw(rate)
        updates, _ = opt.update(PARAMS, opt.init(PARAMS), PARAMS)
        return optim.apply_updates(PARAMS, updates)

    rates = torch.tensor([0.1, 0.2])
    found = xf.vmap(step)(rates)
    for i, rate in enumerate(rates):
        assert_close(xf.tree.map(lambda x, i=i: x[i], found), step(rate), rtol=1e-5, atol=1e-6)


def test_gradient_of_the_learning_rate_is_that_of_finite_differences() -> None:
    params = xf.tree.map(lambda p: p.double(), PARAMS)

    def after(rate: torch.Tensor) -> torch.Tensor:
        new = trained(optim.adam(rate, eps_root=1e-8), 3, params)[0]
        return sum((p.square().sum() for p in new.values()), torch.zeros(()))

    rate, step = torch.tensor(0.1, dtype=torch.float64), 1e-6
    difference = (after(rate + step) - after(rate - step)) / (2 * step)
    torch.testing.assert_close(xf.jit(xf.grad(after))(rate).cpu(), difference, rtol=1e-7, atol=0.0)


# -- errors
# --------------------------------------------------------------------------------------

ERRORS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no weights": (
        lambda: optim.adamw(0.1).update(PARAMS, optim.adamw(0.1).init(PARAMS)),
        ValueError,
        r"add_decayed_weights depends on the weights, but update was called without them",
    ),
    "no weights for adafactor": (
        lambda: optim.adafactor(0.1).update(PARAMS, optim.adafactor(0.1).init(PARAMS)),
        ValueError,
        r"scale_by_param_block_rms depends on the weights",
    ),
    "state of another chain": (
        lambda: optim.adam(0.1).update(PARAMS, optim.sgd(0.1).init(PARAMS)),
        ValueError,
        r"chain: the state has 1 parts for 2 transformations",
    ),
    "no transition": (
        lambda: optim.linear_schedule(1.0, 0.0, 0),
        ValueError,
        r"linear_schedule: transition_steps is 0",
    ),
    "no decay": (
        lambda: optim.cosine_decay_schedule(1.0, -1),
        ValueError,
        r"cosine_decay_schedule: decay_steps is -1",
    ),
    "no decay after the warm-up": (
        lambda: optim.warmup_cosine_decay_schedule(0.0, 1.0, 5, 5),
        ValueError,
        r"warmup_cosine_decay_schedule: decay_steps - warmup_steps is 0",
    ),
    "boundaries": (
        lambda: optim.join_schedules([optim.constant_schedule(1.0)], [3]),
        ValueError,
        r"join_schedules was given 1 schedules and 1 boundaries",
    ),
    "mask": (
        lambda: optim.masked(optim.scale(1.0), {"w": True}).init(PARAMS),
        xf.errors.TreeMismatchError,
        r"tree\['b'\]: unexpected",
    ),
    "updates": (
        lambda: optim.apply_updates(PARAMS, {"w": PARAMS["w"]}),
        xf.errors.TreeMismatchError,
        r"tree\['b'\]: missing",
    ),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", ERRORS)
def test_misuse_raises(name: str) -> None:
    call, kind, match = ERRORS[name]
    with pytest.raises(kind, match=match):
        call()
