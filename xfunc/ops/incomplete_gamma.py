"""The regularised incomplete gamma functions."""

from __future__ import annotations

import math

import torch

from xfunc.ops.elementwise import floating
from xfunc.ops.emit import loop
from xfunc.ops.registry import kernel
from xfunc.ops.special import horner, log_gamma, log_gamma_after

Tensor = torch.Tensor
_LARGE = 20.0
"""From here on `a` is large: Temme's expansion holds where `x` is about as large as `a`."""

# NOTE [eta] With ``x = a (1 + mu)`` and ``eta**2 / 2 = mu - log(1 + mu)`` (eta has the sign of mu),
# ``x**a exp(-x) / gamma(a)`` is ``sqrt(a / (2 pi)) exp(-a eta**2 / 2)``, up to Stirling's factor,
# without the cancellation of large logarithms. The coefficients of ``eta / mu`` in powers of eta,
# from the first on, give the expansion: A. Gil, J. Segura and N. M. Temme, "Efficient and accurate
# algorithms for the computation and inversion of the incomplete gamma function ratios", 2012.
_ETA_OVER_MU = [
    -0.3333333333333333, 0.08333333333333333, -0.014814814814814815, 0.0011574074074074073,
    0.0003527336860670194, -0.0001787551440329218, 3.919263178522438e-05, -2.185448510679992e-06,
    -1.85406221071516e-06, 8.296711340953087e-07, -1.7665952736826078e-07, 6.707853543401498e-09,
    1.0261809784240309e-08, -4.382036018453353e-09, 9.14769958223679e-10, -2.5514193994946248e-11,
    -5.830772132550426e-11, 2.4361948020667415e-11, -5.0276692801141755e-12,
    1.1004392031956135e-13, 3.371763262400985e-13, -1.392388722418162e-13, 2.8534893807047445e-14,
    -5.139111834242572e-16, -1.9752288294349442e-15, 8.099521156704561e-16,
    -1.6522531216398162e-16,
]  # fmt: skip


def _half_square_of_eta(mu: Tensor, ratio: Tensor) -> Tensor:
    """``mu - log(ratio)`` for ``mu = ratio - 1``, which keeps its digits near 0."""
    near = mu.abs() < 0.3
    s = torch.where(near, mu / (2 + mu), 0.0)  # log(1 + mu) is 2 atanh(s), and mu - 2 s is s mu.
    odd = [2.0 / k for k in range(25, 1, -2)]
    return torch.where(near, s * mu - s**3 * horner(s * s, odd), mu - torch.log(ratio))


def _stirling(a: Tensor) -> Tensor:
    """The factor of the gamma function beside ``sqrt(2 pi / a) (a / e)**a``."""
    r = 1 / (a * a)
    terms = [-691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12]
    return torch.exp(horner(r, terms) / a)


def _expansion(a: Tensor, mu: Tensor, half_square: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and the upper function, for large `a` and ``-0.65 < mu < 1.3``."""
    eta = torch.copysign(torch.sqrt(2 * half_square), mu)
    d = _ETA_OVER_MU
    n = len(d) - 1
    beta = [torch.zeros_like(a)] * (n - 1) + [torch.full_like(a, d[-2]), torch.full_like(a, d[-1])]
    for k in range(n - 2, -1, -1):
        beta[k] = (k + 2) / a * beta[k + 2] + d[k]
    total = beta[-1]
    for b in beta[-2::-1]:
        total = total * eta + b
    rest = torch.exp(-a * half_square) / torch.sqrt(2 * math.pi * a) * total / (1 + beta[1] / a)
    root = eta * torch.sqrt(a / 2)
    return torch.erfc(-root) / 2 - rest, torch.erfc(root) / 2 + rest


def _lower(k: Tensor, total: Tensor, term: Tensor, a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """One term of the power series of the lower function."""
    term = term * x / (a + k + 1)
    return total + term, term


def _upper(k: Tensor, total: Tensor, term: Tensor, a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """One term of the power series of the upper function."""
    term = term * -x / (k + 1)
    return total + term / (a + k + 1), term


def _fraction(
    k: Tensor, f: Tensor, c: Tensor, d: Tensor, a: Tensor, x: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of Lentz's method for the continued fraction of the upper function."""
    n = (k + 1).to(x.dtype)
    b, factor = x + 2 * n + 1 - a, n * (a - n)
    d = b + factor * d
    d = 1 / torch.where(d == 0, 1e-300, d)
    c = b + factor / c
    c = torch.where(c == 0, 1e-300, c)
    return f * c * d, c, d


def _igamma(a: Tensor, x: Tensor, upper: bool) -> Tensor:
    a, x = floating(a, x)
    dtype, (a, x) = a.dtype, torch.broadcast_tensors(a.double(), x.double())
    one = torch.ones_like(a)
    finite = (a > 0) & (x > 0) & ~a.isinf() & ~x.isinf()
    sa, sx = torch.where(finite, a, 1.0), torch.where(finite, x, 1.0)
    mu = (sx - sa) / sa
    is_large = sa >= _LARGE
    la = torch.where(is_large, sa, _LARGE)
    # x**a exp(-x) / gamma(a): see NOTE [eta].
    half_square = _half_square_of_eta(
        torch.where(is_large, mu, 0.0), torch.where(is_large, sx / sa, 1.0)
    )
    large = torch.sqrt(la / (2 * math.pi)) * torch.exp(-la * half_square) / _stirling(la)
    ma = torch.where(is_large, 1.0, sa)
    front = torch.exp(ma * torch.log(sx) - sx - log_gamma(ma))
    front = torch.where(is_large, large, front)

    is_small = (sx <= 1.1) & torch.where(sx <= 0.5, -0.4 / torch.log(sx) >= sa, 1.1 * sx >= sa)
    by_series = ~is_small & ((sx <= 1) | (sx <= sa))
    series, _ = loop(_lower, 500, [one, one], [sa, torch.minimum(sx, torch.clamp(sa, min=1.1))])
    low = front * series / sa

    ua, ux = torch.where(is_small, sa, 1.0), torch.where(is_small, sx, 1.0)
    alternating, _ = loop(_upper, 30, [torch.zeros_like(a), one], [ua, ux])
    power = ua * torch.log(ux) - log_gamma_after(ua)
    # Divided by `a`, of which a part may be too small to be a normal number.
    small = (-torch.expm1(power) / ua - torch.exp(power) * alternating) * ua

    fx = torch.where(by_series | is_small, torch.maximum(sx, sa) + 1, sx)
    first = fx + 1 - sa
    first = torch.where(first == 0, 1e-300, first)
    fraction, _, _ = loop(_fraction, 500, [1 / first, one * 1e300, 1 / first], [sa, fx])
    high = torch.where(is_small, small, front * fraction)

    lower = torch.where(by_series | is_small, low, 1 - high)
    higher = torch.where(by_series, 1 - low, high)
    expands = is_large & (mu > -0.65) & (mu < 1.3)
    both = _expansion(la, *(torch.where(expands, v, 0.0) for v in (mu, half_square)))
    lower, higher = (torch.where(expands, e, f) for e, f in zip(both, (lower, higher), strict=True))

    found = higher if upper else lower
    ends = (1.0, 0.0) if upper else (0.0, 1.0)
    found = torch.where((x == 0) | a.isinf(), ends[0], torch.where(x.isinf(), ends[1], found))
    found = torch.where((a == 0) & (x > 0), ends[1], found)
    wrong = (x < 0) | (a < 0) | x.isnan() | a.isnan()
    wrong = wrong | ((a == 0) & (x == 0)) | (a.isinf() & x.isinf())
    return torch.where(wrong, math.nan, found).to(dtype)


@kernel("igamma")
def igamma(a: Tensor, x: Tensor) -> Tensor:
    return _igamma(a, x, False)


@kernel("igammac")
def igammac(a: Tensor, x: Tensor) -> Tensor:
    return _igamma(a, x, True)
