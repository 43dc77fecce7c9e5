"""`segment_sum`, `segment_prod`, `segment_max`, `segment_min`: reductions of rows by segment."""

from __future__ import annotations

import functools
import math
import operator

import torch

from xfunc.core.avals import short
from xfunc.core.types import ArrayLike
from xfunc.errors import fail, short_repr
from xfunc.stages.checks import Tensor, as_tensor
from xfunc.trace import tracing
from xfunc.transforms.at import at
from xfunc.transforms.jit import jit


def segment_sum(data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None) -> Tensor:
    """The sums of the rows of each segment.

    Args:
        data: ``[n, ...]``.
        segment_ids: ``[n]``, integers: the segment of each row, in any order. Rows of segments
            that do not exist, negative ones too, are left out.
        num_segments: the number of segments; by default ``segment_ids.max() + 1``, which is not
            known in a traced function.

    Returns:
        ``[num_segments, ...]``; 0 for a segment without rows.

    Raises:
        TypeError: `segment_ids` are not integers, one for each row; or `num_segments` is missing in
            a traced function.

    Example::

        >>> xf.segment_sum(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 2]), 3).tolist()
        [3.0, 0.0, 4.0]

    Semantics: ``jax.ops.segment_sum``.
    """
    return _reduced("segment_sum", data, segment_ids, num_segments)


def segment_prod(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None
) -> Tensor:
    """The products of the rows of each segment; see `segment_sum`.

    Returns:
        ``[num_segments, ...]``; 1 for a segment without rows.

    Semantics: ``jax.ops.segment_prod``.
    """
    return _reduced("segment_prod", data, segment_ids, num_segments)


def segment_max(data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None) -> Tensor:
    """The greatest of the rows of each segment, element by element; see `segment_sum`.

    Equal maxima share the gradient.

    Returns:
        ``[num_segments, ...]``; for a segment without rows -inf, or the least integer.

    Semantics: ``jax.ops.segment_max``.
    """
    return _reduced("segment_max", data, segment_ids, num_segments)


def segment_min(data: ArrayLike, segment_ids: ArrayLike, num_segments: int | None = None) -> Tensor:
    """The least of the rows of each segment, element by element; see `segment_sum`.

    Equal minima share the gradient.

    Returns:
        ``[num_segments, ...]``; for a segment without rows inf, or the greatest integer.

    Semantics: ``jax.ops.segment_min``.
    """
    return _reduced("segment_min", data, segment_ids, num_segments)


def _reduced(name: str, data: ArrayLike, segment_ids: ArrayLike, num: int | None) -> Tensor:
    rows: Tensor = as_tensor(data)
    ids: Tensor = as_tensor(segment_ids)
    if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype is torch.bool:
        fail(
            TypeError,
            f"{name} was given segment_ids of {short(ids)}",
            "pass integers: the segment of each row.",
        )
    if ids.ndim != 1 or rows.shape[:1] != ids.shape:
        fail(
            TypeError,
            f"{name} was given data of {short(rows)} and segment_ids of {short(ids)}",
            "pass one id for each row of the data.",
        )
    if num is None:
        if tracing.current() is not None:
            fail(
                TypeError,
                f"{name} was not given num_segments in a traced function",
                "pass it: the shape of the result depends on it.",
            )
        num = int(ids.max()) + 1 if ids.numel() else 0
    if not hasattr(num, "__index__") or operator.index(num) < 0:
        fail(
            ValueError,
            f"{name} was given num_segments={short_repr(num)}",
            "pass a number from 0 on.",
        )
    return _by_segment(rows, ids, kind=name.removeprefix("segment_"), num=operator.index(num))


@functools.partial(jit, static_argnames=("kind", "num"))
def _by_segment(data: Tensor, ids: Tensor, kind: str, num: int) -> Tensor:
    start = torch.full((num, *data.shape[1:]), _start(kind, data.dtype), dtype=data.dtype)
    place = at(start)[torch.where(ids < 0, num, ids.long())]
    match kind:
        case "sum":
            return place.add(data)
        case "prod":
            return place.mul(data)
        case "max":
            return place.max(data)
        case _:
            return place.min(data)


def _start(kind: str, dtype: torch.dtype) -> float | int:
    if kind in ("sum", "prod"):
        return int(kind == "prod")
    if dtype.is_floating_point:
        return -math.inf if kind == "max" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if kind == "max" else limits.max
