"""`disable_jit`: transforms give what they give when they are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf

X = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])
NONE = torch.zeros(0, 3)
ROW = xf.ShapeDtypeStruct((3,), torch.float32)


def doubled(x: torch.Tensor, method: str | None = "sequential") -> torch.Tensor:
    return xf.pure_callback(lambda a: 2 * a.numpy(), ROW, x, vmap_method=method)


@xf.custom_jvp
def host_sine(x: torch.Tensor) -> torch.Tensor:
    return xf.pure_callback(lambda a: np.sin(a.numpy()), ROW, x, vmap_method="broadcast_all")


host_sine.defjvp(lambda xs, ts: (host_sine(*xs), torch.cos(xs[0]) * ts[0]))

CASES: dict[str, Callable[[], Any]] = {
    "scan over nothing": lambda: xf.scan(lambda c, x: (c + x.sum(), 2 * x), 1.0, NONE),
    "scan over nothing in vmap": lambda: xf.vmap(
        lambda r: xf.scan(lambda c, x: (c + x, (c, x)), r.sum(), torch.zeros(0))
    )(X),
    "map over nothing": lambda: xf.map(lambda x: (2 * x, x.sum()), NONE),
    "scan with a number as its carry": lambda: xf.scan(lambda c, x: (1, x), 0, X),
    "fori_loop with a number": lambda: xf.fori_loop(0, 3, lambda i, c: 1.5, 0.0),
    "vmap with numbers as outputs": lambda: xf.vmap(
        lambda r: (r, 1.0, True, np.arange(2)), out_axes=(0, None, 0, 0)
    )(X),
    "callback in vmap": lambda: xf.vmap(doubled)(X),
    "callback in vmap, expand_dims": lambda: xf.vmap(lambda r: doubled(r, "expand_dims"))(X),
    "callback in vmap of vmap": lambda: xf.vmap(xf.vmap(doubled))(torch.stack([X, -X])),
    "callback in vmap of grad": lambda: xf.vmap(
        xf.grad(lambda r: (doubled(xf.stop_gradient(r)) * r).sum())
    )(X),
    "callback with a rule": lambda: xf.vmap(xf.grad(lambda r: host_sine(r).sum()))(X),
    "callback with a rule in hessian": lambda: xf.hessian(lambda r: host_sine(r).prod())(X[0]),
}


@pytest.mark.parametrize("name", CASES)
def test_results_under_disable_jit(name: str) -> None:
    want = CASES[name]()
    with xf.disable_jit():
        got = CASES[name]()
    assert xf.tree.structure(got) == xf.tree.structure(want)
    for a, b in zip(xf.tree.leaves(got), xf.tree.leaves(want), strict=True):
        torch.testing.assert_close(a, b.cpu())


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "carry": (
        lambda: xf.scan(lambda c, x: (c + x, None), 0.0, X),
        xf.errors.TreeMismatchError,
        r"carry: float32\[3\] instead of float32\[\]",
    ),
    "pair": (
        lambda: xf.scan(lambda c, x: c, 0.0, X),
        xf.errors.TreeMismatchError,
        r"must return a pair \(carry, y\)",
    ),
    "callback without a vmap_method": (
        lambda: xf.vmap(lambda r: doubled(r, None))(X),
        xf.errors.UnsupportedOpError,
        "it is batched",
    ),
    "callback that is differentiated": (
        lambda: xf.grad(lambda r: doubled(r).sum())(X[0]),
        xf.errors.UnsupportedOpError,
        "it is differentiated",
    ),
}


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_errors_under_disable_jit(name: str, eager: bool) -> None:
    call, error, match = REFUSED[name]
    with xf.disable_jit(eager), pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize("transform", [xf.grad, lambda f: xf.vmap(xf.grad(f)), xf.hessian])
def test_callback_gets_data_of_differentiated_values(transform: Callable[..., Any]) -> None:
    seen: list[float] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        xf.debug.callback(lambda a: seen.append(float((2 * a).numpy().sum())), x)
        return x.square().sum()

    transform(f)(X)
    want, seen[:] = seen[:], []
    with xf.disable_jit():
        transform(f)(X)
    assert want == seen
