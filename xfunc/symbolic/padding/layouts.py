"""The positions of the exact dimension's elements in a padded one.

NOTE [factors]: a dimension is a list of factors, row-major: pieces that have a size in the bucket
and a valid length. ``[B, S]`` reshaped to ``[B*S]`` has two, and its elements are in rows of the
bucket's S, of which the first S are valid. A value that is constant along a dimension fits any
layout there: its layout is *uniform*, or None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from xfunc.symbolic.polynomial import Size, as_polynomial, product, simplest
from xfunc.symbolic.shape_domain import ShapeDomain
from xfunc.symbolic.solve import is_whole


class Factor(NamedTuple):
    """A piece of a dimension.

    Attributes:
        size: its size in the bucket.
        valid: how many elements belong to the exact shape: a number if all do.
    """

    size: int
    valid: Size

    @property
    def is_padded(self) -> bool:
        """Whether some of it is padding at some sizes."""
        return not isinstance(self.valid, int)


Layout = tuple[Factor, ...]
MaybeLayout = Layout | None  # None: uniform


def own(size: int, valid: Size) -> Layout:
    """The layout of a dimension with its padding at the end."""
    return canonical([Factor(size, valid)])


def canonical(factors: Iterable[Factor]) -> Layout:
    """The layout in canonical form, where factors without padding are merged into others."""
    found: list[Factor] = []
    for f in factors:
        if f.size == 1 and f.valid == 1:
            continue
        if found and not f.is_padded:
            last = found.pop()
            f = Factor(last.size * f.size, simplest(as_polynomial(last.valid) * f.valid))
        found.append(f)
    return tuple(found)


def is_padded(layout: MaybeLayout) -> bool:
    """Whether a dimension has padding that may hold something other than its elements."""
    return layout is not None and any(f.is_padded for f in layout)


def split(
    factors: Sequence[Factor], dims: Sequence[tuple[int, Size]], box: ShapeDomain
) -> list[Layout] | None:
    """Deal factors out to new dimensions (sizes and valid lengths), as a reshape does.

    None if a factor would have to be cut so that its padding is not at the end of each piece, at
    some sizes in the box.
    """
    left = list(canonical(factors))
    found: list[Layout] = []
    for size, valid in dims:
        taken: list[Factor] = []
        while (have := _size(taken)) < size:
            if not left:
                return None
            f = left.pop(0)
            if have * f.size > size:
                head = size // have
                head_valid = as_polynomial(valid).divided(product(t.valid for t in taken))
                if size % have or f.size % head or head_valid is None:
                    return None
                if not is_whole(head_valid, box):  # The second half of odd rows is in both.
                    return None
                rest = f.size // head
                if as_polynomial(f.valid) != head_valid * rest:
                    return None
                left.insert(0, Factor(rest, rest))
                f = Factor(head, simplest(head_valid))
            taken.append(f)
        if _size(taken) != size or as_polynomial(product(t.valid for t in taken)) != valid:
            return None
        found.append(canonical(taken))
    return None if left else found


def _size(factors: Iterable[Factor]) -> int:
    n = 1
    for f in factors:
        n *= f.size
    return n
