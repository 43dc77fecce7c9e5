"""The indices of triangles, for which torch has a kernel for each device and no composite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype = torch.int64, **where: Any
) -> Tensor:
    """``torch.tril_indices``."""
    spans = [(0, min(max(r + offset + 1, 0), col)) for r in range(row)]
    return _indices(spans, dtype, where.get("device"))


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype = torch.int64, **where: Any
) -> Tensor:
    """``torch.triu_indices``."""
    spans = [(min(max(r + offset, 0), col), col) for r in range(row)]
    return _indices(spans, dtype, where.get("device"))


def _indices(spans: list[tuple[int, int]], dtype: torch.dtype, device: Any) -> Tensor:
    """Rows and columns, where each row has the columns of a span."""
    first = torch.tensor([low for low, _ in spans] or [0], device=device)
    ends = torch.tensor([high - low for low, high in spans] or [0], device=device).cumsum(0)
    n = sum(high - low for low, high in spans)
    place = torch.arange(n, device=device)
    rows = torch.searchsorted(ends, place, right=True)
    before = torch.cat([ends.new_zeros(1), ends])
    columns = place - before[rows] + first[rows]
    return torch.stack([rows, columns]).to(dtype)


TRIANGLES: dict[object, Callable[..., Tensor]] = {
    torch.tril_indices: tril_indices,
    torch.triu_indices: triu_indices,
}
"""The replacement for each such function."""
