"""`xf.optim` takes the steps of `torch.optim` on the same gradients, alone and in a program."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc import optim

STEPS = 12
MATRIX_ONLY = {"matrix": True, "vector": False}


def random_tree(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"matrix": (6, 5), "vector": (5,)}
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def rising_and_falling(count: Any) -> torch.Tensor:
    """A learning rate in float64, so that both sides have all its digits."""
    count = torch.as_tensor(count).double()
    return 0.02 * (count + 1).clamp(max=4.0) / (1 + count / 5)


def at_most(rate: float) -> Callable[[Any], torch.Tensor]:
    """The learning rate of `torch.optim.Adafactor`."""
    return lambda count: (count + 1).double().rsqrt().clamp(max=rate)


@dataclasses.dataclass(frozen=True)
class Case:
    """An optimizer of ours, and torch's for the parameters [matrix, vector]."""

    ours: optim.GradientTransformation
    theirs: Callable[[list[torch.Tensor]], torch.optim.Optimizer]
    scheduled: bool = False


def decaying_matrix(params: list[torch.Tensor], decay: float) -> list[dict[str, Any]]:
    return [
        {"params": params[:1], "weight_decay": decay},
        {"params": params[1:], "weight_decay": 0.0},
    ]


CASES = {
    "sgd": Case(optim.sgd(0.1), lambda ps: torch.optim.SGD(ps, 0.1)),
    "sgd momentum": Case(
        optim.sgd(rising_and_falling, momentum=0.9),
        lambda ps: torch.optim.SGD(ps, 1.0, momentum=0.9),
        scheduled=True,
    ),
    "sgd nesterov, decay": Case(
        optim.chain(optim.add_decayed_weights(0.3), optim.sgd(0.1, 0.8, nesterov=True)),
        lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.8, nesterov=True, weight_decay=0.3),
    ),
    "adam": Case(
        optim.adam(0.1, 0.8, 0.99, 1e-3),
        lambda ps: torch.optim.Adam(ps, 0.1, (0.8, 0.99), 1e-3),
    ),
    "adam without means": Case(
        optim.adam(0.1, 0.0, 0.0, 1e-2), lambda ps: torch.optim.Adam(ps, 0.1, (0.0, 0.0), 1e-2)
    ),
    "adamw": Case(
        optim.adamw(0.1, weight_decay=0.2), lambda ps: torch.optim.AdamW(ps, 0.1, weight_decay=0.2)
    ),
    "adamw scheduled, masked": Case(
        optim.adamw(rising_and_falling, b2=0.95, weight_decay=0.2, mask=MATRIX_ONLY),
        lambda ps: torch.optim.AdamW(decaying_matrix(ps, 0.2), 1.0, (0.9, 0.95)),
        scheduled=True,
    ),
    "adafactor": Case(
        optim.adafactor(at_most(0.4), min_dim_size_to_factor=1, weight_decay_rate=0.4 * 0.1),
        lambda ps: torch.optim.Adafactor(ps, 0.4, weight_decay=0.1),
    ),
    "adafactor masked": Case(
        optim.adafactor(
            at_most(0.3), 1, 0.7, clipping_threshold=1.5, weight_decay_rate=0.3 * 0.2,
            weight_decay_mask=MATRIX_ONLY,
        ),
        lambda ps: torch.optim.Adafactor(
            decaying_matrix(ps, 0.2), 0.3, beta2_decay=-0.7, d=1.5
        ),
    ),
}  # fmt: skip


def steps_of_torch(case: Case) -> list[torch.Tensor]:
    params = list(random_tree(0).values())
    theirs = case.theirs(params)
    schedule = None
    if case.scheduled:
        schedule = torch.optim.lr_scheduler.LambdaLR(theirs, lambda n: rising_and_falling(n).item())
    for step in range(STEPS):
        for p, g in zip(params, random_tree(step + 1).values(), strict=True):
            p.grad = g * (step + 1)
        theirs.step()
        if schedule is not None:
            schedule.step()
    return params


@pytest.mark.quick
@pytest.mark.parametrize("name", CASES)
def test_optimizer_equals_torch_in_float64(name: str) -> None:
    case = CASES[name]
    params = random_tree(0)
    state = case.ours.init(params)
    for step in range(STEPS):
        grads = xf.tree.map(lambda g: g * (step + 1), random_tree(step + 1))  # noqa: B023
        updates, state = case.ours.update(grads, state, params)
        params = optim.apply_updates(params, updates)
    for ours, theirs in zip(params.values(), steps_of_torch(case), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_optimizer_in_jit_equals_torch(name: str) -> None:
    case = CASES[name]

    @xf.jit(donate_argnums=(1, 2))
    def step(grads: Any, state: Any, params: Any) -> Any:
        updates, state = case.ours.update(grads, state, params)
        return state, optim.apply_updates(params, updates)

    before = xf.trace_count(step)
    params = xf.tree.map(lambda p: p.float(), random_tree(0))
    state = xf.jit(case.ours.init)(params)
    for n in range(STEPS):
        grads = xf.tree.map(lambda g: (g * (n + 1)).float(), random_tree(n + 1))  # noqa: B023
        state, params = step(grads, state, params)
    assert xf.trace_count(step) == before + 1
    for ours, theirs in zip(params.values(), steps_of_torch(case), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs.float(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [(6, 5), (5, 6)])
@pytest.mark.parametrize(
    ("adjustment", "consistent_rms"), [("original", None), ("match_rms_adamw", 0.2)]
)
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_equals_torch(
    shape: tuple[int, int], adjustment: str, consistent_rms: float | None, nesterov: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    params, *grads = torch.randn((9, *shape), generator=generator)
    theirs = params.clone()
    reference = torch.optim.Muon(
        [theirs], 0.05, weight_decay=0.2, momentum=0.9, nesterov=nesterov, adjust_lr_fn=adjustment
    )
    opt = optim.muon(
        0.05, beta=0.9, weight_decay=0.2, nesterov=nesterov, consistent_rms=consistent_rms
    )
    state = opt.init(params)
    for g in grads:
        theirs.grad = g
        reference.step()
        updates, state = opt.update(g, state, params)
        params = optim.apply_updates(params, updates)
    # Both multiply matrices in bfloat16, and round at different places.
    torch.testing.assert_close(params, theirs, rtol=0.0, atol=0.01)


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 3, 4)])
def test_muon_maps_singular_values_by_its_polynomial(shape: tuple[int, ...]) -> None:
    gradient = torch.randn(shape, dtype=torch.float64)
    a, b, c = 3.4445, -4.775, 2.0315
    u, s, v = torch.linalg.svd(gradient, full_matrices=False)
    s = s / s.square().sum(-1, keepdim=True).sqrt()
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    opt = optim.scale_by_muon(ns_dtype=None)
    found, _ = opt.update(gradient, opt.init(gradient))
    torch.testing.assert_close(found, (u * s[..., None, :]) @ v, rtol=1e-9, atol=1e-9)


def test_muon_updates_other_weights_by_adamw() -> None:
    params = random_tree(0)
    opt = optim.muon(0.1, weight_decay=0.3, adam_weight_decay=0.2, weight_decay_mask=MATRIX_ONLY)
    adamw = optim.adamw(0.1, weight_decay=0.0)
    state, vector = opt.init(params), params["vector"]
    of_vector = adamw.init(vector)
    for n in range(3):
        grads = random_tree(n + 1)
        updates, state = opt.update(grads, state, params)
        params = optim.apply_updates(params, updates)
        expected, of_vector = adamw.update(grads["vector"], of_vector, vector)
        vector = optim.apply_updates(vector, expected)
    assert torch.equal(params["vector"], vector)
    assert [tuple(x.shape) for x in xf.tree.leaves(state)] == [(6, 5), (), (5,), (5,)]


def test_muon_of_stacked_matrices_updates_each() -> None:
    params, grads = torch.randn(2, 3, 6, 5)
    opt = optim.muon(0.1, weight_decay=0.3, muon_mask=True)
    stacked, _ = opt.update(grads, opt.init(params), params)
    alone = [opt.update(g, opt.init(p), p)[0] for g, p in zip(grads, params, strict=True)]
    torch.testing.assert_close(stacked, torch.stack(alone), rtol=0.0, atol=2e-3)
