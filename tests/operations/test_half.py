"""bfloat16 and float16: what adds up many of them does so in float32, and rounds once.

The judge is float64. Sums in the narrow dtypes themselves would be wrong by far more than what is
allowed: 256 + 1 is 256 in bfloat16, and 70,000 is no number of float16.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
HALF = pytest.mark.parametrize("dtype", [BF16, F16], ids=["bfloat16", "float16"])


def same(found: Any, expected: Any, rtol: float | None = None, atol: float | None = None) -> None:
    torch.testing.assert_close(xf.device_get(found), expected, rtol=rtol, atol=atol, equal_nan=True)


def numbers(*shape, low=0.0, high=1.0, seed=0):
    """Numbers that are exact in both dtypes."""
    make = torch.Generator().manual_seed(seed)
    x = torch.rand(shape, generator=make) * (high - low) + low
    return x.to(BF16).to(F16).to(BF16).float()


def ulps(found, exact, dtype, least=0.01):
    """How far a result is from the exact one, in units of its last place.

    Those of a number that is small next to the others are the units of `least` times the greatest.
    """
    assert found.dtype == dtype
    size = exact.abs().clamp(min=least * exact.abs().max())
    unit = torch.finfo(dtype).eps * torch.exp2(torch.floor(torch.log2(size)))
    unit = unit.clamp(min=torch.finfo(dtype).tiny * torch.finfo(dtype).eps)
    return ((found.double() - exact) / unit).abs().max().item()


WIDE = numbers(5000)  # the sum is 2,500 or so
ROWS = numbers(6, 2000)
PLACES = torch.arange(6000) % 3
CLASSES = torch.arange(300) % 7
IMAGE = numbers(1, 2, 40, 40)

# Functions of one array (or of one and another), all of whose results are rounded once.
FUNCTIONS = {
    "sum": (torch.sum, WIDE),
    "sum of rows": (lambda x: x.sum(1), ROWS),
    "mean": (torch.mean, numbers(70000)),
    "mean of ones": (torch.mean, torch.ones(70000)),
    "mean of rows": (lambda x: x.mean(1, keepdim=True), ROWS),
    "nansum": (torch.nansum, WIDE),
    "prod": (torch.prod, numbers(2000, low=0.9, high=1.1)),
    "cumsum": (lambda x: x.cumsum(0), WIDE),
    "cumprod": (lambda x: x.cumprod(0), numbers(2000, low=0.95, high=1.05)),
    "logcumsumexp": (lambda x: x.logcumsumexp(0), WIDE[:600]),
    "var": (torch.var, 8 + WIDE),
    "std": (lambda x: x.std(1), 8 + ROWS),
    "norm": (torch.linalg.vector_norm, 30 * numbers(5000)),
    "norm of order 1": (lambda x: torch.linalg.vector_norm(x, 1), WIDE),
    "norm of order 3": (lambda x: torch.linalg.vector_norm(x, 3), WIDE),
    "frobenius": (torch.linalg.matrix_norm, 9 * ROWS),
    "logsumexp": (lambda x: x.logsumexp(1), ROWS),
    "softmax": (lambda x: x.softmax(1), 3 * ROWS),
    "log_softmax": (lambda x: x.log_softmax(1), 3 * ROWS),
    "mse_loss": (lambda x: F.mse_loss(x, -x.flip(0)), WIDE),
    "l1_loss": (lambda x: F.l1_loss(x, torch.zeros_like(x)), WIDE),
    "huber_loss": (lambda x: F.huber_loss(x, torch.zeros_like(x)), WIDE),
    "smooth_l1_loss": (lambda x: F.smooth_l1_loss(x, torch.zeros_like(x)), WIDE),
    "binary_cross_entropy": (lambda x: F.binary_cross_entropy(x, x), numbers(5000, low=0.1)),
    "kl_div": (lambda x: F.kl_div(-x, x, reduction="sum"), numbers(5000, low=0.1)),
    "cross_entropy": (lambda x: F.cross_entropy(x, CLASSES), 4 * numbers(300, 7)),
    "layer_norm": (lambda x: F.layer_norm(x, (2000,)), 8 + ROWS),
    "group_norm": (lambda x: F.group_norm(x[None], 3), 8 + ROWS),
    "batch_norm": (lambda x: F.batch_norm(x.T, None, None, training=True), 8 + ROWS),
    "rms_norm": (lambda x: F.rms_norm(x, (2000,)), ROWS),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 37, 1), IMAGE),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (1, 3)), IMAGE),
    "index_add": (lambda x: x.new_zeros(3).index_add(0, PLACES, x), numbers(6000)),
    "scatter_add": (lambda x: x.new_zeros(3).scatter_add(0, PLACES, x), numbers(6000)),
    "scatter_reduce": (
        lambda x: x.new_zeros(3).scatter_reduce(0, PLACES, x, "mean", include_self=False),
        numbers(6000),
    ),
    "index_put": (
        lambda x: x.new_zeros(3).index_put((PLACES,), x, accumulate=True),
        numbers(6000),
    ),
    "dot": (lambda x: x @ x, WIDE),
    "matmul": (lambda x: x @ x.T, ROWS),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x, x), ROWS),
    "bmm": (lambda x: torch.bmm(x[None], x.T[None]), ROWS),
    "conv2d": (lambda x: F.conv2d(x, x[:, :, :30, :30]), IMAGE),
    "trace": (torch.trace, numbers(700, 700)),
    "cov": (torch.cov, 2 + ROWS),
    "interpolate": (lambda x: F.interpolate(x, 7, mode="bicubic"), IMAGE),
    "silu": (F.silu, ROWS - 0.5),
    "mish": (F.mish, ROWS - 0.5),
    "logaddexp": (lambda x: torch.logaddexp(x, -x), ROWS),
    "addcdiv": (lambda x: torch.addcdiv(x, x, x + 1, value=0.3), ROWS),
    "sigmoid": (torch.sigmoid, 6 * ROWS - 3),
    "rsqrt": (torch.rsqrt, 1 + ROWS),
    "expm1": (torch.expm1, ROWS),
}
# In these a rounded result enters a second operation, in torch as well.
TWICE = {"l1_loss", "cov", "addcdiv", "cross_entropy", "kl_div", "binary_cross_entropy"}


@pytest.mark.sample(3, seed=0)
@HALF
@pytest.mark.parametrize("name", FUNCTIONS)
def test_half_result_is_rounded_once(name, dtype):
    function, x = FUNCTIONS[name]
    x = x.to(dtype)
    exact = function(x.double())
    found = xf.device_get(xf.jit(function)(x))
    assert ulps(found, exact, dtype) <= (1.6 if name in TWICE else 0.75)


def total(function):
    """The gradient of what a function returns, weighted."""

    def loss(x):
        y = function(x)
        weights = ((torch.arange(y.numel()) % 11 - 5) / 8).reshape(y.shape)
        return (y * weights.to(y.dtype)).to(torch.promote_types(y.dtype, F32)).sum()

    return loss


DIFFERENTIABLE = """
    mean prod var norm logsumexp softmax log_softmax mse_loss huber_loss
    cross_entropy layer_norm group_norm rms_norm avg_pool2d adaptive_avg_pool2d index_add dot matmul
    conv2d interpolate silu mish
""".split()


@pytest.mark.sample(3, seed=0)
@HALF
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_half_gradient_is_near_exact(name, dtype):
    function, x = FUNCTIONS[name]
    x = x.to(dtype)
    exact = torch.func.grad(total(function))(x.double())
    found = xf.device_get(xf.grad(total(function))(x))
    eager = torch.func.grad(total(function))(x)
    allowed = max(2.0, 2 * ulps(eager, exact, dtype, least=0.1))
    assert ulps(found, exact, dtype, least=0.1) <= allowed


# -- where sums hide ------------------------------------------------------------------------------


@HALF
def test_half_gradient_of_broadcast_operand(dtype):
    x, b = numbers(3000, 3).to(dtype), numbers(3).to(dtype)
    exact = x.double().sum(0)
    for loss in (
        lambda b: (x * b).float().sum(),
        lambda b: (x * b.expand(3000, 3)).float().sum(),
        lambda b: (F.linear(torch.zeros_like(x), torch.eye(3, dtype=dtype), b) * x).float().sum(),
    ):
        assert ulps(xf.device_get(xf.grad(loss)(b)), exact, dtype) <= 0.75


@HALF
def test_half_gradient_of_embedding(dtype):
    x, w = numbers(6000, 2).to(dtype), numbers(3, 2).to(dtype)
    exact = torch.zeros(3, 2, dtype=F64).index_add(0, PLACES, x.double())
    found = xf.grad(lambda w: (F.embedding(PLACES, w) * x).float().sum())(w)
    assert ulps(xf.device_get(found), exact, dtype) <= 0.75


@HALF
def test_half_gradient_of_conv_bias(dtype):
    x, w, b = (numbers(*s).to(dtype) for s in ((1, 1, 50, 50), (2, 1, 1, 1), (2,)))
    found = xf.grad(lambda b: F.conv2d(x, w, b).float().sum())(b)
    assert xf.device_get(found).tolist() == [2500.0, 2500.0] if dtype == F16 else [2496.0, 2496.0]


@HALF
def test_half_sums_in_loops_and_branches(dtype):
    rows = ROWS.to(dtype)
    exact = rows.double().sum(1)

    def scanned(rows):
        return xf.scan(lambda c, row: (c, row.sum()), torch.zeros((), dtype=dtype), rows)[1]

    def while_(rows):
        def step(carry):
            k, out = carry
            row = rows.index_select(0, k.reshape(1))[0]
            return k + 1, torch.where(torch.arange(6) == k, row.sum(), out)

        start = (torch.zeros((), dtype=torch.int64), torch.zeros(6, dtype=dtype))
        return xf.while_loop(lambda c: c[0] < 6, step, start)[1]

    def either(rows):
        return xf.cond(rows[0, 0] > 2, lambda r: r.amax(1), lambda r: r.sum(1), rows)

    functions: tuple[Any, ...] = scanned, while_, either, xf.vmap(torch.sum)
    for function in functions:
        assert ulps(xf.device_get(xf.jit(function)(rows)), exact, dtype) <= 0.75


@HALF
def test_half_sums_under_transforms(dtype):
    x = numbers(4000).to(dtype)
    tangent = numbers(4000, seed=1).to(dtype)
    exact = x.double() @ tangent.double() * 2

    def squares(x):
        return (x * x).sum()

    found = {
        "jvp": xf.jvp(squares, (x,), (tangent,))[1],
        "vjp": xf.vjp(lambda s: s.expand(4000) * x, x[0])[1](tangent)[0] * 2,
        "linearize": xf.linearize(squares, x)[1](tangent),
        "vmap of jvp": xf.vmap(lambda t: xf.jvp(squares, (x,), (t,))[1])(tangent[None])[0],
    }
    for name, value in found.items():
        assert ulps(xf.device_get(value), exact, dtype) <= 2, name


def test_float16_overflow_only_in_final_result():
    x = torch.full((70000,), 2.0, dtype=F16)

    def several(x):
        return x.sum(), x.mean(), x.std(), torch.linalg.vector_norm(x), F.mse_loss(x, -x)

    found = [v.item() for v in xf.device_get(xf.jit(several)(x))]
    assert found[0] == torch.inf
    assert found[1:] == [v.item() for v in several(x)[1:]]


# -- numbers next to narrow numbers ---------------------------------------------------------------

SCALARS = {
    "add": lambda x: x + 0.6,
    "multiply": lambda x: x * 0.6,
    "divide": lambda x: x / 0.625,
    "remainder": lambda x: x % 0.6,
    "fmod": lambda x: torch.fmod(x, 0.6),
    "floor": lambda x: x // 0.6,
    "power": lambda x: x**2.3,
    "alpha": lambda x: torch.add(x, x.flip(0), alpha=0.6),
    "alpha in place": lambda x: x.clone().sub_(x.flip(0), alpha=0.6),
    "leaky_relu": lambda x: F.leaky_relu(0.5 - x, 0.6),
    "threshold": lambda x: F.threshold(x, 0.6, 0.3),
    "softshrink": lambda x: F.softshrink(x, 0.6),
    "equal": lambda x: x == 0.6,
    "not equal": lambda x: x != 0.6,
    "less": lambda x: x < 0.6,
    "at most": lambda x: x <= 0.6,
    "more": lambda x: x > 0.6,
    "at least": lambda x: x >= 0.6,
}


@HALF
@pytest.mark.parametrize("name", SCALARS)
def test_half_with_python_number_rounds_as_torch(name, dtype):
    x = torch.cat([numbers(500), torch.tensor([0.6])]).to(dtype)
    found, expected = xf.device_get(xf.jit(SCALARS[name])(x)), SCALARS[name](x)
    assert found.dtype == expected.dtype
    differ = (found != expected).sum().item()
    assert differ <= (12 if name.startswith("alpha") else 0)  # a last place, of some
    torch.testing.assert_close(found, expected, rtol=2 * torch.finfo(dtype).eps, atol=2e-3)


@HALF
@pytest.mark.parametrize("name", ["softshrink", "hardshrink"])
def test_half_slope_next_to_bound_is_as_of_torch(name, dtype):
    shrink = getattr(F, name)
    x = torch.tensor([0.6, -0.6, 0.61, -0.61, 0.59]).to(dtype)
    want = torch.func.grad(lambda x: shrink(x, 0.6).sum())(x)
    assert torch.equal(xf.jit(xf.grad(lambda x: shrink(x, 0.6).sum()))(x).cpu(), want)


@HALF
def test_native_layer_norm_result_dtypes(dtype):
    x, w = numbers(2, 8).to(dtype), numbers(8)
    for weight in (None, w.to(dtype), w):
        args = (x, (8,), weight, weight, 1e-5)
        found = xf.jit(lambda x, a=args: torch.native_layer_norm(x, *a[1:]))(x)
        expected = torch.native_layer_norm(*args)
        assert [f.dtype for f in found] == [e.dtype for e in expected]
        torch.testing.assert_close(xf.device_get(found), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("norm", ["layer", "group"])
def test_layer_and_group_norm_far_from_zero(norm):
    function = {
        "layer": lambda x: F.layer_norm(x, (500,)),
        "group": lambda x: F.group_norm(x[None], 4)[0],
    }[norm]
    x = torch.randn(4, 500, generator=torch.Generator().manual_seed(0)) + 1000
    exact = function(x.double())
    # torch_xla's own formula would be wrong by 0.2.
    torch.testing.assert_close(
        xf.device_get(xf.jit(function)(x)).double(), exact, rtol=0, atol=1e-3
    )
    jacobian = torch.func.jacrev(total(function))(x.double())
    found = xf.grad(total(function))(x)
    torch.testing.assert_close(xf.device_get(found).double(), jacobian, rtol=0, atol=1e-4)


def test_float32_program_has_no_conversion_to_half():
    def several(x):
        return x.sum(), x.softmax(0), F.layer_norm(x, (40,)), x.cumsum(0), F.gelu(x), x / 3

    text = xf.jit(several).lower(torch.ones(40)).as_text()
    assert "bf16" not in text
    assert "f16" not in text


TANGENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "renorm": lambda x: torch.renorm(x, 2, 0, 1.0),
    "frexp": lambda x: torch.frexp(x)[0],
    "vector_norm": lambda x: torch.linalg.vector_norm(x, 3.5),
    "softmax": lambda x: x.softmax(0),
    "cumprod": lambda x: x.cumprod(0),
}


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("name", TANGENTS)
def test_half_tangents_keep_dtype(name: str, dtype: torch.dtype) -> None:
    f, x = TANGENTS[name], (torch.arange(6.0).reshape(2, 3) / 4 + 0.3)
    theirs: Any = torch.func.jvp(f, (x.to(dtype).double(),), (torch.ones(2, 3, dtype=F64),))
    digits = 2**-6 if dtype is BF16 else 2**-9
    x = x.to(dtype)
    ours: Any = xf.jvp(f, (x,), (torch.ones_like(x),))
    same(ours[1], theirs[1].to(dtype), rtol=digits, atol=digits)
    assert xf.jacfwd(f)(x).dtype == dtype


@pytest.mark.parametrize("dtype", [BF16, F16, F32, F64], ids=str)
def test_histc_bins_are_not_rounded(dtype: torch.dtype) -> None:
    for step in (3, 7, 10):
        x = (torch.arange(300.0) / step).to(dtype)
        exact = torch.histc(x if dtype is F32 else x.double(), 17).to(dtype)
        same(xf.jit(lambda x: torch.histc(x, 17))(x), exact, rtol=0, atol=0)


@pytest.mark.parametrize("other", [1.5, 3.0, -1.75])
def test_half_gradient_of_batch_norm_is_rounded_once(other: float) -> None:
    x, w = torch.tensor([[3.25], [other]], dtype=F16), torch.tensor([-2.5], dtype=F16)

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.native_batch_norm(x, w, None, None, None, True, 0.1, 1e-5)[0]
        return (y * torch.tensor([[1.0], [0.5]], dtype=F16, device=x.device)).sum()

    same(xf.grad(loss)(x, w), torch.func.grad(loss)(x, w), rtol=2**-10, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_second_derivative_of_hypot_is_near_exact(dtype: torch.dtype) -> None:
    xs, ys = (torch.linspace(*ends, 25).to(dtype) for ends in ((0.1, 9.0), (7.0, -2.0)))

    def curvatures(x: torch.Tensor, y: torch.Tensor, jvp: Callable[..., Any]) -> torch.Tensor:
        one = torch.ones_like(x)
        slope = lambda x: jvp(lambda x: torch.hypot(x, y), (x,), (one,))[1]  # noqa: E731
        return jvp(slope, (x,), (one,))[1]

    found = xf.device_get(xf.jit(lambda x, y: curvatures(x, y, xf.jvp))(xs, ys))
    exact = curvatures(xs.double(), ys.double(), torch.func.jvp).to(dtype)
    torch.testing.assert_close(found, exact)
