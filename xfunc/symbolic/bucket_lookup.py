"""Which bucket a call runs in."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xfunc.errors import ShapeError, fail, short_repr
from xfunc.symbolic.auto import Auto, power_of_2
from xfunc.symbolic.dim import Dim
from xfunc.symbolic.shape_domain import Range, ShapeDomain


class Rungs:
    """The buckets of each symbol.

    Args:
        buckets: None or "auto": powers of 2; a list of sizes, for the only symbol; or either one by
            symbol (a `Dim` or its name), or for each symbol in the order of declaration.
        function: its name.
    """

    def __init__(self, buckets: Any, function: str) -> None:
        self._function = function
        self._of: dict[str | None, tuple[int, ...] | None] = {}
        self._grid = [self._checked(b) for b in buckets] if _is_grid(buckets) else None
        given = buckets if isinstance(buckets, Mapping) else {None: None if self._grid else buckets}
        for name, sizes in given.items():
            key = name.name if isinstance(name, Dim) else name
            self._of[key] = None if sizes is None or sizes == "auto" else self._checked(sizes)

    def _checked(self, sizes: Iterable[int]) -> tuple[int, ...]:
        good = isinstance(sizes, Sequence) and not isinstance(sizes, str) and len(sizes) > 0
        if not good or not all(type(n) is int and n > 0 for n in sizes):
            fail(
                ValueError,
                f"buckets of {self._function} are {short_repr(sizes)}",
                'give a list of sizes, "auto", or a dict with either for each Dim.',
            )
        return tuple(sorted(set(sizes)))

    def check(self, box: ShapeDomain) -> None:
        """Refuse buckets that do not fit the symbols."""
        if self._grid is not None:
            if len(self._grid) != len(box.ranges):
                fail(
                    ValueError,
                    f"buckets of {self._function} has {len(self._grid)} lists for the Dims "
                    f"{', '.join(box.ranges)}",
                    "give a list for each Dim.",
                )
            self._of = dict(zip(box.ranges, self._grid, strict=True))
        if None in self._of and self._of[None] is not None and len(box.ranges) > 1:
            names = ", ".join(box.ranges)
            fail(
                ValueError,
                f"buckets of {self._function} are a list of sizes, but there are several Dims: "
                f"{names}",
                'give a dict with a list, or "auto", for each Dim.',
            )
        for name, sizes in self._of.items():
            if name is not None and name not in box.ranges:
                fail(
                    ValueError,
                    f"buckets of {self._function} names {name!r}, which is not one of its Dims",
                    f"its Dims are {', '.join(box.ranges)}.",
                )
            for r in box.ranges.values() if name is None else [box.ranges[name]]:
                bad = next((n for n in sizes or () if n not in r), None)
                if bad is not None:
                    of = name or next(iter(box.ranges))
                    fail(
                        ValueError,
                        f"{bad} is a bucket of {self._function}, but not an allowed size of {of}",
                        "give buckets from min to max, multiples of multiple_of.",
                    )

    def auto(self, box: ShapeDomain) -> Auto | None:
        """Automatic buckets, if none are given for any symbol."""
        return Auto(box) if not any(self._of.values()) else None

    def of(self, name: str, size: int, r: Range) -> tuple[int, int]:
        """The smallest and the largest size of the bucket that holds a size of a symbol."""
        sizes = self._of.get(name, self._of.get(None))
        if sizes is None:
            low, high = power_of_2(size, r)
        else:
            k = bisect.bisect_left(sizes, size)
            if k == len(sizes):
                fail(
                    ShapeError,
                    f"{name} is {size}, but the largest bucket of {self._function} is {sizes[-1]}",
                    "add a larger bucket.",
                )
            low, high = (sizes[k - 1] + 1 if k else r.min), sizes[k]
        low = max(-(-low // r.step) * r.step, r.min)
        return low, high

    def all(self, name: str, r: Range) -> list[tuple[int, int]]:
        """The smallest and the largest sizes of all buckets of a symbol, in order."""
        sizes = self._of.get(name, self._of.get(None))
        last = r.max if sizes is None else sizes[-1]
        if last is None:
            fail(
                ShapeError,
                f"{name} has no largest size, so {self._function} has no last bucket",
                f"declare Dim({name!r}, max=...), or give jit the buckets.",
            )
        result = [self.of(name, r.min, r)]
        while result[-1][1] < last:
            result.append(self.of(name, result[-1][1] + r.step, r))
        return result


def _is_grid(buckets: object) -> bool:
    """Whether these are several lists of sizes, as `xf.buckets` gives them for several symbols."""
    parts = buckets if isinstance(buckets, (tuple, list)) else ()
    return bool(parts) and all(isinstance(b, (tuple, list)) for b in parts)
