"""Bessel functions, by rational and Chebyshev approximations accurate to float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from xfunc.ops import cephes
from xfunc.ops.registry import kernel
from xfunc.ops.special import horner, wide

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]


def _chebyshev(x: Tensor, coefficients: list[float]) -> Tensor:
    """Half the sum of Chebyshev polynomials of x / 2, by Clenshaw's recurrence."""
    a, p, q = torch.full_like(x, coefficients[0]), torch.zeros_like(x), torch.zeros_like(x)
    for c in coefficients[1:]:
        p, q = q, a
        a = x * q - p + c
    return 0.5 * (a - p)


def _waves(x: Tensor, table: dict[str, list[float]], phase: float) -> tuple[Tensor, Tensor]:
    """The asymptotic forms of J and Y, for x >= 5."""
    z = 25 / (x * x)
    p = horner(z, table["PP"]) / horner(z, table["PQ"])
    q = 5 / x * horner(z, table["QP"]) / horner(z, table["QQ"])
    cosine, sine = torch.cos(x - phase), torch.sin(x - phase)
    size = math.sqrt(2 / math.pi) / torch.sqrt(x)
    return (p * cosine - q * sine) * size, (p * sine + q * cosine) * size


def _j0(x: Tensor) -> Tensor:
    x = x.abs()
    z, t = x * x, cephes.BESSEL_J0
    ratio = horner(z, t["RP"]) / horner(z, t["RQ"])
    near = (z - 5.78318596294678452118) * (z - 30.4712623436620863991) * ratio
    return torch.where(x <= 5, near, _waves(x, t, math.pi / 4)[0])


def _j1(x: Tensor) -> Tensor:
    y, t = x.abs(), cephes.BESSEL_J1
    z = y * y
    ratio = horner(z, t["RP"]) / horner(z, t["RQ"])
    near = ratio * y * (z - 14.6819706421238932572) * (z - 49.2184563216946036703)
    return torch.sgn(x) * torch.where(y <= 5, near, _waves(y, t, 3 * math.pi / 4)[0])


def _positive(x: Tensor, found: Tensor, at_zero: float) -> Tensor:
    return torch.where(x == 0, at_zero, torch.where(x < 0, math.nan, found))


def _y0(x: Tensor) -> Tensor:
    z, t = x * x, cephes.BESSEL_Y0
    near = horner(z, t["YP"]) / horner(z, t["YQ"]) + 2 / math.pi * torch.log(x) * _j0(x)
    return _positive(x, torch.where(x <= 5, near, _waves(x, t, math.pi / 4)[1]), -math.inf)


def _y1(x: Tensor) -> Tensor:
    z, t = x * x, cephes.BESSEL_Y1
    near = x * horner(z, t["YP"]) / horner(z, t["YQ"])
    near = near + 2 / math.pi * (_j1(x) * torch.log(x) - 1 / x)
    return _positive(x, torch.where(x <= 5, near, _waves(x, t, 3 * math.pi / 4)[1]), -math.inf)


def _scaled_i(x: Tensor, table: dict[str, list[float]], odd: bool) -> Tensor:
    """exp(-|x|) times the modified function of the first kind."""
    y = x.abs()
    near = _chebyshev(y / 2 - 2, table["A"])
    far = _chebyshev(32 / y - 2, table["B"]) / torch.sqrt(y)
    found = torch.where(y <= 8, near * y if odd else near, far)
    return torch.sgn(x) * found if odd else found


def _i0e(x: Tensor) -> Tensor:
    return _scaled_i(x, cephes.MODIFIED_BESSEL_I0, False)


def _i1e(x: Tensor) -> Tensor:
    return _scaled_i(x, cephes.MODIFIED_BESSEL_I1, True)


def _i0(x: Tensor) -> Tensor:
    return torch.exp(x.abs()) * _i0e(x)


def _i1(x: Tensor) -> Tensor:
    return torch.exp(x.abs()) * _i1e(x)


def _scaled_k(x: Tensor, order: int) -> Tensor:
    """exp(x) times the modified function of the second kind."""
    table = (cephes.MODIFIED_BESSEL_K0, cephes.MODIFIED_BESSEL_K1)[order]
    near = _chebyshev(x * x - 2, table["A"])
    log = torch.log(x) - math.log(2)  # half of the smallest numbers is 0
    near = near - log * _i0(x) if order == 0 else near / x + log * _i1(x)
    far = _chebyshev(8 / x - 2, table["B"]) / torch.sqrt(x)
    return _positive(x, torch.where(x <= 2, near * torch.exp(x), far), math.inf)


def _spherical(x: Tensor) -> Tensor:
    small = x.abs() < 0.5
    z = x * x
    series = horner(z, [(-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1)])
    found = torch.where(small, series, torch.sin(x) / torch.where(x == 0, 1, x))
    return torch.where(x.isinf(), 0.0, found)


def _erfcx(x: Tensor) -> Tensor:
    """exp(x^2) erfc(x)."""
    near = torch.exp(x * x) * torch.erfc(x)
    s = 1 / (2 * x * x)
    far = horner(s, [-135135.0, 10395.0, -945.0, 105.0, -15.0, 3.0, -1.0, 1.0])
    return torch.where(x < 10, near, far / (x * math.sqrt(math.pi)))


def _put(name: str, function: Function) -> None:
    def run(x: Tensor) -> Tensor:
        y, dtype = wide(x)
        return function(y).to(dtype)

    kernel(name)(run)


_put("i0", _i0)
_put("special_bessel_j0", _j0)
_put("special_bessel_j1", _j1)
_put("special_bessel_y0", _y0)
_put("special_bessel_y1", _y1)
_put("special_i0e", _i0e)
_put("special_i1", _i1)
_put("special_i1e", _i1e)
_put("special_modified_bessel_i0", _i0)
_put("special_modified_bessel_i1", _i1)
_put("special_modified_bessel_k0", lambda x: torch.exp(-x) * _scaled_k(x, 0))
_put("special_modified_bessel_k1", lambda x: torch.exp(-x) * _scaled_k(x, 1))
_put("special_scaled_modified_bessel_k0", lambda x: _scaled_k(x, 0))
_put("special_scaled_modified_bessel_k1", lambda x: _scaled_k(x, 1))
_put("special_spherical_bessel_j0", _spherical)
_put("special_erfcx", _erfcx)
_put(
    "special_log_ndtr",
    lambda x: torch.where(
        x < -1,
        torch.log(_erfcx(-x / math.sqrt(2)) / 2) - x * x / 2,
        torch.log1p(-torch.erfc(x / math.sqrt(2)) / 2),
    ),
)
