"""torch's own forward mode (`torch.autograd.forward_ad`) through functions of xfunc, against eager
torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

import xfunc as xf

close = torch.testing.assert_close

_generator = torch.Generator().manual_seed(0)
X = torch.randn(3, generator=_generator, dtype=torch.float64)
DOT = torch.randn(3, generator=_generator, dtype=torch.float64)
W = torch.randn(3, 3, generator=_generator, dtype=torch.float64)


def product(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * x


def summed(x: torch.Tensor) -> torch.Tensor:
    return product(x).sum()


def of_array(x: torch.Tensor) -> torch.Tensor:
    return product(x) if x.shape[0] > 1 else x


# Functions of xfunc, and the same in torch.
CASES: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[torch.Tensor], Any]]] = {
    "jit": (xf.jit(product), product),
    "jit of a product": (xf.jit(lambda x: W @ x), lambda x: W @ x),
    "jit of torch.vmap": (
        xf.jit(lambda x: torch.vmap(lambda w: w * x)(W)),
        lambda x: W * x,
    ),
    "a captured tensor": (lambda x: xf.jit(lambda w: w * x)(W), lambda x: W * x),
    "grad": (xf.grad(summed), torch.func.grad(summed)),
    "value_and_grad": (
        xf.value_and_grad(summed),
        lambda x: torch.func.grad_and_value(summed)(x)[::-1],
    ),
    "vjp": (
        lambda x: (xf.vjp(product, x)[0], xf.vjp(product, x)[1](DOT)[0]),
        lambda x: (product(x), torch.func.vjp(product, x)[1](DOT)[0]),
    ),
    "jvp": (
        lambda x: xf.jvp(product, (x,), (DOT,)),
        lambda x: (product(x), (x.cos() * x + x.sin()) * DOT),
    ),
    "linearize": (
        lambda x: (xf.linearize(product, x)[0], xf.linearize(product, x)[1](DOT)),
        lambda x: (product(x), (x.cos() * x + x.sin()) * DOT),
    ),
    "vmap": (xf.vmap(product), product),
    "jacrev": (xf.jacrev(product), torch.func.jacrev(product)),
    "jacfwd": (xf.jacfwd(product), lambda x: torch.diag(x.cos() * x + x.sin())),
    "scan": (
        lambda x: xf.scan(lambda c, y: (c * y, c + y), x.sum(), x),
        lambda x: (x.sum() * x.prod(), x.sum() * torch.stack([x[0] / x[0], x[0], x[0] * x[1]]) + x),
    ),
    "cond": (lambda x: xf.cond(x.sum() > 9, torch.cos, torch.sin, x), torch.sin),
    "fori_loop": (lambda x: xf.fori_loop(0, 3, lambda i, c: c * c, x), lambda x: x**8),
    "while_loop": (
        lambda x: xf.while_loop(lambda c: c.square().sum() < 50, lambda c: 2 * c, x),
        lambda x: x * 2 ** ((50 / x.square().sum()).log2() / 2).ceil().detach(),
    ),
    "checkpoint": (xf.checkpoint(product), product),
    "dynamic shapes": (xf.jit(of_array, dynamic_shapes=[(xf.Dim("n"),)]), product),
    "donation": (lambda x: xf.jit(product, donate_argnums=0)(x.clone()), product),
}


def unpacked(result: Any) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    found = [forward_ad.unpack_dual(leaf) for leaf in xf.tree.leaves(result)]
    return [(f.primal.cpu(), None if f.tangent is None else f.tangent.cpu()) for f in found]


@pytest.mark.parametrize("case", CASES)
def test_a_dual_tensor_keeps_its_tangent(case: str) -> None:
    ours, theirs = CASES[case]
    ours(X)  # A call like the last one must not be taken for it.
    with forward_ad.dual_level():
        want = unpacked(theirs(forward_ad.make_dual(X, DOT)))
        assert all(dot is not None for _, dot in want)
        for x in (forward_ad.make_dual(X, DOT), forward_ad.make_dual(*xf.device_put((X, DOT)))):
            close(unpacked(ours(x)), want)
            close(unpacked(ours(x)), want)
        with torch.no_grad():
            close(unpacked(ours(forward_ad.make_dual(X, DOT))), want)
        assert all(dot is None for _, dot in unpacked(ours(X)))


@pytest.mark.parametrize("case", ["jit", "vmap", "checkpoint", "vjp", "scan"])
def test_reverse_mode_over_a_dual_tensor(case: str) -> None:
    """The tangent is differentiated with respect to the primal."""

    def derivative(fun: Callable[[torch.Tensor], Any]) -> torch.Tensor:
        x = X.clone().requires_grad_()
        with forward_ad.dual_level():
            result = fun(forward_ad.make_dual(x, DOT))
            dots = [forward_ad.unpack_dual(leaf).tangent for leaf in xf.tree.leaves(result)]
            total = torch.stack([dot.sum().cpu() for dot in dots if dot is not None]).sum()
            return torch.autograd.grad(total, x)[0]

    ours, theirs = CASES[case]
    close(derivative(ours), derivative(theirs))


def test_forward_mode_is_traced_in_a_level_of_ones_own() -> None:
    """A pushforward is traced by torch.func.jvp, which would open a level itself."""
    jitted = xf.jit(lambda x: xf.jvp(product, (x,), (2 * x,))[1])
    with forward_ad.dual_level():
        dot = forward_ad.unpack_dual(jitted(forward_ad.make_dual(X, DOT))).tangent
    assert dot is not None
    close(dot.cpu(), torch.func.jvp(lambda x: (x.cos() * x + x.sin()) * 2 * x, (X,), (DOT,))[1])
