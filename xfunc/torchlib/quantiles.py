"""Quantiles in plain operations: torch's write in place, which forward mode cannot follow."""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensor = torch.Tensor

_INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def _quantile(func: Callable[..., Tensor], skip_nan: bool) -> Callable[..., Tensor]:
    def call(
        input: Tensor,
        q: Tensor | float,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
        out: object = None,
    ) -> Tensor:
        x = input
        simple = x.is_floating_point() and x.numel() and interpolation in _INTERPOLATIONS
        in_range = q.dtype == x.dtype and q.ndim < 2 if isinstance(q, Tensor) else 0 <= q <= 1
        if out is not None or not simple or not in_range:  # torch raises its own error.
            return func(x, q, dim, keepdim, interpolation=interpolation)
        places = q if isinstance(q, Tensor) else torch.full((), q, dtype=x.dtype, device=x.device)
        ndim = x.ndim
        rows = x.reshape(-1) if dim is None or not ndim else x.movedim(dim, -1)
        found = _along_rows(rows, places.reshape(-1), interpolation, skip_nan).movedim(-1, 0)
        if keepdim and ndim and dim is None:
            found = found.reshape(-1, *[1] * ndim)
        elif keepdim and ndim and dim is not None:
            found = found.unsqueeze(dim + 1 if dim >= 0 else dim)
        return found if places.ndim else found.squeeze(0)

    return call


def _along_rows(rows: Tensor, q: Tensor, interpolation: str, skip_nan: bool) -> Tensor:
    """Quantiles along the last dimension, one for each element of `q`."""
    values = torch.sort(rows, dim=-1)[0]  # NaN comes last.
    n, nan = rows.shape[-1], rows.isnan()
    if skip_nan:
        last = ((~nan).sum(-1, keepdim=True) - 1).clamp(min=0).to(rows.dtype)
        rank = q * last
    else:
        rank = torch.where(nan.any(-1, keepdim=True), n - 1, q * (n - 1))
    rank = rank.detach()
    if interpolation == "lower":
        rank = rank.floor()
    elif interpolation == "higher":
        rank = rank.ceil()
    elif interpolation == "nearest":
        rank = rank.round()
    low = rank.floor()
    below = values.gather(-1, low.long())
    if interpolation not in ("linear", "midpoint"):
        return below
    above = values.gather(-1, rank.ceil().long())
    weight = torch.full_like(rank, 0.5) if interpolation == "midpoint" else rank - low
    # torch.lerp would differentiate with respect to the weight, and turn values next to NaN into
    # NaN.
    difference = torch.where(below.isnan(), 0, above - below)
    return torch.where(weight < 0.5, below + weight * difference, above - difference * (1 - weight))


QUANTILES: dict[object, Callable[..., object]] = {
    torch.quantile: _quantile(torch.quantile, False),
    Tensor.quantile: _quantile(torch.quantile, False),
    torch.nanquantile: _quantile(torch.nanquantile, True),
    Tensor.nanquantile: _quantile(torch.nanquantile, True),
}
"""The replacements for torch's quantiles."""
