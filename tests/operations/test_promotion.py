"""Operands and factors of different dtypes: results have the dtypes of eager torch."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

F32 = torch.float32
HALF = torch.tensor([1.5, 2.0]).bfloat16()
INTS = torch.tensor([1, 2], dtype=torch.int32)


def same(found: Any, expected: Any, rtol: float | None = None, atol: float | None = None) -> None:
    torch.testing.assert_close(xf.device_get(found), expected, rtol=rtol, atol=atol, equal_nan=True)


OPERANDS = {
    "bfloat16, float32 scalar": (HALF, torch.tensor(1.25)),
    "float32 scalar, bfloat16": (torch.tensor(1.25), HALF),
    "int32, float32 scalar": (INTS, torch.tensor(1.5)),
    "int32, int64 scalar": (INTS, torch.tensor(2)),
    "int64 scalar, int32": (torch.tensor(2), INTS),
    "bfloat16, int32": (HALF, INTS),
    "int8, int32": (INTS.to(torch.int8), INTS),
    "bfloat16, float32": (HALF, torch.tensor([1.25, 2.5])),
    "int32, int64": (INTS, torch.tensor([3, 1])),
    "bool, int64 scalar": (INTS > 1, torch.tensor(2)),
    "scalars": (torch.tensor(1.25).bfloat16(), torch.tensor(3)),
}
ALL = (
    "add sub subtract rsub mul div pow maximum minimum max min atan2 arctan2 remainder fmod xlogy "
    "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift clamp eq lt "
    "floor_divide"
).split()
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in ALL},
    "where": lambda x, y: torch.where(torch.tensor([True, False]), x, y),
    "Tensor.where": lambda x, y: x.where(torch.tensor([True, False]), y),
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "x ** y": lambda x, y: x**y,
    "alpha": lambda x, y: torch.add(x, y, alpha=2),
    "other=": lambda x, y: torch.sub(x, other=y),
    "max=": lambda x, y: torch.clamp(x, max=y),
    "addcmul": lambda x, y: torch.addcmul(x, x, y),
    "add_": lambda x, y: x.clone().add_(y),
    "sub_": lambda x, y: x.clone().sub_(y),
    "two steps": lambda x, y: torch.stack([x + y, x + y]).sum(0),
}


@pytest.mark.sample(2, seed=0)
@pytest.mark.quick(4, seed=0)
@pytest.mark.parametrize("name", OPERATIONS)
def test_promotion_matches_eager_torch(name: str) -> None:
    operation = OPERATIONS[name]

    def every(operands: dict[str, Any]) -> dict[str, Any]:
        return {kind: operation(x, y) for kind, (x, y) in operands.items()}

    allowed = {}
    for kind, (x, y) in OPERANDS.items():
        try:
            operation(x, y)
        except (RuntimeError, NotImplementedError, IndexError):  # Eager torch refuses.
            continue
        allowed[kind] = (x, y)
    assert allowed
    expected = every(allowed)
    said = xf.eval_shape(every, allowed)
    got = xf.device_get(xf.jit(every)(allowed))
    for kind, want in expected.items():
        assert (said[kind].dtype, got[kind].dtype) == (want.dtype, want.dtype), kind
        torch.testing.assert_close(got[kind], want, rtol=2e-2, atol=1e-2, msg=kind)


def test_promotion_in_grad_vmap_and_scan() -> None:
    scale = torch.tensor(0.5)
    grads = xf.grad(lambda x: (x + scale).float().sum())(HALF)
    assert grads.dtype == torch.bfloat16
    assert xf.vmap(lambda x: x + scale)(HALF).dtype == torch.float32  # Two scalars, as in torch.
    carry, _ = xf.scan(lambda c, x: (c + x, None), HALF, torch.ones(3))
    assert carry.dtype == torch.bfloat16
    assert carry.tolist() == [4.5, 5.0]


TERNARY: dict[str, Callable[..., Any]] = {
    "where": lambda x, y, z: torch.where(x != 0, y, z),
    "where a number": lambda x, y, z: torch.where(condition=x != 0, input=y, other=2.5),
    "Tensor.where": lambda x, y, z: x.where(y != 0, z),
    "clamp": torch.clamp,
    "clamp(max=)": lambda x, y, z: x.clamp(max=y),
    "clip": lambda x, y, z: torch.clip(x, max=z),
    "clamp_min": lambda x, y, z: torch.clamp_min(x, y),
    "addcmul": torch.addcmul,
    "addcdiv": lambda x, y, z: torch.addcdiv(x, y, z, value=2),
    "lerp": torch.lerp,
    "add": lambda x, y, z: x + y * z,
    "pow": lambda x, y, z: x**y,
}


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("name", TERNARY)
def test_scalar_examples_of_vmap_are_promoted_as_scalars(name: str) -> None:
    f = TERNARY[name]
    dtypes = (torch.float32, torch.bfloat16, torch.int64)
    calls, expected = {}, {}
    for key in itertools.product(dtypes, dtypes, dtypes, [0, 1, 3, 6, 7], [1, 6]):
        *kinds, scalars, mapped = key
        operands = [
            torch.tensor(2 if scalars >> k & 1 else [1, 2]).to(d) for k, d in enumerate(kinds)
        ]
        try:
            expected[key] = f(*operands)
        except (RuntimeError, TypeError):  # Eager torch refuses.
            continue
        axes = tuple(0 if mapped >> k & 1 else None for k in range(3))
        calls[key] = axes, operands
    assert calls

    def every(given: dict[Any, Any]) -> dict[Any, Any]:
        return {key: xf.vmap(f, calls[key][0])(*xs) for key, xs in given.items()}

    given = {
        key: [x[None] if d == 0 else x for d, x in zip(axes, xs, strict=True)]
        for key, (axes, xs) in calls.items()
    }
    said = xf.eval_shape(every, given)
    assert {k: a.dtype for k, a in said.items()} == {k: a.dtype for k, a in expected.items()}
    some = dict(list(given.items())[::29])
    for key, found in xf.device_get(xf.jit(every)(some)).items():
        torch.testing.assert_close(found[0], expected[key])


Tensor = torch.Tensor
COUNTED: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "sum": lambda x, d: x.sum(dtype=d),
    "sum of rows": lambda x, d: torch.sum(x, 1, dtype=d),
    "sum of input": lambda x, d: torch.sum(input=x, dtype=d),
    "prod": lambda x, d: x.prod(dtype=d),
    "prod of rows": lambda x, d: torch.prod(x, 1, dtype=d),
    "cumsum": lambda x, d: x.cumsum(1, dtype=d if d is not torch.bool else torch.int16),
    "cumprod": lambda x, d: torch.cumprod(x, 1, dtype=d if d is not torch.bool else torch.int16),
}


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.bool])
@pytest.mark.parametrize("name", COUNTED)
def test_reduction_with_dtype_converts_first(name: str, dtype: torch.dtype) -> None:
    """And has no derivative: torch's formulas fail."""
    x = torch.tensor([[-1.5, 2.75, 0.5], [0.75, 3.9, -2.2]])
    reduce = COUNTED[name]

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        found = reduce(x, dtype)
        return (x * found.sum()).sum(), found

    want, counted = f(x)
    value, grad = xf.value_and_grad(f, has_aux=True)(x)
    torch.testing.assert_close(xf.device_get(value), (want, counted))
    torch.testing.assert_close(grad.cpu(), counted.sum().float().expand(2, 3))
    dot = xf.jvp(lambda x: f(x)[0], (x,), (torch.ones(2, 3),))[1]
    torch.testing.assert_close(dot.cpu(), counted.sum() * 6.0)


PUT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "slice_scatter": lambda x, y: torch.slice_scatter(x, y[:1], 0, 1, 2),
    "select_scatter": lambda x, y: torch.select_scatter(x, y[0], 0, 1),
    "diagonal_scatter": lambda x, y: torch.diagonal_scatter(x, y.diagonal()),
    "as_strided_scatter": lambda x, y: torch.as_strided_scatter(x, y[0], (3,), (2,)),
    "masked_fill": lambda x, y: torch.masked_fill(x, x == 1, y[0, 0].to(x.dtype)),
}


@pytest.mark.parametrize("name", PUT)
@pytest.mark.parametrize(
    ("into", "dtype"),
    [
        (torch.float32, torch.bool),
        (torch.float16, torch.float32),
        (torch.int32, torch.float32),
        (torch.float32, torch.bfloat16),
    ],
)
def test_scatter_into_tensor_takes_its_dtype(
    name: str, into: torch.dtype, dtype: torch.dtype
) -> None:
    x, y = torch.arange(9).reshape(3, 3).to(into), (torch.arange(9).reshape(3, 3) / 4).to(dtype)
    want = PUT[name](x, y)
    for found in (xf.jit(PUT[name])(x, y), xf.vmap(PUT[name])(x[None], y[None])[0]):
        assert found.dtype == want.dtype
        assert torch.equal(found.cpu(), want)


@pytest.mark.parametrize("loss", [F.huber_loss, F.smooth_l1_loss, F.mse_loss])
def test_loss_of_truth_values(loss: Callable[..., Tensor]) -> None:
    x, y = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([True, False, True])
    same(xf.jit(loss)(x, y), loss(x, y))
    same(xf.grad(loss)(x, y), torch.func.grad(loss)(x, y.float()))


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_solve_triangular_has_the_dtype_of_the_matrix(left: bool, dtype: torch.dtype) -> None:
    x, y = torch.tensor([[2.0, 1.0], [0.0, 4.0]]), torch.tensor([[1, 2], [3, 5]]).to(dtype)

    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(x, y, upper=True, left=left)

    same(xf.jit(f)(x, y), f(x, y))


@pytest.mark.sample(4, seed=0)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize(
    "compute",
    [
        lambda x, n: x // n,
        lambda x, n: n // x,
        lambda x, n: x % n,
        lambda x, n: n % x,
        lambda x, n: x - n,
        lambda x, n: n - x,
        lambda x, n: torch.remainder(x, -n),
        lambda x, n: torch.fmod(x, n),
        lambda x, n: torch.div(x, n, rounding_mode="trunc"),
        lambda x, n: torch.div(x, other=n, rounding_mode="floor"),
        lambda x, n: torch.div(x, n),
        lambda x, n: (x == n, x > n, torch.le(x, n), x.ne(n)),
        lambda x, n: x.clone().floor_divide_(n),
    ],
)
def test_narrow_integer_with_large_number_wraps(compute: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([100, 3, 7, 1], dtype=dtype)
    for n in (1_000_000, 70_000, 300, 2**33 + 5):
        got = xf.device_get(xf.jit(lambda x, n=n: compute(x, n))(x))
        want = compute(x, n)
        if not isinstance(want, tuple):
            got, want = (got,), (want,)
        for g, w in zip(got, want, strict=True):
            assert g.dtype == w.dtype
            assert torch.equal(g, w)


# -- factors ------------------------------------------------------------------------------------

I = torch.arange(6).reshape(2, 3) - 2  # noqa: E741
PRODUCTS: dict[str, Callable[..., torch.Tensor]] = {
    "addmv": lambda i: torch.addmv(i[:, 0], i, i[0], beta=1.6, alpha=2.7),
    "addmm": lambda i: torch.addmm(i[:, :2], i, i.T, beta=1.6, alpha=2.7),
    "baddbmm": lambda i: torch.baddbmm(i[None, :, :2], i[None], i.T[None], beta=1.6, alpha=2.7),
    "addbmm": lambda i: torch.addbmm(i[:, :2], i[None], i.T[None], beta=0.2, alpha=2.7),
    "no first": lambda i: torch.addmm(i[:, :2], i, i.T, beta=0.2),
}
COMPLEX_FACTORS: dict[str, Callable[..., torch.Tensor]] = {
    "addmm": lambda z, f, g: torch.addmm(z, z, z, beta=f, alpha=g),
    "addmv": lambda z, f, g: torch.addmv(z[0], z, z[1], beta=f, alpha=g),
    "addr": lambda z, f, g: torch.addr(z, z[0], z[1], beta=f, alpha=g),
    "addbmm": lambda z, f, g: torch.addbmm(z, z[None], z[None], beta=f, alpha=g),
    "baddbmm": lambda z, f, g: torch.baddbmm(z[None], z[None], z[None], beta=f, alpha=g),
    "addcmul": lambda z, f, g: torch.addcmul(z * f, z, z, value=g),
    "addcdiv": lambda z, f, g: torch.addcdiv(z * f, z, z + 3, value=g),
    "lerp": lambda z, f, g: torch.lerp(z * f, z, g),
    "add": lambda z, f, g: torch.add(z * f, z, alpha=g),
}


@pytest.mark.parametrize("name", COMPLEX_FACTORS)
def test_complex_alpha_and_beta_under_vmap_and_jvp(name: str) -> None:
    z = torch.tensor([[1 + 2j, -0.5j], [0.25, 3 - 1j]])

    def f(z: torch.Tensor) -> torch.Tensor:
        return COMPLEX_FACTORS[name](z, 0.5 + 1j, 2 - 1j)

    torch.testing.assert_close(xf.device_get(xf.vmap(f)(z[None])), f(z)[None])
    torch.testing.assert_close(
        xf.device_get(xf.jvp(f, (z,), (z,))), torch.func.jvp(f, (z,), (z,)), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", PRODUCTS)
def test_integer_products_with_float_alpha_and_beta_under_vmap(name: str) -> None:
    f, batch = PRODUCTS[name], torch.stack([I, 2 * I, -I])
    same(xf.vmap(f)(batch), torch.stack([f(i) for i in batch]), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, F32], ids=str)
@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_sort_keeps_dtype(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.tensor([3, 0, 1])[: 1 if not shape else 3].reshape(shape).to(dtype)

    def sorted_(x: torch.Tensor) -> Any:
        return x.sort().values, x.sort(stable=True).values, x.kthvalue(1).values, x.topk(1).values

    if dtype is torch.bool:  # torch has no kthvalue of them.
        same(xf.jit(lambda x: x.sort().values)(x), x.sort().values)
    else:
        for found, expected in zip(xf.jit(sorted_)(x), sorted_(x), strict=True):
            same(found, expected)


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("z", [2 + 0j, 2049 + 0j, 70000 + 0j, 0.1 + 0j, 1 + 1j, 1 + 1e-9j])
def test_half_precision_equals_a_complex_number(z: complex) -> None:
    """Both are rounded to complex numbers of float16, which XLA lacks."""
    x = torch.tensor([1.0, 2.0, 2048.0, 0.1, torch.inf, torch.nan], dtype=torch.float16)

    def f(x: Tensor, z: complex | Tensor) -> tuple[Tensor, ...]:
        return x == z, x != z

    found = xf.jit(lambda x, y: (f(x, y), f(x, z)))(x, torch.tensor(z))
    torch.testing.assert_close(xf.device_get(found), (f(x, torch.tensor(z)), f(x, z)))
