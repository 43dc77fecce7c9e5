"""Special functions of one and two arguments over their whole domains, against SciPy in float64."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.special as sc
import torch

import xfunc as xf

Array = Any
S: Any = torch.special
INF, NAN = float("inf"), float("nan")
TINY = [5e-324, 1e-310, 2.3e-308, 1e-300, 1e-100, 1e-30, 1e-16, 1e-8, 1e-4]
PLAIN = [0.01, 0.1, 0.25, 0.5, 0.9, 0.999999, 1.0, 1.0000001, 1.5, 1.9, 2.0, 2.1, 2.5, 3.0, 3.9]
PLAIN += [4.0, 5.0, 5.5, 7.9, 8.0, 8.1, 9.0, 12.3, 15.9, 20.0, 24.5, 25.0, 26.0, 30.0]
LARGE = [36.0, 50.0, 99.5, 150.0, 170.5, 172.0, 300.0, 700.0, 710.0, 745.0, 1e3, 1e4, 1e6]
HUGE = [1e8, 1e15, 1e16, 1e30, 1e100, 1e300, 1.7e308, INF]
POSITIVE = [0.0, *TINY, *PLAIN, *LARGE, *HUGE]
REAL = [*POSITIVE, *(-x for x in POSITIVE), NAN]
BELOW = [-1e-8, -0.01, -0.1, -0.5, -0.999, -1.001, -1.5, -2.25, -3 + 1e-6, -3.9, -7 - 1e-9]
BELOW += [-9.0001, -9.5, -12.3, -12.5, -24.5, -50.25, -99.5, -1000.25]
UNIT = [*np.linspace(-1, 1, 41), *(s * (1 - e) for s in (-1, 1) for e in (1e-16, 1e-9, 1e-4))]


SHAPES = [x for x in POSITIVE if x == 0 or x == INF or 1e-301 < x < 1e308]
LARGE_AND_SMALL = [*(10.0**k for k in range(-8, 9)), 0.3, 1.2, 7.0, 19.9, 20.1, 45.0, 350.0, 2e5]
RATIOS = [1e-3, 0.1, 0.34, 0.36, 0.5, 0.7, 0.71, 0.9, 0.99, 0.9999, 1 - 1e-9, 1.0]
RATIOS += [1 + 1e-9, 1.0001, 1.01, 1.1, 1.29, 1.31, 1.6, 2.2, 2.4, 5.0, 30.0]
LEAST = 2.3e-308  # XLA takes smaller numbers for 0.


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of torch, its exact values, and where they are compared.

    Attributes:
        rtol, atol: how far results may be from SciPy's.
    """

    f: Callable[..., torch.Tensor]
    exact: Callable[..., Array]
    points: tuple[list[float], ...]
    rtol: float = 1e-12
    atol: float = 0.0


def _orders(name: str, exact: Callable[..., Array], points: list[float]) -> Function:
    orders = [0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0]
    return Function(lambda n, x: getattr(S, name)(x, n), exact, (orders, points), 1e-9, 1e-12)


def _chebyshev(first: Callable[[Array], Array]) -> Callable[[Array, Array], Array]:
    def exact(n: Array, x: Array) -> Array:
        x = x.astype(np.longdouble)
        last, new, found = np.ones_like(x), first(x), np.ones_like(x)
        for degree in range(1, 14):
            found = np.where(n == degree, new, found)
            last, new = new, 2 * x * new - last
        return found

    return exact


def _by_mpmath(f: Callable[[float], Any]) -> Callable[[Array], Array]:
    """SciPy's own values are less exact near zeros and poles."""

    def exact(x: float) -> float:
        if not np.isfinite(x) or (x <= 0 and x == np.floor(x)):
            return float(sc.psi(x) if f is mpmath.digamma else sc.gammaln(x))
        return float(mpmath.re(f(mpmath.mpf(x))))

    return np.vectorize(exact, otypes=[float])


def _polygamma_by_mpmath(n: int) -> Callable[[Array], Array]:
    """Near their zeros, those of even order are the difference of large numbers."""

    def exact(x: float) -> float:
        with mpmath.workdps(40):
            return float(mpmath.psi(n, mpmath.mpf(x)))

    return np.vectorize(exact, otypes=[float])


FUNCTIONS: dict[str, Function] = {
    "gammainc": Function(S.gammainc, sc.gammainc, (SHAPES, [*POSITIVE, NAN]), 1e-11),
    "gammaincc": Function(S.gammaincc, sc.gammaincc, (SHAPES, [*POSITIVE, NAN]), 1e-11),
    # SciPy is right to 2e-10 at a = 1e6 and x = 0.99 a, to 2e-9 at 1e7.
    "gammainc near a": Function(
        lambda a, r: S.gammainc(a, a * r),
        lambda a, r: sc.gammainc(a, a * r),
        (LARGE_AND_SMALL, RATIOS),
        2e-9,
        1e-300,
    ),
    "gammaincc near a": Function(
        lambda a, r: S.gammaincc(a, a * r),
        lambda a, r: sc.gammaincc(a, a * r),
        (LARGE_AND_SMALL, RATIOS),
        2e-9,
        1e-300,
    ),
    # SciPy stops early where x - 1 and q are small; torch has NaN, not 0, at infinite q.
    "zeta": Function(
        S.zeta,
        sc.zeta,
        (
            [1.0, 1.001, 1.5, 2.0, 3.0, 10.0, 60.0, 200.0, NAN],
            [*(q for q in POSITIVE if math.isfinite(q)), -0.5, -3.25, -7.0],
        ),
    ),
    "xlogy": Function(S.xlogy, sc.xlogy, (REAL, [*POSITIVE, -1.0, NAN])),
    "xlog1py": Function(S.xlog1py, sc.xlog1py, (REAL, [*POSITIVE, *UNIT, -2.0, NAN])),
    "logsumexp": Function(
        lambda x, y: torch.logsumexp(torch.stack([x, y]), 0),
        np.logaddexp,
        (REAL, REAL),
        atol=1e-15,
    ),
    "logaddexp": Function(torch.logaddexp, np.logaddexp, (REAL, REAL), atol=1e-307),
    "log_softmax": Function(
        lambda x, y: torch.stack([x, y]).log_softmax(0)[0],
        lambda x, y: -np.logaddexp(0, y - x),
        (POSITIVE[:-1], POSITIVE[:-1]),
        atol=1e-15,
    ),
    "sinc": Function(torch.sinc, np.sinc, (UNIT,), 1e-11, 1e-16),
    "chebyshev_polynomial_t": _orders(
        "chebyshev_polynomial_t", _chebyshev(lambda x: x), [*UNIT, 3.5, -20.0]
    ),
    "shifted_chebyshev_polynomial_t": _orders(
        "shifted_chebyshev_polynomial_t", lambda n, x: _chebyshev(lambda x: x)(n, 2 * x - 1), UNIT
    ),
    "chebyshev_polynomial_u": _orders(
        "chebyshev_polynomial_u", _chebyshev(lambda x: 2 * x), [*UNIT, 3.5, -20.0]
    ),
    "shifted_chebyshev_polynomial_u": _orders(
        "shifted_chebyshev_polynomial_u",
        lambda n, x: _chebyshev(lambda x: 2 * x)(n, 2 * x - 1),
        UNIT,
    ),
    "chebyshev_polynomial_v": _orders(
        "chebyshev_polynomial_v", _chebyshev(lambda x: 2 * x - 1), [*UNIT, 3.5, -20.0]
    ),
    "shifted_chebyshev_polynomial_v": _orders(
        "shifted_chebyshev_polynomial_v",
        lambda n, x: _chebyshev(lambda x: 2 * x - 1)(n, 2 * x - 1),
        UNIT,
    ),
    "chebyshev_polynomial_w": _orders(
        "chebyshev_polynomial_w", _chebyshev(lambda x: 2 * x + 1), [*UNIT, 3.5, -20.0]
    ),
    "shifted_chebyshev_polynomial_w": _orders(
        "shifted_chebyshev_polynomial_w",
        lambda n, x: _chebyshev(lambda x: 2 * x + 1)(n, 2 * x - 1),
        UNIT,
    ),
    "hermite_polynomial_h": _orders(
        "hermite_polynomial_h",
        lambda n, x: sc.eval_hermite(n.astype(int), x),
        [-9.5, *UNIT, 3.3, 30],
    ),
    "hermite_polynomial_he": _orders(
        "hermite_polynomial_he",
        lambda n, x: sc.eval_hermitenorm(n.astype(int), x),
        [*UNIT, 9.9, -30],
    ),
    "laguerre_polynomial_l": _orders(
        "laguerre_polynomial_l", lambda n, x: sc.eval_laguerre(n.astype(int), x), [*UNIT, 5.5, 40]
    ),
    "legendre_polynomial_p": _orders(
        "legendre_polynomial_p", lambda n, x: sc.eval_legendre(n.astype(int), x), [*UNIT, 2.5, -7]
    ),
    "bessel_j0": Function(S.bessel_j0, sc.j0, (REAL,), 1e-10, 1e-15),
    "bessel_j1": Function(S.bessel_j1, sc.j1, (REAL,), 1e-10, 1e-15),
    "bessel_y0": Function(S.bessel_y0, sc.y0, (REAL,), 1e-10, 1e-15),
    "bessel_y1": Function(S.bessel_y1, sc.y1, (REAL,), 1e-10, 1e-15),
    "spherical_bessel_j0": Function(
        S.spherical_bessel_j0,
        lambda x: np.where(np.isinf(x), 0, np.sinc(x / np.pi)),
        (REAL,),
        1e-10,
        1e-15,
    ),
}
ONE = "i0 i0e i1 i1e erf erfc erfcx erfinv expit expm1 log1p ndtr ndtri log_ndtr entr exp2 logit"
for name in ONE.split():
    within = [*UNIT, *TINY] if name in ("erfinv", "ndtri", "logit") else [*UNIT, *REAL]
    FUNCTIONS[name] = Function(getattr(S, name), getattr(sc, name), (within,), 1e-12)
for name, exact in (("digamma", mpmath.digamma), ("gammaln", mpmath.loggamma)):
    points = [*UNIT, *(x for x in REAL if abs(x) < 1e7), -1e15, INF, -INF]
    FUNCTIONS[name] = Function(getattr(S, name), _by_mpmath(exact), (points,), 1e-12, 1e-15)
for name, exact in (("i0", sc.i0), ("i1", sc.i1), ("k0", sc.k0), ("k1", sc.k1)):
    FUNCTIONS[f"modified_bessel_{name}"] = Function(
        getattr(S, f"modified_bessel_{name}"), exact, (REAL,)
    )
for name, exact in (("k0", sc.k0e), ("k1", sc.k1e)):
    f = getattr(S, f"scaled_modified_bessel_{name}")
    FUNCTIONS[f"scaled_modified_bessel_{name}"] = Function(f, exact, (REAL,))
for n in (0, 1, 2, 3, 5, 9):
    FUNCTIONS[f"polygamma {n}"] = Function(
        lambda x, n=n: S.polygamma(n, x),
        lambda x, n=n: sc.polygamma(n, x),
        ([*PLAIN, *LARGE, *TINY[3:]],),
    )
    FUNCTIONS[f"polygamma {n} below 0"] = Function(
        lambda x, n=n: S.polygamma(n, x), _polygamma_by_mpmath(n), (BELOW,), atol=1e-14
    )
for p in (1, 2, 5):
    at = [x + (p - 1) / 2 for x in [*TINY[5:], *PLAIN, *LARGE, 1e15, 1e100, 1e300, INF]]
    FUNCTIONS[f"multigammaln {p}"] = Function(
        lambda x, p=p: S.multigammaln(x, p),
        lambda x, p=p: (
            sum(sc.gammaln(x - j / 2) for j in range(p)) + p * (p - 1) / 4 * np.log(np.pi)
        ),
        (at,), 1e-11, 1e-12,
    )  # fmt: skip


@pytest.mark.sample(25, seed=0)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_function_over_its_domain(name: str) -> None:
    function = FUNCTIONS[name]
    grid = np.array([*itertools.product(*function.points)]).T
    found = np.asarray(xf.device_get(xf.jit(function.f)(*map(torch.from_numpy, grid))))
    with np.errstate(all="ignore"):
        want = np.asarray(function.exact(*grid), float)
        close = np.abs(found - want) <= function.atol + function.rtol * np.abs(want)
    normal = (grid == 0) | (np.abs(grid) >= LEAST) | np.isnan(grid)
    close |= ~normal.all(0) | (np.abs(want) < LEAST) & (np.abs(found) < LEAST)
    close |= (found == want) | (np.isnan(found) & np.isnan(want))
    wrong = [f"{grid[:, k]}: {found[k]!r}, SciPy {want[k]!r}" for k in np.flatnonzero(~close)]
    assert not wrong, "\n".join(wrong)
