"""Derivatives at kinks, at ties and at the ends of the numbers, as in eager torch."""

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

Tensor = torch.Tensor
vjp: Any = torch.func.vjp
INF, NAN = float("inf"), float("nan")

KINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "threshold": lambda x: F.threshold(x, 1.0, 7.0),
    "hardtanh": F.hardtanh,
    "hardtanh from -3 to 2": lambda x: F.hardtanh(x, -3.0, 2.0),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "celu": F.celu,
    "selu": F.selu,
    "logsigmoid": F.logsigmoid,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(-1, 2),
    "clamp, minimum": lambda x: x.clamp(min=0),
    "sgn": torch.sgn,
    "frac": torch.frac,
}
POINTS = torch.tensor([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 6.0, 20.0, -20.0])
ENDS = torch.tensor([1e30, -1e30, INF, -INF])  # NaN: torch gives now 0, now 1, by the size of x

TIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "clamp, minimum": lambda x, y: torch.clamp(x, min=y),
    "clamp, maximum": lambda x, y: torch.clamp(x, max=y),
    "clamp": lambda x, y: torch.clamp(x, y, y + 1),
    "clamp, crossed": lambda x, y: torch.clamp(x, y + 1, y),
    "clamp to one": lambda x, y: torch.clamp(x, y, y),
    "amax": lambda x, y: torch.stack([x, y]).amax(0),
    "max": lambda x, y: torch.stack([x, y]).max(0).values,
    "where": lambda x, y: torch.where(x > y, x, y),
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "logaddexp": torch.logaddexp,
    "xlogy": torch.xlogy,
    "l1_loss": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "huber_loss": lambda x, y: F.huber_loss(x, y, reduction="none"),
    "smooth_l1_loss": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    "logcumsumexp": lambda x, y: torch.logcumsumexp(torch.stack([x, y]), 0)[1],
}


def modes(f: Callable[..., Tensor], *args: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Slopes of an elementwise function by its arguments: in reverse mode, and in forward mode."""

    def both(*args: Tensor) -> Any:
        out, pull = xf.vjp(f, *args)
        forward = []
        for k, a in enumerate(args):
            single = lambda v, k=k: f(*args[:k], v, *args[k + 1 :])  # noqa: E731
            forward.append(xf.jvp(single, (a,), (torch.ones_like(a),))[1])
        return list(pull(torch.ones_like(out))), forward

    return xf.device_get(xf.jit(both)(*args))


def slopes(f: Callable[..., Tensor], *args: Tensor) -> list[Tensor]:
    """The same by eager torch, whose reverse mode is the one that it documents."""
    out, pull = vjp(f, *args)
    return list(pull(torch.ones_like(out)))


@pytest.mark.parametrize("name", KINKS)
def test_derivatives_at_kinks(name: str) -> None:
    x = torch.cat([POINTS, ENDS])
    want = slopes(KINKS[name], x)
    for found in modes(KINKS[name], x):
        torch.testing.assert_close(found, want, equal_nan=True)


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", TIES)
def test_derivatives_at_ties(name: str, dtype: torch.dtype) -> None:
    x, y = (t.flatten() for t in torch.meshgrid(POINTS, POINTS[:9] + 0, indexing="ij"))
    x, y = x.to(dtype), y.to(dtype)
    want = slopes(TIES[name], x, y)
    close: dict[str, Any] = {"rtol": 0.02, "atol": 0.02} if dtype is torch.bfloat16 else {}
    reverse, forward = modes(TIES[name], x, y)
    torch.testing.assert_close(reverse, want, equal_nan=True, **close)
    if name == "atan2":  # In forward mode torch and JAX divide by 0 at the origin.
        want = [slope.masked_fill((x == 0) & (y == 0), NAN) for slope in want]
    torch.testing.assert_close(forward, want, equal_nan=True, **close)


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("name", [n for n in KINKS | TIES if n != "hardsigmoid"])  # torch has none
def test_second_derivatives_at_kinks_and_ties(name: str) -> None:
    x, y = (t.flatten() for t in torch.meshgrid(POINTS, POINTS[:9] + 0, indexing="ij"))
    given = (x.double(), y.double()) if name in TIES else (x.double(),)
    places = tuple(range(len(given)))

    def slope(grad: Any, *args: Tensor) -> Any:
        found = grad(lambda *args: (KINKS | TIES)[name](*args).sum(), places)(*args)
        return sum(g.sum() * (k + 1) for k, g in enumerate(found))

    want = torch.func.grad(functools.partial(slope, torch.func.grad), places)(*given)
    found = xf.grad(functools.partial(slope, xf.grad), places)(*given)
    torch.testing.assert_close(xf.device_get(found), want, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("loss", [F.huber_loss, F.smooth_l1_loss, F.l1_loss, F.mse_loss])
def test_derivatives_of_losses_far_from_zero(loss: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([NAN, INF, -INF, 1.0, 1e30, NAN, 0.5]).to(dtype)
    y = torch.tensor([1.0, 2.0, 3.0, NAN, -1e30, NAN, 0.0]).to(dtype)
    f = functools.partial(loss, reduction="none")
    want = slopes(f, x, y)
    for found in modes(f, x, y):
        torch.testing.assert_close(found, want, equal_nan=True)


@pytest.mark.parametrize("name", ["fmax", "fmin", "maximum", "minimum", "max"])
def test_derivatives_of_maxima_with_nan(name: str) -> None:
    x, y = torch.tensor([NAN, 1.0, NAN, 2.0]), torch.tensor([1.0, NAN, NAN, 2.0])
    want = slopes(TIES[name], x, y)
    reverse, forward = modes(TIES[name], x, y)
    torch.testing.assert_close(reverse, want, equal_nan=True)
    if name in ("fmax", "fmin"):  # In torch 2.14 the NaN that is left out has a slope, too.
        want, forward = (
            [slope.masked_fill(t.isnan(), 0) for slope, t in zip(found, (x, y), strict=True)]
            for found in (want, forward)
        )
    torch.testing.assert_close(forward, want, equal_nan=True)


def test_gradient_of_rows_that_are_not_finite() -> None:
    weight, index = torch.tensor([[NAN], [INF], [1.0]]), torch.tensor([0, 0, 1, 1, 1, 2])
    scales = torch.arange(6.0).unsqueeze(1)

    def f(weight: Tensor) -> Tensor:
        return F.embedding(index, weight, scale_grad_by_freq=True)

    torch.testing.assert_close(xf.jit(f)(weight).cpu(), f(weight), equal_nan=True)
    want = torch.func.vjp(f, weight)[1](scales)
    torch.testing.assert_close(xf.device_get(xf.vjp(f, weight)[1](scales)), want)


def test_logsigmoid_of_infinities() -> None:
    x = torch.cat([POINTS, ENDS])
    for dtype in (torch.float32, torch.bfloat16):
        found = xf.jit(F.logsigmoid)(x.to(dtype)).cpu()
        torch.testing.assert_close(found, F.logsigmoid(x.to(dtype)), equal_nan=True)


def test_softshrink_of_nan_is_nan() -> None:
    x = torch.tensor([0.2, -0.2, NAN, 1.0, -1.0, INF, -INF])
    for bound in (0.5, 0.0, 3e38, INF):

        def f(x: Tensor, bound: float = bound) -> Tensor:
            return F.softshrink(x, bound)

        for dtype in (torch.float32, torch.bfloat16):
            try:
                want = f(x.to(dtype))
            except RuntimeError:  # newer torch takes no infinite bound
                assert bound == INF
                continue
            torch.testing.assert_close(xf.jit(f)(x.to(dtype)).cpu(), want, equal_nan=True)


@pytest.mark.parametrize("bounds", [(NAN, None), (None, NAN)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_clamp_nan_as_only_bound(bounds: Any, dtype: torch.dtype) -> None:
    """As torch does it; but the slope is zero."""
    x = torch.tensor([2.0, -1.0, 7.0]).to(dtype)
    want = x.clamp(*bounds)
    got = xf.jit(lambda x: x.clamp(*bounds))(x).cpu()
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    if dtype.is_floating_point:
        got = xf.jit(lambda x: x.clone().clamp_(*bounds))(x).cpu()
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        for one in (xf.grad, torch.func.grad):
            assert not one(lambda x: x.clamp(*bounds).sum())(x).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_logsumexp_with_infinities(dtype: torch.dtype) -> None:
    rows = [
        [INF, 1, 2],
        [-INF, 1, 2],
        [-INF, -INF, -INF],
        [INF, -INF, 0],
        [NAN, 1, 2],
        [INF, INF, 0],
    ]
    x = torch.tensor(rows, dtype=dtype)

    def fun(x: Tensor) -> Tensor:
        return torch.logsumexp(x, 1)

    torch.testing.assert_close(xf.device_get(xf.jit(fun)(x)), fun(x), equal_nan=True)
    torch.testing.assert_close(
        xf.device_get(xf.vmap(lambda r: r.logsumexp(0))(x)), fun(x), equal_nan=True
    )
    wanted = x.clone().requires_grad_()
    fun(wanted).sum().backward()
    got = xf.device_get(xf.grad(lambda x: fun(x).sum())(x))
    torch.testing.assert_close(got, wanted.grad, equal_nan=True)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "mish": F.mish,
    "silu": F.silu,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_far_from_zero(name: str, dtype: torch.dtype) -> None:
    f = ACTIVATIONS[name]
    x = torch.tensor([-6e4, -250.0, -20.0, -12.0, -8.0, -5.0, 3.0, 10.0, 19.0, 6e4], dtype=dtype)
    found = xf.device_get(xf.jit(f)(x))
    torch.testing.assert_close(found, f(x.double()).to(dtype), atol=2e-6, rtol=1e-2)
    (want,) = slopes(f, x.double())
    for found in modes(f, x):
        torch.testing.assert_close(found, [want.to(dtype)], atol=1e-5, rtol=1e-2)


def second(f: Callable[..., Tensor], *args: Tensor) -> list[Tensor]:
    """The second derivative of an elementwise function by its first argument, in all orders."""

    def pushed(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: xf.jvp(f, (x,), (torch.ones_like(x),))[1]

    def pulled(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return xf.grad(lambda x: f(x).sum())

    def single(x: Tensor) -> Tensor:
        return f(x, *args[1:])

    ways = [outer(inner(single)) for outer in (pushed, pulled) for inner in (pushed, pulled)]
    ways.append(lambda x: xf.hessian(lambda x: single(x).sum())(x).sum(1))
    return [xf.device_get(xf.jit(way)(args[0])) for way in ways]


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_second_derivatives(name: str) -> None:
    f, step = ACTIVATIONS[name], 1e-5
    x = torch.tensor([-6e4, -250.0, -20.0, -5.0, 0.0, 3.0, 10.0, 250.0, 6e4], dtype=torch.float64)
    want = (slopes(f, x + step)[0] - slopes(f, x - step)[0]) / (2 * step)
    want[x.abs() > 100] = 0
    for dtype in (torch.float64, torch.float32):
        for found in second(f, x.to(dtype)):
            torch.testing.assert_close(found, want.to(dtype), atol=1e-5, rtol=1e-5)


SUMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "masked": lambda x, y: torch.masked.logaddexp(x, y, input_mask=x > -5),
    "logsumexp": lambda x, y: torch.logsumexp(torch.stack([x, y]), 0),
    "logcumsumexp": lambda x, y: torch.logcumsumexp(torch.stack([x, y]), 0)[1],
}


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("name", SUMS)
def test_logaddexp_and_logsumexp_second_derivatives(name: str) -> None:
    """Where one is -inf, or smaller by more than an exponential holds, the other is the sum."""
    f, step = SUMS[name], 1e-4
    x = torch.tensor([0.5, 0.5, 2.0, -INF, 1.0, 800.0, -800.0, -9.0], dtype=torch.float64)
    y = torch.tensor([0.5, 1.5, -1.0, 2.0, -INF, 0.0, 0.0, -9.5], dtype=torch.float64)
    want = (f(x + step, y) - 2 * f(x, y) + f(x - step, y)) / step**2
    want[3:5] = 0  # of -inf, the difference is no number
    for dtype in (torch.float64, torch.float32):
        for found in second(f, x.to(dtype), y.to(dtype)):
            torch.testing.assert_close(found, want.to(dtype), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_logaddexp_derivatives_with_infinities(name: str, dtype: torch.dtype) -> None:
    """Of two equal infinities they are NaN, as in torch."""
    points = torch.tensor([-INF, INF, NAN, 0.0, 1.0, -300.0, 2e4], dtype=dtype)
    x, y = (t.flatten() for t in torch.meshgrid(points, points, indexing="ij"))
    want = slopes(SUMS[name], x, y)
    for found in modes(SUMS[name], x, y):
        torch.testing.assert_close(found, want, equal_nan=True)


@pytest.mark.parametrize("eps", [0.2, 0.5, 0.75, 1.0])
def test_logit_with_crossed_bounds(eps: float) -> None:
    x = torch.tensor([-1.0, 0.3, 0.6, 0.9, 2.0, NAN])
    found = xf.jit(lambda x: torch.logit(x, eps))(x).cpu()
    torch.testing.assert_close(found, torch.logit(x, eps), equal_nan=True)


@pytest.mark.parametrize("f", [torch.logaddexp, torch.logaddexp2, torch.hypot, torch.atan2])
def test_jvp_of_scalars_keeps_dtype(f: Callable[..., Tensor]) -> None:
    """An operation composed of others multiplies scalars by numbers, which count less than they."""
    x = torch.tensor(0.3), torch.tensor(0.6)
    found, want = xf.jvp(f, x, x), torch.func.jvp(f, x, x)
    torch.testing.assert_close(xf.device_get(found), want)


STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "ceil": lambda x: torch.ceil(x - 1),
    "floor": torch.floor,
    "round": torch.round,
    "round to decimals": lambda x: torch.round(x, decimals=-1),
    "trunc": torch.trunc,
    "fix": torch.fix,
    "sign": lambda x: torch.sign(x * 0),
    "sgn": lambda x: torch.sgn(x * 0),
    "div": lambda x: torch.div(x, 2.0, rounding_mode="floor"),
    "divide": lambda x: x.divide(x + 1, rounding_mode="trunc"),
    "comparison": lambda x: (x > 1).to(x.dtype),
    "argmax": lambda x: x.argmax().to(x.dtype),
    "call": lambda x: xf.jit(lambda x: (torch.floor(x) + (x > 1), x * 2))(x)[0],
    "checkpoint": lambda x: xf.checkpoint(lambda x: (x > 1) * torch.trunc(x))(x),
    "branches": lambda x: xf.cond(x.sum() > 0, torch.floor, lambda x: (x > 1).to(x.dtype), x),
}


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("name", STEPS)
def test_step_functions_have_no_tangent(name: str) -> None:
    """A tangent of zeros would meet slopes without a limit: atan2 and the root of zero."""
    x = torch.tensor([0.25, 0.375])

    def f(x: Tensor) -> Tensor:
        step = STEPS[name](x)
        return torch.atan2(step, step) + step.abs().sqrt() + x

    for found in modes(f, x):
        torch.testing.assert_close(found, [torch.ones(2)])
    for found in second(f, x):
        assert not found.any()


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("f", [torch.mean, torch.nanmean, torch.std])
def test_mean_and_std_derivatives_of_empty_array(f: Callable[[Tensor], Tensor]) -> None:
    x = torch.zeros(0)
    found, want = xf.jvp(f, (x,), (x,)), torch.func.jvp(f, (x,), (x,))
    torch.testing.assert_close(xf.device_get(found), want, equal_nan=True)
    assert xf.grad(f)(x).shape == (0,)


def test_polar_derivative_at_size_0() -> None:
    """torch's reverse mode takes the direction from the result, and gives 0."""
    angle = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)

    def f(size: Tensor) -> Tensor:
        return torch.view_as_real(torch.polar(size, angle)).sum(0)

    want = torch.stack([angle.cos(), angle.sin()])
    for jacobian in (xf.jacrev, xf.jacfwd):
        found = xf.device_get(jacobian(f)(torch.zeros(3, dtype=torch.float64)))
        torch.testing.assert_close(found, want)


@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
def test_triangular_solve_tangent_of_unread_triangle(upper: bool, transpose: bool) -> None:
    """torch's forward mode takes it for a change of the solution."""
    b, a = torch.randn(3, 2, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)

    def f(a: Tensor) -> Tensor:
        return torch.triangular_solve(b, a, upper=upper, transpose=transpose).solution

    want = torch.func.jacrev(f)(a)
    for jacobian in (xf.jacrev, xf.jacfwd):
        torch.testing.assert_close(xf.device_get(jacobian(f)(a)), want)


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2), (3,)])
@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_nll_loss_derivative_of_label_out_of_bounds(shape: tuple[int, ...], reduction: str) -> None:
    """The loss reads the last class, so it depends on that one."""
    x = torch.randn(shape, dtype=torch.float64)
    target = torch.tensor([9, -1, 1, -100])[: shape[0]]
    if len(shape) == 3:
        target = torch.stack([target, target.flip(0)], 1)
    target = target[0] if len(shape) == 1 else target
    inside = torch.where(target == -100, -100, torch.where(target == 1, 1, 2))
    weight = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)

    def f(x: Tensor, target: Tensor) -> Tensor:
        return F.nll_loss(x, target, weight, reduction=reduction).sum()

    want = torch.func.grad(f)(x, inside)
    for gradient in (xf.grad(f), xf.jacfwd(f)):
        torch.testing.assert_close(xf.device_get(xf.jit(gradient)(x, target)), want)


def test_poisson_nll_loss_derivative_of_target_0() -> None:
    """Stirling's term counts above 1 only; torch's reverse mode gives NaN at 0."""
    x, target = torch.tensor([0.5, -0.5, 2.0]), torch.tensor([0.0, 1.0, 4.0])

    def f(target: Tensor) -> Tensor:
        return F.poisson_nll_loss(x, target, full=True, reduction="sum")

    torch.testing.assert_close(xf.device_get(xf.jit(f)(target)), f(target))
    want = -x + torch.tensor([0.0, 0.0, math.log(4.0) + 1 / 8])
    for gradient in (xf.grad, xf.jacfwd):
        torch.testing.assert_close(xf.device_get(gradient(f)(target)), want)


@pytest.mark.parametrize("groups", [1, 2])
def test_conv_transpose_gradient_with_output_padding_beyond_stride(groups: int) -> None:
    x, w = torch.randn(2, 2, 4, 4), torch.randn(2, 2, 3, 3)

    def f(x: Tensor, w: Tensor) -> Tensor:
        made = F.conv_transpose2d(x, w, None, (3, 2), (1, 2), (2, 3), groups, (4, 4))
        return made.square().sum()

    want = torch.func.grad(f, (0, 1))(x, w)
    found = xf.device_get(xf.jit(xf.grad(f, argnums=(0, 1)))(x, w))
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(0, 2), (0, 4, 3)])
def test_group_norm_gradient_of_empty_batch(shape: tuple[int, ...]) -> None:
    x, weight = torch.zeros(shape), torch.ones(shape[1])

    def f(x: Tensor, weight: Tensor) -> Tensor:
        return F.group_norm(x, 2, weight).sum()

    found = xf.device_get(xf.jit(xf.grad(f, argnums=(0, 1)))(x, weight))
    assert found[0].shape == shape
    assert not found[1].any()
