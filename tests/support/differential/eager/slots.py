"""Templates of lines: text with slots such as ``{x}``, and what fills them.

The first tensor of a template is what `{y}`, `{dim}`, `{index}` and the like are made for.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from tests.support.differential.draft import broadcasts

from .indices import index
from .writer import DTYPES, SHAPES, DoesNotFit, Tensor, Writer

OPERANDS = {
    "x": "any", "f": "float", "c": "complex", "g": "inexact", "i": "int", "b": "bool",
    "r": "real", "n": "number", "w": "whole",
}  # fmt: skip
LARGE = "-129 128 255 256 32767 -32769 2147483647 1000000".split()


class Slots:
    """What a template has been filled with so far."""

    def __init__(self, writer: Writer):
        self._writer = writer
        self._first: Tensor | None = None
        self._dimension = 0
        self._count = 1
        self._there: Tensor | None = None

    def fill(self, template: str) -> str:
        """The text; raises `DoesNotFit`."""
        return re.sub(r"\{(\w+)\}", lambda m: self._slot(m[1]), template)

    def _slot(self, name: str) -> str:
        w = self._writer
        if name in OPERANDS:  # {x}: any tensor; {f}: a float; ...
            return self._named(w.some(OPERANDS[name]))
        if name[0] == "o" and (name[1:] or "x") in OPERANDS:  # {o}, {of}: may be changed
            return self._named(w.owned(OPERANDS[name[1:] or "x"]))
        if name[0] == "y" and (name[1:] or "x") in OPERANDS:  # {y}, {yf}: broadcasts with the first
            return self._partner(OPERANDS[name[1:] or "x"])
        return getattr(self, f"slot_{name}")()

    def _named(self, name: str) -> str:
        if self._first is None:
            self._first = self._writer.values[name]
        return name

    @property
    def first(self) -> Tensor:
        if self._first is None:
            self._named(self._writer.some())
        assert self._first is not None
        return self._first

    # -- tensors that go with the first -----------------------------------------------------------

    def _partner(self, kind: str) -> str:
        shape = self.first.shape
        return self._writer.like(
            kind, lambda t: broadcasts(t.shape, shape) or broadcasts(shape, t.shape), shape
        )

    def slot_within(self) -> str:
        """A tensor that broadcasts to the first."""
        shape = self.first.shape
        return self._writer.like("any", lambda t: broadcasts(t.shape, shape), shape)

    def slot_same(self) -> str:
        """A tensor of the shape and dtype of the first."""
        x, w = self.first, self._writer
        try:
            return w.pick("any", lambda t: t.shape == x.shape and t.dtype == x.dtype)
        except DoesNotFit:
            return f"({w.literal(x.dtype, x.shape)})"

    def slot_mask(self) -> str:
        """A boolean tensor that broadcasts to the first."""
        shape = self.first.shape
        return self._writer.like("bool", lambda t: broadcasts(t.shape, shape), shape)

    def slot_matrix(self) -> str:
        return self._named(self._writer.some("number", lambda t: t.ndim == 2))

    def slot_tall(self) -> str:
        """A tensor with dimensions."""
        return self._named(self._writer.some("any", lambda t: t.ndim > 0))

    def slot_tallnumber(self) -> str:
        return self._named(self._writer.some("number", lambda t: t.ndim > 0))

    def slot_tallreal(self) -> str:
        return self._named(self._writer.some("real", lambda t: t.ndim > 0))

    def slot_talloat(self) -> str:
        return self._named(self._writer.some("float", lambda t: t.ndim > 0))

    def slot_right(self) -> str:
        """What the first can be multiplied with as a matrix, of its dtype."""
        x, w = self.first, self._writer
        n = x.shape[-1] if x.ndim else 1
        return f"({w.literal(x.dtype, w.choose(((n, 2), (n,), (n, n))))})"

    # -- positions --------------------------------------------------------------------------------

    def slot_d(self) -> str:
        """A dimension of the first."""
        n = self.first.ndim
        self._dimension = self._writer.count(-n, max(n, 1) - 1)
        return str(self._dimension)

    def _size(self) -> int:
        return self.first.shape[self._dimension] if self.first.ndim else 1

    def slot_k(self) -> str:
        """A position along the dimension."""
        n = self._size()
        return str(self._writer.count(-n, n - 1)) if n else "0"

    def slot_length(self) -> str:
        return str(self._writer.count(0, self._size()))

    def slot_order(self) -> str:
        dims = list(range(self.first.ndim))
        self._writer.random.shuffle(dims)
        return str(tuple(dims))

    def slot_dims(self) -> str:
        n = self.first.ndim
        return str(tuple(self._writer.random.sample(range(n), self._writer.count(min(n, 1), n))))

    def slot_positions(self) -> str:
        """A vector of positions along the dimension, some twice.

        Along one of size zero there are none, as torch says of all but `index_add`.
        """
        w, n = self._writer, self._size()
        if not n:
            raise DoesNotFit
        at = [w.count(0, n - 1) for _ in range(w.count(1, 3))]
        self._count = len(at)
        return f"torch.tensor({at}{w.choose(('', '', ', dtype=torch.int32'))})"

    def slot_rows(self) -> str:
        """As many slices along the dimension as there are positions, of the first's dtype."""
        shape = list(self.first.shape)
        if shape:
            shape[self._dimension] = self._count
        return f"({self._writer.literal(self.first.dtype, shape)})"

    def slot_grid(self) -> str:
        """Positions along the dimension, for each entry of the first."""
        x, w, n = self.first, self._writer, max(self._size(), 1)
        return f"({w.literal(torch.int64, x.shape)} % {n})"

    def slot_once(self) -> str:
        """The same, each position once: of several values for one, torch keeps any.

        Its gradients are wrong then, as its manual says.
        """
        x, w, n = self.first, self._writer, self._size()
        rows = [w.random.sample(range(n), n) for _ in range(x.numel() // max(n, 1))]
        places = torch.tensor(rows, dtype=torch.int64)
        if x.ndim:
            d = self._dimension % x.ndim
            rest = [s for k, s in enumerate(x.shape) if k != d]
            places = places.reshape(*rest, n).movedim(-1, d)
        else:
            places = places.reshape(())
        return f"torch.tensor({places.tolist()}, dtype=torch.int64).reshape({tuple(x.shape)})"

    def slot_index(self) -> str:
        """An index of the first."""
        text, self._there = index(self._writer, self.first)
        return text

    def slot_value(self) -> str:
        """What may be put at the index: a number, or a tensor that broadcasts there."""
        w = self._writer
        assert self._there is not None
        shape = self._there.shape
        if w.chance(0.3):
            return self.slot_s()
        return w.like("any", lambda t: broadcasts(t.shape, shape), shape)

    def slot_shape(self) -> str:
        """A shape of as many entries as the first has."""
        n = self.first.numel()
        shapes: list[Any] = [(-1,), (n, 1), (1, n)]
        shapes += [s for s in ((2, 3), (3, 2), (2, 2), (4, 3), (2, 6), (3, 4)) if s[0] * s[1] == n]
        return str(self._writer.choose(shapes))

    # -- numbers and dtypes -----------------------------------------------------------------------

    def slot_s(self) -> str:
        """A number of Python."""
        w = self._writer
        floats, ints = ("0.5", "-1.25", "2.0", "0.0"), ("2", "-1", "3", "0", "1")
        return w.choose((w.choose(floats), w.choose(ints), w.choose(ints), "True"))

    def slot_ks(self) -> str:
        return str(self._writer.count(-2, 3))

    def slot_large(self) -> str:
        return self._writer.choose(LARGE)

    def slot_p(self) -> str:
        return self._writer.choose(("0.5", "1.5", "2", "3"))

    def slot_dt(self) -> str:
        return str(self._writer.choose(DTYPES))

    def slot_fdt(self) -> str:
        return str(self._writer.dtype("float"))

    def slot_idt(self) -> str:
        return str(self._writer.dtype("int"))

    def slot_new(self) -> str:
        return str(self._writer.choose(SHAPES))

    def slot_flag(self) -> str:
        return self._writer.choose(("True", "False"))
