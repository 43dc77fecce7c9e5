"""The largest batch that fits, found with as few compilations as possible.

The memory of a program grows about linearly with the rows of the batch. So two compilations predict
the limit, and one or two more confirm it. A mesh on which the best batch so far does not fit is
abandoned after one compilation; so are all policies that keep more than one with which it does not
fit.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ..config import Mesh
from ..model import Config

# The policies of `plan.POLICIES`, from those that leave little in HBM to those that leave much.
FROM_SMALL = (
    *("offload", "offload-attention", "full", "attention"),
    *("dots", "dots-attention", "everything"),
)


class Trial(NamedTuple):
    """The result of one compilation.

    Attributes:
        mesh: what was tried.
        policy: likewise.
        batch: rows on all chips together.
        fits: whether the program fits.
        hbm: bytes it takes, or would need, on a chip; None if that is unknown.
        host: bytes it takes on the host for each chip.
        mfu_bound: see `footprint.Footprint`.
    """

    mesh: Mesh
    policy: str
    batch: int
    fits: bool
    hbm: int | None = None
    host: int = 0
    mfu_bound: float | None = None


def meshes(config: Config, chips: int) -> list[Mesh]:
    """The meshes of `chips` chips that divide the key heads and the features evenly."""
    return [
        Mesh(1, chips // tensor, tensor)
        for tensor in (1, 2, 4, 8)
        if chips % tensor == 0
        and config.kv_heads % tensor == 0
        and config.hidden % (chips // tensor) == 0
    ]


def search(
    meshes: Iterable[Mesh],
    policies: Sequence[str],
    measure: Callable[[Mesh, str, int], Trial],
    limit: int,
) -> Iterator[Trial]:
    """Trials on the way to the largest batch, as they are made.

    Args:
        meshes: in the order in which they are tried.
        policies: likewise, those that keep little first.
        measure: compiles a program for a batch.
        limit: the most bytes on a chip.
    """
    batch = 0
    for mesh in meshes:
        for policy in policies:
            first, reached = max(1, math.ceil(batch / mesh.parts)), False
            for trial in _climb(mesh, policy, first, measure, limit):
                yield trial
                if trial.fits:
                    batch, reached = max(batch, trial.batch), True
            if not reached:
                break


def best(trials: Iterable[Trial]) -> Trial | None:
    """The trial of the largest batch that fits; of several, the fastest by its bound."""
    fitting = (t for t in trials if t.fits)
    return max(fitting, key=lambda t: (t.batch, t.mfu_bound or 0.0), default=None)


def _climb(
    mesh: Mesh,
    policy: str,
    first: int,
    measure: Callable[[Mesh, str, int], Trial],
    limit: int,
) -> Iterator[Trial]:
    """Find the most rows per part of a batch, if `first` rows fit."""
    fits, fails = first - 1, math.inf
    points = [(0, 0)]  # rows, and the bytes they take
    rows = first
    while fits < rows < fails:
        trial = measure(mesh, policy, rows * mesh.parts)
        yield trial
        if trial.hbm is not None:
            points.append((rows, trial.hbm))
        fits, fails = (rows, fails) if trial.fits else (fits, rows)
        rows = _guess(points, fits, fails, limit)


def _guess(points: Sequence[tuple[int, int]], fits: int, fails: float, limit: int) -> int:
    """The most rows that will fit, by a line through the last two points."""
    if fits + 1 == fails:
        return fits
    (a, at_a), (b, at_b) = points[-2:]
    slope = (at_b - at_a) / (b - a)
    rows = b + math.floor((limit - at_b) / slope) if slope > 0 else 2 * b
    if len(points) == 2:  # A line through the origin is too steep: it leaves out the fixed part.
        rows = max(rows, fits + 1)
    return int((fits + fails) // 2) if rows >= fails else rows
