"""The functional forms of `torch.optim` inside a jitted train step do what the classes do."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

torch.manual_seed(0)
X, Y = torch.randn(16, 4), torch.randn(16, 1)
PARAMS = [torch.randn(4, 1), torch.randn(1)]
BETAS = {"beta1": 0.9, "beta2": 0.99}

# Class, its options, the names of its states, and the options of its function.
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any], list[str], dict[str, Any]]] = {
    "adamw": (
        torch.optim.AdamW,
        {"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.1},
        ["exp_avgs", "exp_avg_sqs"],
        {"lr": 0.1, **BETAS, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": False,
         "max_exp_avg_sqs": [], "maximize": False},
    ),
    "adam": (
        torch.optim.Adam,
        {"lr": 0.1, "betas": (0.9, 0.99)},
        ["exp_avgs", "exp_avg_sqs"],
        {"lr": 0.1, **BETAS, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False,
         "max_exp_avg_sqs": [], "maximize": False},
    ),
}  # fmt: skip


def loss(params):
    return (X.to(params[0].device) @ params[0] + params[1] - Y.to(params[0].device)).square().mean()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_function_does_what_the_class_does(name: str) -> None:
    cls, options, states, flags = OPTIMIZERS[name]
    update: Callable[..., None] = getattr(importlib.import_module(f"torch.optim.{name}"), name)

    @xf.jit
    def step(params, state, steps):
        value, grads = xf.value_and_grad(loss)(params)
        params, state, steps = xf.tree.map(torch.clone, (params, state, steps))
        given = dict(zip(states, state, strict=True))
        update(params, grads, state_steps=steps, foreach=False, capturable=True, **given, **flags)
        return params, state, steps, value

    params, steps = PARAMS, [torch.zeros(()) for _ in PARAMS]
    state = [[torch.zeros_like(p) for p in PARAMS] for _ in states]
    plain = [p.clone().requires_grad_() for p in PARAMS]
    optimizer = cls(plain, **options)
    for _ in range(5):
        params, state, steps, value = step(params, state, steps)
        optimizer.zero_grad()
        expected = loss(plain)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(value.cpu(), expected.detach())
    for got, want in zip(params, plain, strict=True):
        torch.testing.assert_close(got.cpu(), want.detach(), rtol=1e-4, atol=1e-5)
    assert step.cache_info().hits >= 4
