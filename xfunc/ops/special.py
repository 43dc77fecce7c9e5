"""Special functions.

The polynomials and their coefficients are those of the Cephes library by S. L. Moshier, as in
torch's own kernels; they are accurate to float64.
"""

from __future__ import annotations

import math

import torch

from xfunc.ops import cephes
from xfunc.ops.elementwise import floating
from xfunc.ops.emit import loop
from xfunc.ops.registry import kernel

Tensor = torch.Tensor


def wide(x: Tensor) -> tuple[Tensor, torch.dtype]:
    """`x` in float64, in which the kernels compute, and the dtype of the result."""
    (y,) = floating(x)
    return y.to(torch.float64), y.dtype


def horner(x: Tensor, coefficients: list[float]) -> Tensor:
    """A polynomial, from the highest power down."""
    total = torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + c
    return total


# Lanczos's approximation of the gamma function with g = 7.
_LANCZOS = [
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313,
    -176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6,
    1.5056327351493116e-7,
]  # fmt: skip


_EULER = 0.5772156649015329
# Riemann's zeta function minus 1, at 2, 3, ...
_ZETA_LESS_ONE = [
    0.6449340668482264, 0.2020569031595943, 0.08232323371113819, 0.03692775514336993,
    0.01734306198444914, 0.008349277381922827, 0.00407735619794434, 0.0020083928260822143,
    0.0009945751278180853, 0.0004941886041194645, 0.0002460865533080483, 0.00012271334757848915,
    6.124813505870483e-05, 3.058823630702049e-05, 1.528225940865187e-05, 7.637197637899763e-06,
    3.81729326499984e-06, 1.908212716553939e-06, 9.539620338727962e-07, 4.769329867878064e-07,
    2.38450502727733e-07, 1.1921992596531106e-07, 5.960818905125948e-08, 2.980350351465228e-08,
    1.4901554828365043e-08, 7.45071178983543e-09, 3.725334024788457e-09, 1.862659723513049e-09,
]  # fmt: skip


def _log_gamma_after_two(e: Tensor) -> Tensor:
    """The logarithm of ``gamma(2 + e)`` by Taylor's series; for abs(e) <= 0.5."""
    powers = [(-1) ** k * z / k for k, z in enumerate(_ZETA_LESS_ONE, 2)]
    return horner(e, [*reversed(powers), 1 - _EULER, 0.0])


def _lgamma_near_its_zeros(x: Tensor) -> Tensor:
    """By series at the zeros 1 and 2, where Lanczos's terms cancel; for 0.5 <= x <= 2.5."""
    at_one = x < 1.5
    e = x - torch.where(at_one, 1.0, 2.0)
    at_two = _log_gamma_after_two(e)
    return torch.where(at_one, at_two - torch.log1p(e), at_two)


def log_gamma_after(e: Tensor) -> Tensor:
    """The logarithm of ``gamma(1 + e)``, which keeps the digits of small `e`; for 0 <= e <= 1.5."""
    near = e <= 0.5
    at_one, at_two = torch.where(near, e, 0.0), torch.where(near, 0.0, e - 1)
    return torch.where(
        near, _log_gamma_after_two(at_one) - torch.log1p(at_one), _log_gamma_after_two(at_two)
    )


def log_gamma(x: Tensor) -> Tensor:
    z = torch.where(x < 0.5, 1 - x, x) - 1
    total = torch.full_like(z, _LANCZOS[0])
    for k, c in enumerate(_LANCZOS[1:]):
        total = total + c / (z + k + 1)
    t = z + 7.5
    large = 0.5 * math.log(2 * math.pi) + (z + 0.5) * torch.log(t) - t + torch.log(total)
    part = x.abs() - x.abs().floor()
    sine = torch.sin(math.pi * torch.where(part > 0.5, 1 - part, part))
    found = torch.where(x < 0.5, math.log(math.pi) - torch.log(sine) - large, large)
    near = (x >= 0.5) & (x <= 2.5)
    found = torch.where(near, _lgamma_near_its_zeros(torch.where(near, x, 1.0)), found)
    return torch.where(x.isinf() | ((x <= 0) & (part == 0)), math.inf, found)


@kernel("lgamma")
def lgamma(x: Tensor) -> Tensor:
    y, dtype = wide(x)
    return log_gamma(y).to(dtype)


@kernel("digamma")
def digamma(x: Tensor) -> Tensor:
    y, dtype = wide(x)
    below = y < 0.5
    z = torch.where(below, 1 - y, y)
    shift = torch.zeros_like(z)
    for _ in range(10):  # recur upwards, to where the asymptotic series is exact
        small = z < 10
        shift = shift - torch.where(small, 1 / z, 0)
        z = torch.where(small, z + 1, z)
    s = 1 / (z * z)
    series = horner(
        s,
        [1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12, 0],
    )
    found = torch.log(z) - 0.5 / z - series + shift
    # Not ``y - y.floor()``: just below an integer, that rounds.
    cotangent = math.pi / torch.tan(math.pi * (y - y.round()))
    found = torch.where(below, found - cotangent, found)
    found = torch.where(y == 0, torch.copysign(torch.full_like(y, math.inf), -y), found)
    found = torch.where((y < 0) & (y == y.floor()), math.nan, found)
    return torch.where(y == math.inf, y, found).to(dtype)


_BERNOULLI = [
    1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798,
    -174611 / 330, 854513 / 138, -236364091 / 2730,
]  # fmt: skip


def _euler_maclaurin(x: Tensor, q: Tensor) -> Tensor:
    """The Hurwitz zeta function for q > 0; for x = inf, any `q`."""
    total = torch.zeros_like(x)
    terms = 12
    for k in range(terms):
        total = total + torch.pow(q + k, -x)
    single = total
    a = q + terms
    power = torch.pow(a, -x)
    total = total + torch.pow(a, 1 - x) / (x - 1) + power / 2
    factor = x * power / a
    for k, b in enumerate(_BERNOULLI):
        total = total + b / math.factorial(2 * k + 2) * factor
        factor = factor * (x + 2 * k + 1) * (x + 2 * k + 2) / (a * a)
    # As in torch, which stops at a term too small to count.
    return torch.where(x == math.inf, torch.where(single == 0, math.nan, single), total)


def _zeta(x: Tensor, q: Tensor) -> Tensor:
    """The Hurwitz zeta function.

    NOTE [zeta of negative q]: its terms have the bases ``q + k``. Those below 0 are, but for the
    sign, ``g, g + 1, ...`` up to ``-q``, where g in (0, 1) is the distance to the integer above
    the last of them; so their sum is ``(-1)**x * (zeta(x, g) - zeta(x, 1 - q))``. Those above 0 sum
    to ``zeta(x, 1 - g)``.
    """
    x, q = torch.broadcast_tensors(x, q)
    below = q <= 0
    rest = q - q.round()  # exact; 1 - g would be rounded for q just below an integer
    first, g = torch.where(rest > 0, rest, 1 + rest), torch.where(rest > 0, 1 - rest, -rest)
    direct, after, before, beyond = _euler_maclaurin(x, torch.stack([q, first, g, 1 - q]))
    sign = torch.where(x / 2 == (x / 2).floor(), 1.0, -1.0)
    total = torch.where(below & (x != math.inf), after + sign * (before - beyond), direct)
    total = torch.where(below & (x != x.floor()), math.nan, total)
    total = torch.where(q == math.inf, math.nan, total)  # as in torch
    total = torch.where(below & (q == q.floor()), math.inf, total)
    # Where the sum diverges, not even the poles in `q` matter.
    return torch.where(x == 1, math.inf, torch.where(x < 1, math.nan, total))


@kernel("special_zeta")
def zeta(x: Tensor, q: Tensor) -> Tensor:
    x, q = floating(x, q)
    return _zeta(x.double(), q.double()).to(x.dtype)


def _trigamma(x: Tensor) -> Tensor:
    """As in torch, in the result's dtype, which determines the large number at a pole."""
    below = x < 0.5
    rest = x - x.round()
    sine = torch.sin(math.pi * torch.where(rest == 0, x, rest))
    z = torch.where(below, 1 - x, x)
    shift = torch.zeros_like(z)
    for _ in range(10):
        shift = shift + 1 / (z * z)
        z = z + 1
    s = 1 / (z * z)
    found = shift + (1 + 1 / (2 * z) + s * horner(s, _BERNOULLI[6::-1])) / z
    return torch.where(below, math.pi**2 / (sine * sine) - found, found)


@kernel("polygamma")
def polygamma(n: int, x: Tensor) -> Tensor:
    y, dtype = wide(x)
    if n == 0:
        return digamma(y).to(dtype)
    if n == 1:
        return _trigamma(y.to(dtype))
    sign = -1.0 if n % 2 == 0 else 1.0
    order = torch.full_like(y, n + 1.0)
    return (sign * math.gamma(n + 1) * _zeta(order, y)).to(dtype)


def _ndtri(p: Tensor) -> Tensor:
    """The quantile of the normal distribution, of the probability `p`."""
    upper = p > 1 - math.exp(-2)
    y = torch.where(upper, 1 - p, p)
    middle, t = y - 0.5, cephes.NDTRI
    s = middle * middle
    inner = middle + middle * s * horner(s, t["P0"]) / horner(s, t["Q0"])
    x = torch.sqrt(-2 * torch.log(y))
    z = 1 / x
    near = horner(z, t["P1"]) / horner(z, t["Q1"])
    far = horner(z, t["P2"]) / horner(z, t["Q2"])
    tail = x - torch.log(x) / x - z * torch.where(x < 8, near, far)
    outer = torch.where(upper, tail, -tail)
    found = torch.where(y > math.exp(-2), inner * math.sqrt(2 * math.pi), outer)
    found = torch.where(p == 0, -math.inf, torch.where(p == 1, math.inf, found))
    return torch.where((p < 0) | (p > 1), math.nan, found)


@kernel("special_ndtri")
def ndtri(p: Tensor) -> Tensor:
    y, dtype = wide(p)
    return _ndtri(y).to(dtype)


# -- orthogonal polynomials -----------------------------------------------------------------------

_MOST = 512  # terms of a recurrence; beyond, torch itself gives up or loses all digits


def _recurrence(k: Tensor, found: Tensor, a: Tensor, b: Tensor, x: Tensor, n: Tensor, *, kind: str):
    """Step from the polynomials of degrees k and k + 1 to those of degrees k + 1 and k + 2."""
    m = (k + 1).to(x.dtype)
    if kind == "chebyshev":
        new = 2 * x * b - a
    elif kind == "hermite":
        new = 2 * (x * b - m * a)
    elif kind == "hermite_e":
        new = x * b - m * a
    elif kind == "laguerre":
        new = ((2 * m + 1 - x) * b - m * a) / (m + 1)
    else:
        new = ((2 * m + 1) * x * b - m * a) / (m + 1)
    return torch.where(n == k + 2, new, found), b, new


def _polynomial(name: str, kind: str, first: str, shifted: bool = False) -> None:
    def evaluate(x: Tensor | float, n: Tensor | float) -> Tensor:
        x, n = floating(x, n)
        dtype, x, n = x.dtype, x.double(), n.double().trunc()
        if shifted:
            x = 2 * x - 1
        one = {
            "t": lambda: x, "u": lambda: 2 * x, "v": lambda: 2 * x - 1, "w": lambda: 2 * x + 1,
            "laguerre": lambda: 1 - x,
        }[first]()  # fmt: skip
        zero = torch.ones_like(x)
        found = torch.where(n < 0, 0.0, torch.where(n == 0, zero, one))
        state = [found, zero, one.clone()]
        return loop(_recurrence, _MOST, state, [x, n], kind=kind)[0].to(dtype)

    kernel(f"special_{name}", f"special_{name}.x_scalar", f"special_{name}.n_scalar")(evaluate)


for _letter in "tuvw":
    _polynomial(f"chebyshev_polynomial_{_letter}", "chebyshev", _letter)
    _polynomial(f"shifted_chebyshev_polynomial_{_letter}", "chebyshev", _letter, shifted=True)
_polynomial("hermite_polynomial_h", "hermite", "u")
_polynomial("hermite_polynomial_he", "hermite_e", "t")
_polynomial("laguerre_polynomial_l", "laguerre", "laguerre")
_polynomial("legendre_polynomial_p", "legendre", "t")
