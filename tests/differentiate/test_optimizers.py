"""The functional forms of `torch.optim` inside a jitted train step do what the classes do."""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

torch.manual_seed(0)
X, Y = torch.randn(16, 4), torch.randn(16, 1)
PARAMS = [torch.randn(4, 3), torch.randn(3, 1)]
RATE = 0.1


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """A class of `torch.optim` with its options, and its function.

    Attributes:
        states: what a state of each parameter starts from, by name.
        counts: the same of what is one number for each parameter.
        flags: the options of the function.
    """

    cls: Any
    options: dict[str, Any]
    states: dict[str, float]
    counts: dict[str, float]
    flags: dict[str, Any]
    tolerance: float = 1e-4

    def init(self) -> dict[str, list[torch.Tensor]]:
        full = {k: [torch.full_like(p, v) for p in PARAMS] for k, v in self.states.items()}
        return full | {k: [torch.tensor(v) for _ in PARAMS] for k, v in self.counts.items()}


STEPS = {"state_steps": 0.0}
CAPTURED = {"capturable": True}
BETAS = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, **CAPTURED}
PLAIN = {"weight_decay": 0.0}
ADAM = {**BETAS, "amsgrad": False, "max_exp_avg_sqs": [], "maximize": False}
MEANS = {"exp_avgs": 0.0, "exp_avg_sqs": 0.0}
SGD = {**PLAIN, "dampening": 0.0, "maximize": False}
OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": Optimizer(
        torch.optim.AdamW, {"weight_decay": 0.2}, MEANS, STEPS, {**ADAM, "weight_decay": 0.2}
    ),
    "adamw amsgrad": Optimizer(
        torch.optim.AdamW,
        {"amsgrad": True, "weight_decay": 0.2},
        {**MEANS, "max_exp_avg_sqs": 0.0},
        STEPS,
        {**BETAS, "amsgrad": True, "maximize": False, "weight_decay": 0.2},
    ),
    "adam": Optimizer(torch.optim.Adam, {}, MEANS, STEPS, {**ADAM, **PLAIN}),
    "sgd": Optimizer(
        torch.optim.SGD,
        {},
        {},
        {},
        {**SGD, "momentum_buffer_list": [None, None], "momentum": 0.0, "nesterov": False},
    ),
    "sgd momentum": Optimizer(
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True},
        {"momentum_buffer_list": 0.0},
        {},
        {**SGD, "momentum": 0.9, "nesterov": True},
    ),
    "adadelta": Optimizer(
        torch.optim.Adadelta,
        {},
        {"square_avgs": 0.0, "acc_deltas": 0.0},
        STEPS,
        {"rho": 0.9, "eps": 1e-6, "maximize": False, **PLAIN},
    ),
    "adamax": Optimizer(
        torch.optim.Adamax, {}, {"exp_avgs": 0.0, "exp_infs": 0.0}, STEPS, {**BETAS, **PLAIN}
    ),
    "nadam": Optimizer(
        torch.optim.NAdam,
        {},
        MEANS,
        {"mu_products": 1.0, **STEPS},
        {**BETAS, **PLAIN, "momentum_decay": 4e-3},
    ),
    "radam": Optimizer(torch.optim.RAdam, {}, MEANS, STEPS, {**BETAS, **PLAIN}),
    "rmsprop": Optimizer(
        torch.optim.RMSprop,
        {"momentum": 0.9, "centered": True},
        {"square_avgs": 0.0, "grad_avgs": 0.0, "momentum_buffer_list": 0.0},
        STEPS,
        {"alpha": 0.99, "eps": 1e-8, "momentum": 0.9, "centered": True, **CAPTURED, **PLAIN},
    ),
    "rprop": Optimizer(
        torch.optim.Rprop,
        {},
        {"prevs": 0.0, "step_sizes": RATE},
        STEPS,
        {"step_size_min": 1e-6, "step_size_max": 50, "etaminus": 0.5, "etaplus": 1.2, **CAPTURED},
    ),
    "asgd": Optimizer(
        torch.optim.ASGD,
        {},
        {"axs": 0.0},
        {"mus": 1.0, "etas": RATE, **STEPS},
        {"lambd": 1e-4, "t0": 1e6, "alpha": 0.75, **CAPTURED, **PLAIN},
    ),
    "_muon": Optimizer(
        torch.optim.Muon,
        {"weight_decay": 0.1},
        {"muon_momentum_bufs": 0.0},
        {},
        {"weight_decay": 0.1, "momentum": 0.95, "nesterov": True, "eps": 1e-7, "ns_steps": 5,
         "ns_coefficients": (3.4445, -4.775, 2.0315), "adjust_lr_fn": None, "has_complex": False},
        tolerance=0.03,  # It multiplies matrices in bfloat16.
    ),
}  # fmt: skip


def loss(params: list[torch.Tensor]) -> torch.Tensor:
    x, y = X.to(params[0].device), Y.to(params[0].device)
    return (torch.tanh(x @ params[0]) @ params[1] - y).square().mean()


def function_of(name: str) -> Callable[..., None]:
    module = name.split()[0]
    return getattr(importlib.import_module(f"torch.optim.{module}"), module.strip("_"))


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_functional_optimizer_equals_class(name: str, traced: bool) -> None:
    case, update = OPTIMIZERS[name], function_of(name)

    @xf.jit(donate_argnums=(0, 1))
    def step(params: Any, state: Any, rate: Any) -> Any:
        value, grads = xf.value_and_grad(loss)(params)
        params, state = xf.tree.map(torch.clone, (params, state))
        rates = {} if name == "rprop" else {"lr": rate if traced else RATE}
        update(params, grads, foreach=False, **rates, **state, **case.flags)
        return params, state, value

    params, state = [p.clone() for p in PARAMS], case.init()
    plain = [p.clone().requires_grad_() for p in PARAMS]
    optimizer = case.cls(plain, lr=RATE, **case.options)
    for _ in range(4):
        params, state, value = step(params, state, RATE)
        optimizer.zero_grad()
        expected = loss(plain)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(
            value.cpu(), expected.detach(), rtol=case.tolerance, atol=case.tolerance
        )
    for got, want in zip(params, plain, strict=True):
        torch.testing.assert_close(
            got.cpu(), want.detach(), rtol=case.tolerance, atol=case.tolerance
        )
    assert step.cache_info().hits >= 3


def test_functional_adagrad_reading_step_count_is_refused() -> None:
    update = function_of("adagrad")

    @xf.jit
    def step(params: Any, sums: Any, steps: Any) -> Any:
        params, sums, steps = xf.tree.map(torch.clone, (params, sums, steps))
        update(
            params, params, sums, steps, foreach=False, lr=RATE, weight_decay=0.0, lr_decay=0.0,
            eps=1e-10, maximize=False,
        )  # fmt: skip
        return params

    with pytest.raises(xf.errors.ConcretizationError, match=r"Tensor\.item reads a traced value"):
        step(PARAMS, PARAMS, [torch.zeros(()) for _ in PARAMS])
