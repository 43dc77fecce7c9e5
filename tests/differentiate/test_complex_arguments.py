"""Derivatives with respect to complex arguments: torch's, ``df/dx + i df/dy`` of ``x + iy``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import xfunc as xf

with torch.random.fork_rng():
    torch.manual_seed(0)
    Z, TANGENT = torch.randn(2, 4, dtype=torch.complex128).unbind()
    W = torch.randn(4, 4, dtype=torch.complex128)
    R = torch.randn(4, dtype=torch.float64)


def real(v: Tensor) -> Tensor:
    """A real number that is not a holomorphic function."""
    return (v.real.sin() * 1.3 + v.imag * 0.7 + v.abs() ** 2).sum()


def eager_scan(f: Callable[[Any, Tensor], tuple[Any, Tensor]], c: Any, xs: Tensor) -> Any:
    ys = []
    for x in xs:
        c, y = f(c, x)
        ys.append(y)
    return c, torch.stack(ys)


def steps(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return c * x + Z.conj() * 0.3, c.conj() * x


@xf.custom_vjp
def squared(z: Tensor) -> Tensor:
    return z * z.conj()


squared.defvjp(lambda z: (z * z.conj(), z), lambda z, g: (2 * g.real * z,))


# Functions for xfunc, and their equals for torch where these differ.
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor] | None]] = {
    "abs": (lambda z: (z.abs() ** 2).sum(), None),
    "exp": (lambda z: real(z.exp()), None),
    "matmul": (lambda z: real(W @ z), None),
    "conj": (lambda z: real(z.conj() * z * z), None),
    "times real": (lambda z: real(z * R), None),
    "fft": (lambda z: real(torch.fft.fft(z)), None),
    "irfft": (lambda z: torch.fft.irfft(z).sum(), None),
    "norm": (torch.linalg.norm, None),
    "solve": (lambda z: real(torch.linalg.solve(W + torch.diag(z), z)), None),
    "view_as_real": (lambda z: torch.view_as_real(z).pow(3).sum(), None),
    "where": (lambda z: real(torch.where(z.real > 0, z, z.conj())), None),
    "in place": (lambda z: real((z * 2).mul_(z).add_(1j)), None),
    "polar": (lambda z: real(torch.polar(z.abs(), z.angle() * 2)), None),
    "division": (lambda z: real(1 / z + z / W.sum()), None),
    "scan": (
        lambda z: sum(map(real, xf.scan(steps, z, W)), torch.zeros(())),
        lambda z: sum(map(real, eager_scan(steps, z, W)), torch.zeros(())),
    ),
    "cond": (
        lambda z: real(xf.cond(R.sum() < 9, lambda z: z * z.conj() * 2j, torch.exp, z)),
        lambda z: real(z * z.conj() * 2j),
    ),
    "checkpoint": (
        lambda z: real(xf.checkpoint(lambda z: z.exp() * z.conj())(z)),
        lambda z: real(z.exp() * z.conj()),
    ),
    "vmap": (lambda z: xf.vmap(lambda row: real(row * z))(W).sum(), lambda z: real(W * z)),
    "custom_vjp": (lambda z: real(squared(z)), lambda z: real(z * z.conj())),
}


@pytest.mark.sample(5, seed=0)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient_of_complex_argument_as_torch_has_it(name: str) -> None:
    f, eager = FUNCTIONS[name]
    want = torch.func.grad(eager or f)(Z)
    assert_close = torch.testing.assert_close
    assert_close(xf.jit(xf.grad(f))(Z).cpu(), want)
    value, (slope,) = xf.value_and_grad(f, argnums=(0,))(Z)
    assert_close(slope.cpu(), want)
    assert_close(value.cpu(), (eager or f)(Z))
    assert_close(xf.vmap(xf.grad(f))(torch.stack([TANGENT, Z]))[1].cpu(), want)
    _, pull = xf.vjp(f, Z)
    assert_close(pull(torch.tensor(2.0, dtype=torch.float64))[0].cpu(), 2 * want)
    along = (want.conj() * TANGENT).real.sum()
    if name != "custom_vjp":
        assert_close(xf.linearize(f, Z)[1](TANGENT).cpu(), along)
        assert_close(xf.jvp(f, (Z,), (TANGENT,))[1].cpu(), along)


@pytest.mark.parametrize("name", ["exp", "scan", "cond", "checkpoint"])
def test_second_derivative_of_complex_argument_as_torch_has_it(name: str) -> None:
    f, eager = FUNCTIONS[name]
    want = torch.func.grad(lambda z: real(torch.func.grad(eager or f)(z)))(Z)
    torch.testing.assert_close(xf.grad(lambda z: real(xf.grad(f)(z)))(Z).cpu(), want)


def test_pullback_of_complex_result_as_torch_has_it() -> None:
    for f in (torch.exp, torch.fft.fft, lambda z: W @ z.conj()):
        want = torch.func.vjp(f, Z)[1](TANGENT)[0]
        torch.testing.assert_close(xf.vjp(f, Z)[1](TANGENT)[0].cpu(), want)


def test_complex_weights_of_a_module() -> None:
    class Spectral(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(W.clone())
            self.bias = torch.nn.Parameter(R.clone())

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.irfft(torch.fft.rfft(x)[..., :4] @ self.weight, n=8) + self.bias.sum()

    module, x = Spectral(), torch.randn(3, 8, dtype=torch.float64)
    module(x).square().sum().backward()
    apply, params, buffers = xf.functional(module)
    slopes = xf.jit(xf.grad(lambda p: apply(p, buffers, x)[0].square().sum()))(params)
    for name, p in module.named_parameters():
        torch.testing.assert_close(slopes[name].cpu(), p.grad)
    sgd = xf.optim.sgd(0.1)
    updates, _ = sgd.update(slopes, sgd.init(params))
    assert xf.optim.apply_updates(params, updates)["weight"].is_complex()


@pytest.mark.parametrize("transform", [xf.jacrev, xf.jacfwd, xf.hessian])
def test_jacobian_of_complex_argument_is_refused(transform: Any) -> None:
    match = r"with respect to z, which is complex128\[4\], not real(.|\n)*view_as_real"
    with pytest.raises(TypeError, match=match):
        transform(lambda z: z.abs())(Z)
