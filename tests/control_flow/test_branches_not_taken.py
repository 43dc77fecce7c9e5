"""A branch, or a step, that an example of a `vmap` does not take adds nothing to derivatives.

Under a batched predicate all branches are computed, where log(0) and sqrt(0) have infinite
derivatives. The right values are those of each example by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

ROWS = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
TABLE = torch.stack([ROWS, ROWS + 0.5])
WEIGHT = torch.tensor(2.0, dtype=torch.float64)

ORDERS: dict[str, Callable[..., Any]] = {
    "forward": lambda f, n: xf.jacfwd(f, argnums=n),
    "reverse": lambda f, n: xf.jacrev(f, argnums=n),
    "jit": lambda f, n: xf.jacrev(xf.jit(f), argnums=n),
    "forward forward": lambda f, n: xf.jacfwd(xf.jacfwd(f, argnums=n), argnums=n),
    "forward reverse": lambda f, n: xf.jacfwd(xf.jacrev(f, argnums=n), argnums=n),
    "reverse forward": lambda f, n: xf.jacrev(xf.jacfwd(f, argnums=n), argnums=n),
    "reverse reverse": lambda f, n: xf.jacrev(xf.jacrev(f, argnums=n), argnums=n),
}


def _cond(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return xf.cond(x > 0, lambda x: torch.log(w * x), lambda x: w * x, x)


def _switch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    index = torch.where(x > 0, torch.where(x > 0.5, 2, 1), 0)
    branches = [lambda x: w * x, lambda x: torch.sqrt(x * w), lambda x: torch.log(x) ** 2 / w]
    return xf.switch(index, branches, x)


def _nested(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return xf.cond(x >= 0, lambda x: _cond(x, w), lambda x: 1 / (x * w), x)


def _in_scan(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return xf.scan(lambda c, y: (c * y + _cond(c * y, w), None), x, ROWS + 0.5)[0]


def _custom(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    log = xf.custom_vjp(torch.log)
    log.defvjp(lambda x: (torch.log(x), x), lambda x, ct: (ct / x,))
    return xf.cond(x > 0, lambda x: log(x * w), lambda x: w * x, x)


def _same(got: Any, want: Any) -> None:
    got, want = xf.tree.leaves(xf.device_get(got)), xf.tree.leaves(xf.device_get(want))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)


def _rows(f: Callable[..., torch.Tensor], mapped: bool) -> Callable[..., torch.Tensor]:
    def total(w: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if mapped:
            return xf.vmap(lambda x: f(x, w))(rows).sum()
        return torch.stack([f(x, w) for x in rows]).sum()

    return total


@pytest.mark.sample(16, seed=0)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("f", [_cond, _switch, _nested, _in_scan])
def test_derivatives_of_vmapped_choice(f: Callable[..., torch.Tensor], order: str) -> None:
    got, want = (ORDERS[order](_rows(f, mapped), (0, 1))(WEIGHT, ROWS) for mapped in (True, False))
    _same(got, want)
    assert all(t.isfinite().all() for t in xf.tree.leaves(xf.device_get(want)))


def test_gradient_of_vmapped_cond_of_custom_vjp() -> None:
    got, want = (xf.grad(_rows(_custom, m), argnums=(0, 1))(WEIGHT, ROWS) for m in (True, False))
    _same(got, want)


@pytest.mark.parametrize("f", [_cond, _switch, _nested])
def test_gradient_of_twice_vmapped_choice(f: Callable[..., torch.Tensor]) -> None:
    def total(w: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return xf.vmap(lambda r: _rows(f, True)(w, r))(table).sum()

    def plain(w: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return torch.stack([_rows(f, False)(w, r) for r in table]).sum()

    got, want = (xf.grad(g, argnums=(0, 1))(WEIGHT, TABLE) for g in (total, plain))
    _same(got, want)
    outside = xf.vmap(xf.grad(_rows(f, True), argnums=(0, 1)), in_axes=(None, 0))(WEIGHT, TABLE)
    _same((outside[0].sum(0), outside[1]), want)


def test_gradient_of_vmap_over_closed_over_value_of_vmapped_cond() -> None:
    """The outer examples share the index, and differ in the weight."""
    weights = torch.tensor([2.0, 3.0], dtype=torch.float64)
    got = xf.grad(lambda w: xf.vmap(lambda w: _rows(_cond, True)(w, ROWS))(w).sum())(weights)
    _same(got, torch.stack([xf.grad(_rows(_cond, False))(w, ROWS) for w in weights]))


@pytest.mark.parametrize("order", ["forward", "forward forward"])
def test_derivatives_of_vmapped_while_loop(order: str) -> None:
    """Examples that are done have steps like sqrt(0) computed in vain."""

    def steps(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        first = (x, torch.where(x > 0, 0, 2))
        return xf.while_loop(lambda c: c[1] < 2, lambda c: (torch.sqrt(w * c[0]), c[1] + 1), first)[
            0
        ]

    got, want = (
        ORDERS[order](_rows(steps, mapped), (0, 1))(WEIGHT, ROWS) for mapped in (True, False)
    )
    _same(got, want)


def test_gradient_of_vmapped_cond_and_while_loop_under_disable_jit() -> None:
    def safe(x: torch.Tensor) -> torch.Tensor:
        return xf.cond(x > 0, torch.log, torch.zeros_like, x)

    def root(x: torch.Tensor) -> torch.Tensor:
        first = (x, torch.where(x > 0, 0, 1))
        return xf.while_loop(lambda c: c[1] < 1, lambda c: (torch.sqrt(c[0]), c[1] + 1), first)[0]

    with xf.disable_jit():
        got = xf.grad(lambda r: xf.vmap(safe)(r).sum())(ROWS)
        roots = xf.grad(lambda r: xf.vmap(root)(r).sum())(ROWS)
    assert got.tolist() == [0, 1, 0]
    assert roots.tolist() == [1, 0.5, 1]
