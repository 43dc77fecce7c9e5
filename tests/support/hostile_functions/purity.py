"""Functions that change what is not theirs, draw random numbers, or have other effects."""

# Misuse is the subject here.
# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportUnusedExpression=false, reportGeneralTypeIssues=false
from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F

import xfunc as xf
from tests.support.hostile_functions.case import GRAD, PURE, VMAP, Hostile, matrix


def _set_item(x: torch.Tensor) -> torch.Tensor:
    x[0] = 1.0  # bad
    return x


def _augmented(x: torch.Tensor) -> torch.Tensor:
    x += 1  # bad
    return x


def _set_data(x: torch.Tensor) -> torch.Tensor:
    x.data = torch.zeros_like(x)  # bad
    return x


def _in_scan(x: torch.Tensor) -> Any:
    def body(c: torch.Tensor, y: torch.Tensor) -> Any:
        c.add_(y)  # bad
        return c, y

    return xf.scan(body, x.sum(), x)


def _mutate_capture(x: torch.Tensor) -> Any:
    def inner(y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)  # bad
        return (x * y).sum()

    return xf.grad(inner)(x * 1)


_counter_on_host = torch.zeros(3)
_counter_on_device = functools.cache(lambda: xf.device_put(torch.zeros(3)))


def _count_on_host(x: torch.Tensor) -> torch.Tensor:
    _counter_on_host.add_(1)  # bad
    return x + _counter_on_host


def _count_on_device(x: torch.Tensor) -> torch.Tensor:
    _counter_on_device().add_(1)  # bad
    return x + 1


def _backward(x: torch.Tensor) -> torch.Tensor:
    w = x.detach().requires_grad_()
    (w * w).sum().backward()  # bad
    return x


def _sync(x: torch.Tensor) -> torch.Tensor:
    import torch_xla

    torch_xla.sync()  # bad
    return x


PURITY: dict[str, Hostile] = {
    # Mutation.
    "add_": Hostile(lambda x: x.add_(1), PURE, "Tensor.add_ changes x"),
    "x[0] = 1": Hostile(_set_item, PURE, "changes x"),
    "x += 1": Hostile(_augmented, PURE, "changes x"),
    "view": Hostile(lambda x: x[1:].mul_(2), PURE, "changes x"),
    "transposed": Hostile(lambda x: x.t().mul_(2), PURE, "changes x", matrix),
    "detached": Hostile(lambda x: x.detach().mul_(2), PURE, "changes x"),
    "data": Hostile(_set_data, PURE, "x"),
    "data.mul_": Hostile(lambda x: x.data.mul_(2), PURE, "changes x"),
    "out": Hostile(lambda x: torch.add(x, 1, out=x), PURE, "changes x"),
    "out tuple": Hostile(
        lambda x: torch.sort(x, out=(x, torch.zeros_like(x).long())), PURE, "changes x"
    ),
    "init": Hostile(lambda x: torch.nn.init.zeros_(x), PURE, "changes x", matrix),
    "init normal": Hostile(lambda x: torch.nn.init.normal_(x), PURE, "random generator", matrix),
    "inplace relu": Hostile(lambda x: F.relu(x, inplace=True), PURE, "changes x"),
    "op": Hostile(lambda x: torch.ops.aten.add_(x, 1), PURE, "changes x"),
    "foreach": Hostile(lambda x: torch._foreach_add_([x], 1.0), PURE, "changes x"),
    "in grad": Hostile(GRAD(lambda x: x.mul_(2).sum()), PURE, "changes x"),
    "in vmap": Hostile(VMAP(lambda x: x.mul_(2)), PURE, "changes x"),
    "in scan": Hostile(_in_scan, PURE, "changes"),
    "outer value": Hostile(_mutate_capture, PURE, "changes"),
    "capture on host": Hostile(_count_on_host, PURE, "changes a captured tensor"),
    "capture on device": Hostile(
        _count_on_device, PURE, "changes a captured tensor", lambda: _counter_on_device() + 1
    ),
    # The global random generator, and other side effects.
    "rand": Hostile(lambda x: x + torch.rand(3), PURE, "random generator"),
    "randn_like": Hostile(lambda x: torch.randn_like(x), PURE, "random generator"),
    "randperm": Hostile(lambda x: x[torch.randperm(3)], PURE, "random generator"),
    "dropout": Hostile(lambda x: F.dropout(x), PURE, "random generator"),
    "Dropout": Hostile(lambda x: torch.nn.Dropout()(x), PURE, "random generator"),
    "bernoulli_": Hostile(lambda x: torch.zeros_like(x).bernoulli_(), PURE, "random generator"),
    "multinomial": Hostile(lambda x: torch.multinomial(x, 1), PURE, "random generator"),
    "attention": Hostile(
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), PURE, "random", matrix
    ),
    "rand in scan": Hostile(
        lambda x: xf.scan(lambda c, y: (c + torch.rand(()), y), x[0], x), PURE, "random generator"
    ),
    "backward": Hostile(_backward, PURE, "xf.grad"),
    "sync": Hostile(_sync, Exception, "torch_xla.sync|reads a traced value"),
}
