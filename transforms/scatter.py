"""Combining rows of an array with values at some positions; some updates may be dropped.

NOTE [dropping]: an update to be dropped goes to the position after the last one, which XLA's
scatter ignores; its value is neutral, so that no gradient comes back from it.
"""

from __future__ import annotations

import math

import torch

from xfunc.stages.checks import Tensor
from xfunc.torchlib.eager import is_eager
from xfunc.torchlib.values import unseen
from xfunc.transforms.custom_jvp import custom_jvp

_REDUCE = {"mul": "prod", "min": "amin", "max": "amax"}


def scattered(rows: Tensor, places: Tensor, valid: Tensor, values: Tensor, kind: str) -> Tensor:
    """The rows with those at places combined with values. See NOTE [dropping]."""
    if not rows.numel():
        return rows
    along = valid.reshape(-1, *(1,) * (rows.ndim - 1))
    if kind in _REDUCE:
        values = torch.where(along, values, _neutral(kind, rows.dtype))
        where = places.reshape(along.shape).expand(values.shape)
        if kind == "mul":
            return _products(rows, values, where)
        return torch.scatter_reduce(rows, 0, where, values, _REDUCE[kind])
    n = rows.shape[0]
    values = torch.where(along, values, torch.zeros((), dtype=rows.dtype, device=rows.device))
    if kind == "add":
        return rows.index_put((places,), values, accumulate=True)
    places = torch.where(valid, places, n)
    if is_eager():  # torch itself has nothing after the last position
        rows = torch.cat([rows, rows[:1]])
        return rows.index_put((places,), values)[:n]
    with unseen():  # Tracing would refuse such a position if it is constant.
        return rows.index_put((places,), values)


@custom_jvp
def _products(rows: Tensor, values: Tensor, places: Tensor) -> Tensor:
    return torch.scatter_reduce(rows, 0, places, values, "prod")


@_products.defjvp
def _products_jvp(
    primals: tuple[Tensor, Tensor, Tensor], tangents: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    # torch 2.9 has zeros for the tangent of this product.
    rows, values, places = primals
    zero, none = values == 0, rows == 0
    zeros = none.long().scatter_add(0, places, zero.long()).gather(0, places)
    factors = torch.where(zero, 1, values)
    rest = _products(torch.where(none, 1, rows), factors, places).gather(0, places)
    others = torch.where(zeros == 0, rest / factors, torch.where((zeros == 1) & zero, rest, 0))
    tangent = tangents[0] * _products(torch.ones_like(rows), values, places)
    return _products(*primals), tangent.scatter_add(0, places, tangents[1] * others)


def _neutral(kind: str, dtype: torch.dtype) -> float:
    if kind == "mul":
        return 1
    if dtype.is_floating_point:
        return math.inf if kind == "min" else -math.inf
    limits = torch.iinfo(dtype)
    return limits.max if kind == "min" else limits.min
