"""Infinities, NaN and zeros: 0 times infinity is NaN, but a missing tangent stays missing."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

vjp: Any = torch.func.vjp
INF, NAN = float("inf"), float("nan")
X = torch.tensor([INF, 2.0, -3.0])
TWO = torch.full((3,), 2.0)

# Some factor of the result is no function of x, so that x alone decides where the slope is NaN.
WITH_CONSTANTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mul": lambda x: (torch.zeros(3) + 2) * x,
    "half": lambda x: x.bfloat16() * (torch.ones(3).bfloat16() + 1),
    "div": lambda x: TWO / x,
    "truth values": lambda x: (torch.arange(3) < TWO) / x.bfloat16(),
    "matmul": lambda x: x @ torch.ones(3, 3),
    "matmul, right": lambda x: torch.ones(3, 3) @ x,
    "bmm": lambda x: torch.bmm(x.expand(2, 3, 3), torch.ones(2, 3, 3)),
    "einsum": lambda x: torch.einsum("i,ij->j", x, torch.ones(3, 3)),
    "dot": lambda x: torch.dot(x, TWO),
    "conv1d": lambda x: F.conv1d(x[None, None], torch.ones(1, 1, 2)),
    "pow": lambda x: x ** torch.tensor([2, 3, 1]),
    "atan2": lambda x: torch.atan2(x, TWO),
    "hypot": lambda x: torch.hypot(x, TWO),
    "addcmul": lambda x: torch.addcmul(x, TWO, TWO),
    "lerp": lambda x: torch.lerp(x, TWO, TWO / 4),
    "layer_norm": lambda x: F.layer_norm(x[1:], (2,), torch.tensor([INF, 1.0])),
    "cat": lambda x: torch.cat([TWO, TWO * 2]) * torch.cat([x, x]),
    "sub": lambda x: (TWO - torch.ones(3).cumsum(0)) * x,
    "sum": lambda x: x * TWO.sum(),
    "where": lambda x: torch.where(x > 1, TWO, torch.ones(3)) * x,
    "index_put": lambda x: torch.zeros(3).index_put((torch.tensor([1]),), TWO[0]) * x,
    "scatter": lambda x: torch.zeros(3).scatter(0, torch.tensor([1]), TWO) * x,
}


def along(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The derivative along ones, by eager torch: the derivative of the pullback, a linear map."""
    out = f(x)
    _, push = vjp(lambda ct: vjp(f, x)[1](ct), torch.zeros_like(out))
    return push((torch.ones_like(x),))[0]


@pytest.mark.parametrize("name", WITH_CONSTANTS)
def test_jvp_constant_factor_has_no_tangent(name: str) -> None:
    f = WITH_CONSTANTS[name]
    want = along(f, X)
    for batched in (False, True):
        if batched:
            found = xf.vmap(lambda t: xf.jvp(f, (X,), (t,))[1])(torch.ones(2, 3))[1]
        else:
            found = xf.jvp(f, (X,), (torch.ones(3),))[1]
        torch.testing.assert_close(xf.device_get(found), want, equal_nan=True)


def test_jvp_zero_tangent_times_infinity_is_nan() -> None:
    zero = torch.zeros(3)
    found = xf.jvp(lambda x: x * X, (zero,), (zero,))[1]
    assert xf.device_get(found).isnan().tolist() == [True, False, False]


@pytest.mark.parametrize(
    "product",
    [
        lambda mask, x: mask * x,
        lambda mask, x: mask.to(x.dtype) * x,
        lambda mask, x: (x == x) * x * mask,
        lambda mask, x: (mask[None].to(x.dtype) * x.expand(2, -1)).sum(0),
        lambda mask, x: x.mul(mask).to(torch.complex64),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_multiplication_by_bool_keeps_nan(
    product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    mask = torch.tensor([False, True, False, True, False])
    x = torch.tensor([INF, INF, NAN, NAN, -2.0], dtype=dtype)
    found = xf.device_get(xf.jit(product)(mask, x))
    torch.testing.assert_close(found, product(mask, x), equal_nan=True)


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_scatter_reduce_amax_gradient_with_nan(reduce: str) -> None:
    x = torch.tensor([[1.0, NAN, 2.0], [3.0, 4.0, NAN]])
    src = torch.tensor([[NAN, 1.0, 2.0], [0.5, -1.0, 5.0]])
    index = torch.tensor([[0, 1, 1], [0, 1, 0]])

    def f(x: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        return torch.scatter_reduce(x, 0, index, src, reduce)

    found = xf.vjp(f, x, src)[1](torch.ones(2, 3))
    want = vjp(f, x, src)[1](torch.ones(2, 3))
    torch.testing.assert_close(xf.device_get(found), want, equal_nan=True)


@pytest.mark.parametrize("name", ["sort", "stable", "argsort", "msort", "topk", "kthvalue"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sort_puts_nan_last_for_either_sign(name: str, dtype: torch.dtype) -> None:
    order: Callable[[torch.Tensor], Any] = {
        "sort": lambda x: tuple(x.sort()),
        "stable": lambda x: tuple(x.sort(stable=True, descending=True)),
        "argsort": lambda x: (x.argsort(),),
        "msort": lambda x: (x.msort(),),
        "topk": lambda x: tuple(x.topk(2)),
        "kthvalue": lambda x: tuple(x.kthvalue(3)),
    }[name]
    x = torch.tensor([-2.0, NAN, INF, -INF], dtype=dtype)
    for f in (order, lambda x: order(-x)):
        torch.testing.assert_close(xf.device_get(xf.jit(f)(x)), f(x), equal_nan=True)


@pytest.mark.parametrize(
    "x", [[-INF, -INF, 1.0, 2.0], [INF, 1.0, 2.0], [1.0, -INF, 2.0], [1e30, 1.0, -1e30]]
)
def test_logcumsumexp_jvp_with_infinities(x: list[float]) -> None:
    at, direction = torch.tensor(x), torch.tensor([0.5, 2.0, -1.0, 3.0][: len(x)])

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.logcumsumexp(x, 0)

    want = torch.func.jvp(f, (at,), (direction,))
    got = xf.jit(lambda x, d: xf.jvp(f, (x,), (d,)))(at, direction)
    torch.testing.assert_close(xf.device_get(got), want, equal_nan=True)


@pytest.mark.parametrize("exponent", [0, 0j, 1, 2, -1, -0.5, 0.5, 1 + 1j, 1j, -1j, 2 - 1j])
def test_pow_of_complex_zero_matches_torch(exponent: complex) -> None:
    z = torch.tensor([0j, 1 + 1j, 0j, -2j])
    got = xf.jit(lambda z: z**exponent)(z).cpu()
    torch.testing.assert_close(
        torch.view_as_real(got), torch.view_as_real(z**exponent), equal_nan=True
    )


def test_logcumsumexp_grad_of_jvp() -> None:
    x = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)

    def pushed(x: torch.Tensor) -> torch.Tensor:
        return xf.jvp(lambda x: torch.logcumsumexp(x, 0), (x,), (x.detach() + 1,))[1].sin().sum()

    step = 1e-6 * torch.eye(3, dtype=torch.float64)

    direction = x + 1

    def slopes(x: torch.Tensor) -> torch.Tensor:
        changes = [(x[: k + 1].softmax(0) * direction[: k + 1]).sum() for k in range(3)]
        return torch.stack(changes).sin().sum()

    want = torch.stack([(slopes(x + s) - slopes(x - s)) / 2e-6 for s in step])
    torch.testing.assert_close(xf.jit(xf.grad(pushed))(x).cpu(), want, rtol=1e-6, atol=1e-8)


def _loop(y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return xf.while_loop(lambda c: c[0].sum() < 20, lambda c: (c[0] * 2, c[1] * 1), (y, x))


def _scan(y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    carry, ys = xf.scan(lambda c, _: (c * 2, (c + 1, x * 1)), y, None, 2)
    return carry, ys[1]


AT_ZERO = torch.tensor([1.0, 0.0])
CONSTRUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "jit": lambda y, x: xf.jit(lambda y, x: (y * 2, x * 1))(y, x),
    "checkpoint": lambda y, x: xf.checkpoint(lambda y, x: (y * 2, x * 1))(y, x),
    "scan": _scan,
    "carry": lambda y, x: xf.scan(lambda c, _: ((c[0] * 2, c[1] * 1), None), (y, x), None, 2)[0],
    "while": _loop,
    "cond": lambda y, x: xf.cond(
        y[0] > 0, lambda y, x: (y * 2, x * 1), lambda y, x: (y, x * 2), y, x
    ),
}


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_jvp_constant_through_construct_has_no_tangent(name: str) -> None:
    """JAX gives 0 here: there is no tangent to multiply with the infinite slope of 1 / x at 0."""

    def f(y: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z, constant = CONSTRUCTS[name](y, x)
        return z, 1 / constant

    y = torch.tensor([2.0, 3.0])
    both, none = torch.stack([y, y]), None

    def pushed(y: torch.Tensor, x: torch.Tensor) -> Any:
        return xf.jvp(lambda y: f(y, x), (y,), (y,))

    (want, _), _ = xf.device_get(pushed(y, AT_ZERO))
    for got in (
        pushed(y, AT_ZERO)[1],
        xf.linearize(lambda y: f(y, AT_ZERO), y)[1](y),
        xf.jvp(lambda y: pushed(y, AT_ZERO)[1], (y,), (y,))[1],
        [t[1] for t in xf.vmap(pushed, (0, none))(both, AT_ZERO)[1]],
        [t[1] for t in xf.vmap(pushed)(both, torch.stack([AT_ZERO, AT_ZERO]))[1]],
    ):
        z, constant = xf.device_get(tuple(got))
        assert z.tolist() == want.tolist()
        assert constant.flatten().unique().tolist() == [0.0]


EDGES = [0.0, -0.0, 1.5, -2.0, INF, -INF, NAN]
COMPLEX: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "mul": torch.mul,
    "div": torch.div,
    "quotient": lambda z, r: r / z,
    "in place": lambda z, r: z.clone().mul_(r),
    "sgn": lambda z, r: z.sgn() * r,
    "abs": lambda z, r: z.abs() * r,
}


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("of", [torch.tensor, float], ids=["arrays", "numbers"])
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_times_and_over_real_with_infinities(name: str, of: Callable[[float], Any]) -> None:
    """As torch has them, but for quotients of numbers whose parts are both infinite."""
    z = torch.tensor([complex(a, b) for a in EDGES for b in EDGES])
    z = z[torch.view_as_real(z).isfinite().any(-1)]
    f = COMPLEX[name]
    for r in EDGES:
        if of is float:
            got, want = xf.jit(lambda z, r=r: f(z, r))(z), f(z, r)
        else:
            got, want = xf.jit(f)(z, torch.tensor(r)), f(z, torch.tensor(r))
        got, want = (torch.view_as_real(t) if t.is_complex() else t for t in (got.cpu(), want))
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("r", [INF, -INF, NAN])
def test_complex_plus_infinite_real_keeps_imaginary_part(r: float) -> None:
    """As in JAX and numpy; eager torch multiplies by an `alpha` of 1 + 0j, and gives NaN."""
    z = torch.tensor([1 + 2j, -0.5j])
    sums: tuple[Any, ...] = (operator.add, operator.sub, lambda z, r: r - z, torch.add)
    for f in sums:
        for number in (r, torch.tensor(r), torch.full((2,), r)):
            got = xf.device_get(xf.jit(f)(z, number))
            assert got.imag.abs().tolist() == z.imag.abs().tolist()
            assert not got.real.isfinite().any()


def test_addbmm_with_infinite_alpha() -> None:
    x, a, b = torch.zeros(1, 1), torch.tensor([[[1.0]], [[-2.0]]]), torch.ones(2, 1, 1)
    for alpha in (INF, -INF, NAN):
        got = xf.jit(lambda x, a, b, f=alpha: torch.addbmm(x, a, b, alpha=f))(x, a, b)
        torch.testing.assert_close(got.cpu(), torch.addbmm(x, a, b, alpha=alpha), equal_nan=True)


SORTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sort": lambda x: tuple(x.sort(stable=True)),
    "sort of the first dimension": lambda x: tuple(x.sort(dim=0, stable=True)),
    "descending sort": lambda x: tuple(x.sort(stable=True, descending=True)),
    "argsort": lambda x: x.argsort(stable=True),
    "descending argsort": lambda x: x.argsort(stable=True, descending=True),
    "msort": torch.msort,
    "vmap of sort": lambda x: tuple(xf.vmap(lambda r: tuple(r.sort(stable=True)))(x)),
}
ZEROS = [[0.0, -0.0, -1.0, 0.0, NAN], [-0.0, 1e-310, 0.0, -1e-310, -0.0], [INF, 0.0, -0.0, 1, -INF]]


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("name", SORTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_stable_sort_takes_both_zeros_as_equal(name: str, dtype: torch.dtype) -> None:
    x, f = torch.tensor(ZEROS, dtype=dtype), SORTS[name]
    x = torch.cat([x, -x, x.flip(1)])
    found = xf.device_get(xf.jit(f)(x))
    want = SORTS["sort" if name == "vmap of sort" else name](x)
    torch.testing.assert_close(found, want, equal_nan=True)
    for a, b in zip(*(y if isinstance(y, tuple) else (y,) for y in (found, want)), strict=True):
        assert torch.equal(a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan())


def test_gradient_of_stable_sort_with_both_zeros() -> None:
    x, weight = torch.tensor([0.0, -0.0, -1.0, -0.0, 0.0]), torch.arange(5.0)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sort(stable=True).values * weight).sum()

    want = torch.tensor([1.0, 2.0, 0.0, 3.0, 4.0])
    assert torch.equal(xf.device_get(xf.jit(xf.grad(f))(x)), want)
    assert torch.equal(xf.device_get(xf.jit(xf.jacfwd(f))(x)), want)
