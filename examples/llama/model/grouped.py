"""Grouped matrix products, for experts: each row is multiplied by one of a few matrices.

Rows are sorted by matrix and cut into blocks of one matrix each, the last block of a matrix padded:
there are as many products as blocks, however unevenly the rows are spread. On TPUs a kernel of
JAX's computes all of them. XLA's `ragged_dot` expresses the same, but on the CPU it becomes a
product of every row with every matrix, and so does its gradient for the matrices on TPUs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

import xfunc as xf

from . import kernels
from .attention import wide


class Sorted(NamedTuple):
    """Rows by kind: each token has several rows, one for each matrix, or device, that it chose."""

    kind: Int[Tensor, "tokens choices"]
    order: Int[Tensor, " rows"]  # those of the first kind first
    counts: Int[Tensor, " kinds"]  # how many rows each has
    rank: Int[Tensor, "tokens choices"]  # how many earlier rows each has of its kind


class Places(NamedTuple):
    """The places of rows in a buffer."""

    source: Int[Tensor, " places"]  # the row that each place holds; any row if it holds none
    filled: Bool[Tensor, " places"]  # whether it holds one
    place: Int[Tensor, "tokens choices"]  # where each row is; any place if it is nowhere
    here: Bool[Tensor, "tokens choices"]  # whether it is somewhere


class Layout(NamedTuple):
    """Rows in blocks, each of one matrix."""

    places: Places
    matrix: Int[Tensor, " blocks"]
    used: Int[Tensor, ""]  # how many blocks hold rows; they come first
    sizes: Int[Tensor, " matrices"] | None  # for the kernel: the rows in the blocks of each matrix


def by_kind(kind: Int[Tensor, "tokens choices"], kinds: int) -> Sorted:
    """Sort rows. A row whose kind is `kinds` is of none."""
    device, rows, flat = kind.device, kind.numel(), kind.flatten().int()
    counts = (flat[:, None] == torch.arange(kinds, device=device)).sum(0)
    # A single array of int32 is sorted: libtpu took many minutes to compile two argsorts of int64.
    index = torch.arange(rows, dtype=torch.int32, device=device)
    assert (kinds + 1) * rows <= 2**31, "too many rows for one device"
    order = (flat * rows + index).sort().values % rows
    return Sorted(kind, order, counts, _earlier(flat, kinds + 1).unflatten(0, kind.shape))


def layout(
    chosen: Int[Tensor, "tokens choices"], matrices: int, block: int, *, kernel: bool = False
) -> Layout:
    """Rows sorted by matrix, in blocks of `block` rows.

    Rows are left out that have chosen a negative number, or none below `matrices`.
    """
    device, rows = chosen.device, chosen.numel()
    here = (chosen >= 0) & (chosen < matrices)
    found = by_kind(torch.where(here, chosen, matrices), matrices)
    counts = found.counts
    blocks = (counts + (block - 1)) // block
    last = blocks.cumsum(0)
    first, before = last - blocks, counts.cumsum(0) - counts  # the first block, the rows before

    most = max(rows, rows + matrices * (block - 1)) // block
    number = torch.arange(most, device=device)
    matrix = (number[:, None] >= last).sum(1).clamp(max=matrices - 1)
    within = (number - first[matrix])[:, None] * block + torch.arange(block, device=device)
    filled = (within < counts[matrix][:, None]) & (number < last[-1])[:, None]
    source = found.order[(before[matrix][:, None] + within).flatten().clamp(max=rows - 1)]

    mine = found.kind.clamp(max=matrices - 1)
    place = torch.where(here, first[mine] * block + found.rank, 0)
    sizes = (blocks * block).int() if kernel else None
    return Layout(Places(source, filled.flatten(), place, here), matrix, last[-1], sizes)


def queues(rows: Sorted, size: int, start: int | Tensor) -> Places:
    """Of each kind the rows from the rank `start` on, `size` at most: a part of a buffer."""
    counts, total = rows.counts, rows.order.shape[0]
    within = start + torch.arange(size, device=counts.device)
    filled = within < counts[:, None]
    before = (counts.cumsum(0) - counts)[:, None]
    source = rows.order[(before + within).flatten().clamp(max=total - 1)]
    rank = rows.rank - start
    here = (rank >= 0) & (rank < size)
    return Places(source, filled.flatten(), torch.where(here, rows.kind * size + rank, 0), here)


def _earlier(chosen: Int[Tensor, " rows"], kinds: int) -> Int[Tensor, " rows"]:
    """How many earlier entries equal each. Entries are compared with those in the same part only:
    so many comparisons take less time than a sort.
    """
    rows = chosen.numel()
    size = min(rows, 512)
    parts = F.pad(chosen, (0, -rows % size), value=kinds).unflatten(0, (-1, size))
    place = torch.arange(size, device=chosen.device)
    same = (parts[:, :, None] == parts[:, None, :]) & (place[None, :] < place[:, None])
    counts = (parts[:, :, None] == torch.arange(kinds, device=chosen.device)).sum(1)
    before = counts.cumsum(0) - counts  # in the parts before
    found = same.sum(2) + before.gather(1, parts.clamp(max=kinds - 1).long())
    return found.flatten()[:rows]


# -- rows to places and back -----------------------------------------------------------------------
#
# Each is the other's gradient, so that neither needs a scatter-add, which is slow on TPUs.


@xf.custom_vjp
def to_places(x: Float[Tensor, "tokens size"], where: Places) -> Float[Tensor, "places size"]:
    """The token of each place."""
    return x[where.source // where.place.shape[1]]


def _backward_to(where: Places, ct: Tensor) -> tuple[Tensor, None]:
    return wide(from_places(ct, where)).sum(1).to(ct.dtype), None


to_places.defvjp(lambda *args: (to_places(*args), args[1]), _backward_to)


@xf.custom_vjp
def from_places(
    x: Float[Tensor, "places size"], where: Places
) -> Float[Tensor, "tokens choices size"]:
    """The contents of each row's place; zero for a row that has none."""
    return x[where.place].masked_fill(~where.here[..., None], 0.0)


def _backward_from(where: Places, ct: Tensor) -> tuple[Tensor, None]:
    return ct.flatten(0, 1)[where.source].masked_fill(~where.filled[:, None], 0.0), None


from_places.defvjp(lambda *args: (from_places(*args), args[1]), _backward_from)


@xf.custom_vjp
def product(
    x: Float[Tensor, "places in"], weights: Float[Tensor, "matrices out in"], where: Layout
) -> Float[Tensor, "places out"]:
    """Each place times the matrix of its block; zero in blocks that hold no rows."""
    if where.sizes is not None:
        return _by_kernel("product", x, weights, where, axis=2)
    # Each matrix is transposed by itself: libtpu would transpose those of all layers at once.
    return _product(x, lambda i: _at(weights, i).T, weights.shape[1], where)


def _by_kernel(fun: str, x: Tensor, y: Tensor, where: Layout, **settings: int) -> Tensor:
    name, platform = f"{__package__}.grouped_kernel:{fun}", kernels.PLATFORM
    settings |= {"block": x.shape[0] // where.matrix.shape[0], "interpret": platform != "tpu"}
    return xf.call_jax(name, x, y, where.sizes, platform=platform, **settings)[0]


def _product(x: Tensor, matrix: Callable[[Tensor], Tensor], size: int, where: Layout) -> Tensor:
    blocks = where.matrix.shape[0]
    number = torch.arange(blocks, device=x.device)

    def one(_: None, block: tuple[Tensor, Tensor, Tensor]) -> tuple[None, Tensor]:
        i, rows, which = block
        nothing = rows.new_zeros(rows.shape[0], size)
        return None, xf.cond(
            i < where.used, lambda rows: rows @ matrix(which), lambda _: nothing, rows
        )

    _, found = xf.scan(one, None, (number, x.unflatten(0, (blocks, -1)), where.matrix))
    return found.flatten(0, 1)


def _at(weights: Tensor, matrix: Tensor) -> Tensor:
    return weights.narrow(0, matrix, 1)[0]


def _backward(residuals: Any, ct: Tensor) -> tuple[Tensor, Tensor, None]:
    x, weights, where = residuals
    if where.sizes is not None:
        of_x = _by_kernel("product", ct, weights, where, axis=1)
        return of_x, _by_kernel("gradient", ct, x, where), None
    blocks = where.matrix.shape[0]
    rows, cts = x.unflatten(0, (blocks, -1)), ct.unflatten(0, (blocks, -1))

    def add(i: Tensor, total: Tensor) -> Tensor:
        matrix = where.matrix.narrow(0, i, 1)
        made = wide(_at(cts, i)).T @ wide(_at(rows, i))
        return xf.at(total)[matrix].set(total.narrow(0, matrix[0], 1) + made)

    total = xf.fori_loop(0, where.used, add, torch.zeros_like(wide(weights)))
    of_x = _product(ct, lambda i: _at(weights, i), weights.shape[2], where)
    return of_x, total.to(weights.dtype), None


product.defvjp(lambda *args: (product(*args), args), _backward)
