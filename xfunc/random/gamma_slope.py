"""The derivative of a gamma sample with respect to its parameter.

For a sample x drawn with parameter a, its rank P(a, x) stays fixed as `a` varies, where P is the
regularised lower incomplete gamma function. So dx/da = -(dP/da) / (dP/dx).
Source: Figurnov et al., "Implicit reparameterization gradients", 2018. The series and their
stopping rules are those of JAX's `random_gamma_grad`.
"""

from __future__ import annotations

import math

import torch

from xfunc.transforms.while_loop import while_loop

Tensor = torch.Tensor


def gamma_slope(a: Tensor, x: Tensor) -> Tensor:
    """dx/da, elementwise, for samples `x` drawn with parameters `a`."""
    wrong = (x < 0) | (a <= 0) | x.isnan() | a.isnan()
    log = a * torch.log(x) - x - torch.lgamma(a)
    underflow = log < -math.log(torch.finfo(a.dtype).max)
    enabled = ~((x == 0) | wrong | underflow)
    large = (x > 1) & (x > a)
    found = torch.where(
        large, -_by_fraction(a, x, enabled & large), _by_series(a, x, enabled & ~large)
    )
    return torch.where(wrong, math.nan, torch.where(x == 0, 0.0, found))


def _by_series(a: Tensor, x: Tensor, enabled: Tensor) -> Tensor:
    """From the series of the lower function."""
    eps = torch.finfo(a.dtype).eps

    def body(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        going, *before = state
        r, c, total, dc, dtotal = before
        r = r + 1
        dc = dc * (x / r) - (c * x) / (r * r)
        dtotal = dtotal + dc
        c = c * (x / r)
        now = r, c, total + c, dc, dtotal
        rest = (torch.where(going, n, b) for n, b in zip(now, before, strict=True))
        return going & ((dc / dtotal).abs() > eps), *rest

    one, zero = torch.ones_like(a), torch.zeros_like(a)
    end = while_loop(lambda s: s[0].any(), body, (enabled, a, one, one, zero, zero))
    total, dtotal = end[3], end[5]
    return -(dtotal + total * (torch.log(x) - torch.digamma(a + 1))) * x / a


def _by_fraction(a: Tensor, x: Tensor, enabled: Tensor) -> Tensor:
    """From the continued fraction of the upper function."""
    eps = torch.finfo(a.dtype).eps

    def body(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        n, going, *before = state
        total, dtotal, y, z, p1, q1, p2, q2, dp1, dq1, dp2, dq2 = before
        n, y, z = n + 1, y + 1, z + 2
        yn = y * n
        p, q = p1 * z - p2 * yn, q1 * z - q2 * yn
        usable = q != 0
        total = torch.where(usable, p / q, total)
        dp = dp1 * z - p1 - dp2 * yn + p2 * n
        dq = dq1 * z - q1 - dq2 * yn + q2 * n
        change = torch.where(usable, (dp - total * dq) / q, dtotal)
        apart = torch.where(usable, (change - dtotal).abs(), 1.0)
        scale = torch.where(p.abs() > 1 / eps, eps, torch.ones_like(p))
        pairs = (v * scale for v in (p, q, p1, q1, dp, dq, dp1, dq1))
        now = total, change, y, z, *pairs
        rest = (torch.where(going, n, b) for n, b in zip(now, before, strict=True))
        return n, going & (apart > eps), *rest

    y = 1 - a
    z, one, zero = x + y + 1, torch.ones_like(a), torch.zeros_like(a)
    p1, q1 = x + 1, z * x
    total = p1 / q1
    start = total, total * x / q1, y, z, p1, q1, one, x, zero, -x, zero, zero
    n = torch.zeros((), dtype=a.dtype, device=a.device)
    end = while_loop(lambda s: (s[0] < 2000) & s[1].any(), body, (n, enabled, *start))
    total, dtotal = end[2], end[3]
    return -(dtotal + total * (torch.log(x) - torch.digamma(a))) * x
