"""Arithmetic of all dtypes, at their edges: values and dtypes are those of eager torch."""

import itertools
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf
from tests.operations.test_dtypes import COMPLEX, INF, INTEGERS, NAN, same, values
from tests.support.fresh import Server

PAIRS = [
    *((d, d) for d in (torch.bool, *INTEGERS, torch.float32, torch.float64, *COMPLEX)),
    (torch.bool, torch.int8), (torch.float32, torch.bool), (torch.uint8, torch.int8),
    (torch.int8, torch.uint8), (torch.int32, torch.uint8), (torch.int64, torch.int32),
    (torch.int64, torch.float32), (torch.float64, torch.int8), (torch.bfloat16, torch.int64),
    (torch.float32, torch.complex128), (torch.complex64, torch.float64),
    (torch.complex64, torch.int32), (torch.bfloat16, torch.float32),
]  # fmt: skip
TWO = """
    add sub mul div floor_divide remainder fmod pow maximum fmax fmin atan2 eq ne lt ge xlogy
    bitwise_xor bitwise_left_shift bitwise_right_shift logical_xor copysign gcd heaviside
    true_divide float_power
""".split()
NUMBERS = (2, -3, 0.5, True, 0, 1j, -1, 1.5)
WITH_NUMBER: dict[str, Callable[..., Any]] = {
    "x + n": lambda x, n: x + n,
    "n - x": lambda x, n: n - x,
    "x * n": lambda x, n: x * n,
    "x / n": lambda x, n: x / n,
    "n / x": lambda x, n: n / x,
    "x // n": lambda x, n: x // n,
    "n // x": lambda x, n: n // x,
    "x % n": lambda x, n: x % n,
    "n % x": lambda x, n: n % x,
    "x ** n": lambda x, n: x**n,
    "n ** x": lambda x, n: n**x,
    "x & n": lambda x, n: x & n,
    "x << n": lambda x, n: x << n,
    "x == n": lambda x, n: x == n,
    "x < n": lambda x, n: x < n,
    "clamp(min)": lambda x, n: x.clamp(min=n),
    "clamp(max)": lambda x, n: x.clamp(max=n),
    "clamp": lambda x, n: x.clamp(n, 3),
    "where": lambda x, n: torch.where(x != 0, x, n),
    "full_like": torch.full_like,
    "masked_fill": lambda x, n: x.masked_fill(x == 1, n),
    "index_fill": lambda x, n: x.index_fill(0, torch.tensor([0]), n),
    "threshold": lambda x, n: torch.nn.functional.threshold(x, n, n),
    "xlogy": torch.xlogy,
    "copysign": torch.copysign,
    "nan_to_num": torch.nan_to_num,
}
ONE = """
    abs acos asin asinh atan cosh erf exp exp2 expm1 log log2 log10 reciprocal rsqrt sigmoid sin
    sqrt tan tanh isnan isinf isneginf isposinf isfinite sign sgn logical_not neg round trunc angle
    square relu bitwise_not
""".split()
DIGITS = {
    torch.float32: 2e-6, torch.float64: 1e-13, torch.bfloat16: 1e-2, torch.complex64: 4e-6,
    torch.complex128: 1e-13,
}  # fmt: skip
# By default, XLA does not round a bfloat16 that is converted to a wider dtype, as the reciprocal in
# `1j / x` is. torch does. torch_xla takes no options.
IS_PJRT = os.environ.get("XFUNC_BACKEND") == "pjrt"
ROUNDED = {"xla_allow_excess_precision": False} if IS_PJRT else None
WHOLE = "floor_divide remainder fmod gcd x // n x % n n // x n % x".split(" ")


def operand(dtype: torch.dtype, other: torch.dtype) -> torch.Tensor:
    x = values(dtype)
    mixed = other.is_complex or other is torch.bool
    if (dtype.is_floating_point and mixed) or dtype is torch.bfloat16:
        x = x[
            x.isfinite()
        ]  # Eager torch, or XLA of a product with bool, treats others differently.
    return x


def cases(name: str) -> Iterator[tuple[Any, Callable[..., Any], tuple[torch.Tensor, ...]]]:
    if name in TWO:
        for d, e in PAIRS:
            x, y = operand(d, e), operand(e, d)
            if name in WHOLE and not (d.is_floating_point or e.is_floating_point):
                y = y[(y != 0) & (y != -1)]  # Eager torch raises an error, or dies.
            if name in ("div", "true_divide") and torch.bool in (d, e):
                y = y[y != 0]
            if name.startswith("bitwise") and "shift" in name and not e.is_complex:
                y = y[(y >= 0) & (y < 8 * torch.promote_types(d, e).itemsize)]
            if len(y):
                n = len(y) // 2
                wide = torch.broadcast_tensors(x[:, None], y)
                yield (d, e), getattr(torch, name), tuple(w.contiguous() for w in wide)
                yield (d, e, "scalar"), getattr(torch, name), (x, y[n])
    elif name in ONE:
        for d in (torch.bool, *INTEGERS, *DIGITS):
            yield d, getattr(torch, name), (values(d),)
    else:
        f = WITH_NUMBER[name]
        for d, n in itertools.product((torch.bool, *INTEGERS, *DIGITS), NUMBERS):
            x = operand(d, torch.complex64 if isinstance(n, complex) else d)
            if d is torch.bool and name == "x / n" and not n:
                continue
            if d in INTEGERS and ("//" in name or "%" in name):
                if (not n and name.startswith("x")) or n == -1:
                    continue
                x = x[x != 0]
            yield (d, n), lambda x, n=n: f(x, n), (x,)


@pytest.mark.sample(9, seed=0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*TWO, *WITH_NUMBER, *ONE])
def test_arithmetic_matches_eager_torch(name: str) -> None:
    todo, expected = {}, {}
    for label, f, args in cases(name):
        try:
            expected[label] = f(*args)
        except (RuntimeError, NotImplementedError, TypeError):  # Eager torch refuses.
            continue
        todo[label] = f, args
    assert todo
    functions = {k: f for k, (f, _) in todo.items()}
    found = xf.device_get(
        xf.jit(
            lambda args: {k: functions[k](*a) for k, a in args.items()}, compiler_options=ROUNDED
        )({k: args for k, (_, args) in todo.items()})
    )
    for label, want in expected.items():
        got = found[label]
        if want.is_complex():  # Where a part is not finite, signs and NaN differ.
            assert got.dtype == want.dtype
            usable = want.isfinite() & (want != 0)
            got, want = got[usable], want[usable]
        same(got, want, f"{name} {label}", DIGITS.get(want.dtype, 0.0))


def test_integer_division_by_zero_and_of_the_minimum() -> None:
    x, zero = torch.tensor([7, -7, 0]), torch.zeros(3, dtype=torch.int64)
    found = xf.jit(lambda x, y: (x // y, x % y, torch.fmod(x, y)))(x, zero)
    assert [f.tolist() for f in found] == [[-1, -1, -1], [7, -7, 0], [7, -7, 0]]
    least = torch.tensor([torch.iinfo(torch.int64).min])
    assert xf.jit(lambda x: (x // -1, x % -1))(least)[0].tolist() == least.tolist()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_lcm_of_narrow_integers_wraps_as_in_eager_torch(dtype: torch.dtype) -> None:
    """Of int8, lcm(4, 127) is 508, which wraps to a negative number."""
    x = torch.arange(256).to(dtype)
    found = xf.device_get(xf.jit(torch.lcm)(x[:, None], x))
    assert torch.equal(found, torch.lcm(x[:, None], x))


BITS_MADE_NARROWER = """
import itertools, torch
import xfunc as xf

dtypes = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
for wide, narrow in itertools.combinations(dtypes, 2):
    x, y = (torch.arange(-24, 24) * 0x0123_4567_89AB).to(wide), torch.arange(48).to(narrow)
    for f in (
        lambda x, y: x.to(narrow) & y,
        lambda x, y: y | x.to(narrow),
        lambda x, y: x.to(narrow).reshape(6, 8) & y.reshape(6, 8),
        lambda x, y: x.to(narrow) | (x + 1).to(narrow) & 6,
    ):
        assert torch.equal(xf.device_get(xf.jit(f)(x, y)), f(x, y)), (wide, narrow)
"""


def test_bits_of_integers_made_narrower(fresh: Server) -> None:
    """XLA's code for it, which the flags of this process replace, ended the process."""
    done = fresh.run(BITS_MADE_NARROWER, env={"XLA_FLAGS": ""})
    assert done.returncode == 0, done.stderr


def test_integer_power_with_negative_exponent_raises() -> None:
    with pytest.raises(RuntimeError, match="negative integer powers are not allowed"):
        xf.jit(lambda x: x**-2)(torch.tensor([1, 2]))


def test_complex_isnan_isinf_and_pow_at_zero_and_infinity() -> None:
    z = torch.tensor([0j, complex(INF, 0), complex(NAN, 1), 1 + 1j])
    found = xf.device_get(xf.jit(lambda z: (z.isnan(), z.isinf(), z**2, 0**z))(z))
    assert found[0].tolist() == [False, False, True, False]
    assert found[1].tolist() == [False, True, False, False]
    assert found[2][0] == 0
    assert found[3].tolist()[0] == 1


def test_float16_plus_complex_number_is_refused() -> None:
    with pytest.raises(xf.errors.UnsupportedOpError, match=r"complex numbers of float16"):
        xf.jit(lambda x: x + 1j)(torch.ones(2, dtype=torch.float16))


KNOWN: dict[str, Callable[[], tuple[torch.Tensor, int]]] = {
    "div by trunc": lambda: (torch.div(_seven(), _seven() - 7, rounding_mode="trunc"), -1),
    "floor_divide": lambda: (torch.floor_divide(_seven(), _seven() - 7), -1),
    "remainder": lambda: (torch.remainder(_seven(), _seven() - 7), 7),
    "fmod": lambda: (torch.fmod(_seven(), _seven() - 7), 7),
    "fmod of uint8": lambda: (torch.fmod(_seven(torch.uint8), _seven(torch.uint8) - 7), 7),
    "least": lambda: (
        torch.div(_seven() - 7 - 2**63, _seven() - 8, rounding_mode="trunc"),
        -(2**63),
    ),
}


def _seven(dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.full((3,), 7, dtype=dtype)


@pytest.mark.parametrize("name", KNOWN)
def test_integer_division_of_constants_by_zero(name: str) -> None:
    """XLA computes them while it compiles, and jaxlib 0.10 ended the process."""
    want: list[int] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        found, wanted = KNOWN[name]()
        want[:] = [wanted] * 3
        return torch.cat([found, x.to(found.dtype)])

    assert xf.jit(f)(torch.arange(1)).tolist() == [*want, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_ldexp_by_integers_is_exact(dtype: torch.dtype) -> None:
    """Where 2 to the exponent, or its inverse, overflows; torch has a kernel since 2.13."""
    end = torch.finfo(dtype)
    x = torch.tensor([end.tiny, end.max, 0.0, math.inf, -1.5], dtype=dtype)
    most = round(math.log2(end.max)) - 1
    exponents = torch.tensor([most + 5, -most - 5, 2 * most, -2 * most, 3])
    want = torch.ldexp(x.double(), exponents) if dtype is not torch.float64 else None
    if want is None:
        want = torch.from_numpy(np.ldexp(x.numpy(), exponents.numpy()))
    if torch.ldexp(x[2], exponents[2]).isnan():
        pytest.skip("this torch multiplies by a power")
    found = xf.device_get(xf.jit(torch.ldexp)(x, exponents))
    torch.testing.assert_close(found, want.to(dtype), rtol=0, atol=0)
    torch.testing.assert_close(found, torch.ldexp(x, exponents), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_second_derivative_of_copysign_is_zero(dtype: torch.dtype) -> None:
    """torch's is that of a quotient by x, but for rounding."""
    x = torch.tensor([3.3, -0.1, 7.7, 0.0], dtype=dtype)
    y = torch.tensor([-1.0, 2.0, 3.0, -1.0], dtype=dtype)

    def slope(x: torch.Tensor) -> torch.Tensor:
        return xf.grad(lambda x: torch.copysign(x, y).sum())(x)

    assert slope(x).tolist() == [-1.0, -1.0, 1.0, 0.0]
    assert xf.grad(lambda x: slope(x).sum())(x).tolist() == [0.0] * 4
    assert xf.jvp(slope, (x,), (x,))[1].tolist() == [0.0] * 4
