"""Under `disable_jit`, CPU tensors beside those of a device, as in compiled functions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree

import xfunc as xf
from tests.operations.test_operations import RIGHT, database

Tensor = torch.Tensor
C, WEIGHTS = torch.arange(3.0), torch.arange(6.0).reshape(2, 3)
TRUE = torch.tensor([True, False, True])


def changed(change: Callable[[Tensor], object]) -> Tensor:
    made = torch.zeros(3)
    change(made)
    return made


def set_items(x: Tensor, index: Any, values: Tensor) -> None:
    x[index] = values


CASES: dict[str, Callable[[Tensor], Any]] = {
    "arithmetic": lambda x: x * C + torch.arange(3),
    "where": lambda x: torch.where(TRUE, x, C),
    "a list": lambda x: torch.cat([x, torch.zeros(2)]),
    "an index": lambda x: x[torch.tensor([0, 2])],
    "an assignment": lambda x: changed(lambda y: set_items(y, slice(2), x[:2])),
    "an assignment by index": lambda x: changed(
        lambda y: set_items(y, torch.tensor([0, 2]), x[:2])
    ),
    "in place": lambda x: changed(lambda y: y.add_(x).mul_(C)),
    "an operator in place": lambda x: changed(lambda y: operator.iadd(y, x)),
    "an overload in place": lambda x: changed(lambda y: torch.ops.aten.add_.Tensor(y, x)),
    "out": lambda x: torch.add(x, C, out=torch.empty(3)),
    "a scatter": lambda x: torch.zeros(4).scatter(0, torch.tensor([3, 1, 0]), x),
    "a layer": lambda x: F.layer_norm(F.linear(x, WEIGHTS), (2,), torch.ones(2)),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], WEIGHTS, WEIGHTS),
    "a comparison of devices": lambda x: torch.inner(x, C),
    "scan": lambda x: xf.scan(lambda a, b: (a * b + x.sum(), a), torch.ones(()), C),
    "while_loop": lambda x: xf.while_loop(
        lambda s: s.sum() < 10, lambda s: torch.maximum(s + 1, C), x
    ),
    "cond": lambda x: xf.cond(x.sum() > 0, lambda a: a + C, lambda a: a - C, x),
    "vmap": lambda x: xf.vmap(lambda row: torch.cat([row, x]))(WEIGHTS),
    "gradient": lambda x: xf.grad(lambda c: (torch.where(TRUE, c, x) * x).sum())(C),
    "gradients of both": lambda x: xf.grad(lambda a, w: F.linear(a, w).sum(), (0, 1))(x, WEIGHTS),
    "hessian": lambda x: xf.hessian(lambda c: (torch.cat([c, x]) ** 3).sum())(C),
    "checkpoint": lambda x: xf.grad(xf.checkpoint(lambda c: torch.cat([c, x]).sin().sum()))(C),
    "vjp": lambda x: xf.vjp(lambda c: torch.cat([c, x]), C)[1](torch.ones(6)),
    "jvp": lambda x: xf.jvp(lambda a: a.sin() * C, (x,), (C,)),
    "linearize": lambda x: xf.linearize(lambda a: a.sin() * C, x)[1](C),
}


def on_host(x: Any) -> list[Tensor]:
    return [t.detach().cpu() for t in xf.tree.leaves(x) if isinstance(t, Tensor)]


@pytest.mark.parametrize("name", CASES)
def test_disable_jit_with_mixed_devices(name: str) -> None:
    f, x = CASES[name], torch.ones(3) + 0.5
    wanted = on_host(xf.jit(f)(x))
    with xf.disable_jit():
        found = on_host(xf.jit(f)(xf.device_put(x)))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def on_device(x: object) -> object:
    return xf.device_put(x) if isinstance(x, Tensor) else x


def samples(name: str) -> Iterator[Any]:
    yield from list(database()[name].sample_inputs("cpu", torch.float32))[:4]


@pytest.mark.sample(48, seed=0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RIGHT)
def test_disable_jit_operations_with_mixed_devices(name: str) -> None:
    """Of torch's samples, the first argument on the device; values wherever all there has them."""
    op = database()[name]
    if torch.float32 not in op.dtypes:
        return
    for sample in samples(name):
        if not isinstance(sample.input, Tensor):
            continue
        try:
            args, kwargs = _pytree.tree_map(on_device, (sample.args, sample.kwargs))
            wanted = on_host(op(xf.device_put(sample.input), *args, **kwargs))
        except (RuntimeError, NotImplementedError):  # torch_xla has no such operation
            continue
        with xf.disable_jit():
            found = op(xf.device_put(sample.input), *sample.args, **sample.kwargs)
        assert len(on_host(found)) == len(wanted)
        torch.testing.assert_close(on_host(found), wanted, rtol=1e-4, atol=1e-4, equal_nan=True)
