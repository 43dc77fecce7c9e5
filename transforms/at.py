"""`at`: indexed updates that return a new array, with JAX's rules for out-of-bounds indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn, TypedDict

import torch
from typing_extensions import Unpack

from xfunc.core.avals import NUMBERS, short
from xfunc.core.types import ArrayLike
from xfunc.errors import fail, format_error, kind_of, short_repr
from xfunc.stages.checks import Fun, Tensor, as_tensor
from xfunc.stages.transformed import Transform
from xfunc.trace import tracing
from xfunc.transforms.numpy_indexing import IndexPlan, as_index, positions
from xfunc.transforms.scatter import scattered
from xfunc.transforms.while_loop import while_loop
from xfunc.tree import Leaf

_MODES = ("promise_in_bounds", "clip", "drop", "fill")


class Options(TypedDict, total=False):
    """The options of an update; see `IndexUpdateRef`."""

    mode: str | None
    indices_are_sorted: bool
    unique_indices: bool


def at(x: ArrayLike) -> At:
    """Updates of parts of `x` that leave `x` unchanged: ``at(x)[index].add(v)``.

    The index is NumPy's: integers, slices, ``None``, ``...``, integer tensors that broadcast, or a
    boolean mask; negative ones count from the end. `mode` then decides about out-of-bounds indices.

    Args:
        x: a tensor; it may be traced. All methods are differentiable, but `apply` only in forward
            mode where index arrays may repeat a position.

    Returns:
        An object to index: ``at(x)[index]`` has the methods `get`, which returns ``x[index]``, and
        `set`, `add`, `subtract`, `multiply`, `divide`, `power`, `min`, `max` and `apply`, each of
        which returns a new tensor of the shape of `x`.

    Source: ``jax.numpy.ndarray.at``.
    """
    return At(as_tensor(x) if not isinstance(x, Tensor) else x)


class At:
    """The result of `at`."""

    def __init__(self, x: Tensor):
        self._x = x

    def __getitem__(self, index: object) -> IndexUpdateRef:
        return IndexUpdateRef(self._x, index)

    def __getattr__(self, name: str) -> NoReturn:
        hint = f"write at(x)[index].{name}(...), or at(x)[...].{name}(...) for all of x."
        known = not name.startswith("_") and hasattr(IndexUpdateRef, name)
        problem = f"at(x) has no {name} without an index"
        raise AttributeError(format_error(problem, hint) if known else name)


class IndexUpdateRef:
    """Part of an array; each method but `get` returns the whole array, changed there.

    Values broadcast against the part and get the dtype of the array. `mode` says what happens to
    indices out of bounds: they are dropped (``"drop"``, ``"fill"``, and None), or ``"clip"``ped;
    ``"promise_in_bounds"`` means that there are none. The other options tell JAX's compiler about
    the indices; here they have no effect, except in `apply`.
    """

    def __init__(self, x: Tensor, index: object, find_mask: bool = False):
        self._x, self._index = x, index
        self._where, self._arrays = positions(index, tuple(x.shape), find_mask)

    def _update(self, kind: str, values: object, options: Options) -> Tensor:
        values = _checked_values(values, self._x)
        if self._where.mask and tracing.current() is None and not self._is_one_for_all(values):
            return IndexUpdateRef(self._x, self._index, find_mask=True)._update(
                kind, values, options
            )
        return Indexed(_unused, self._where, kind, _mode_of(options))(self._x, self._arrays, values)

    def set(self, values: ArrayLike, **options: Unpack[Options]) -> Tensor:
        """``x[index] = values``; which value a repeated position gets is undefined."""
        return self._update("set", values, options)

    def add(self, values: ArrayLike, **options: Unpack[Options]) -> Tensor:
        """``x[index] += values``, each time that a position is repeated."""
        return self._update("add", values, options)

    def subtract(self, values: ArrayLike, **options: Unpack[Options]) -> Tensor:
        """``x[index] -= values``, each time that a position is repeated."""
        return self._update("add", _negative(values), options)

    def multiply(self, values: ArrayLike, **options: Unpack[Options]) -> Tensor:
        """``x[index] *= values``, each time that a position is repeated."""
        return self._update("mul", values, options)

    mul = multiply

    def divide(self, values: ArrayLike, **options: Unpack[Options]) -> Tensor:
        """``x[index] /= values``, each time that a position is repeated."""
        by = self._of(torch.ones_like(self._x))._update("mul", values, options)
        return self._x.to(by.device) / by

    def power(self, values: ArrayLike, **options: Unpack[Options]) -> Tensor:
        """``x[index] **= values``, each time that a position is repeated."""
        by = self._of(torch.ones_like(self._x))._update("mul", values, options)
        return self._x.to(by.device) ** by

    def min(self, values: ArrayLike, **options: Unpack[Options]) -> Tensor:
        """``x[index] = minimum(x[index], values)``."""
        return self._update("min", values, options)

    def max(self, values: ArrayLike, **options: Unpack[Options]) -> Tensor:
        """``x[index] = maximum(x[index], values)``."""
        return self._update("max", values, options)

    def apply(self, fun: Fun, **options: Unpack[Options]) -> Tensor:
        """``x[index] = fun(x[index])``, each time that a position is repeated.

        `fun` works element by element. Without `unique_indices`, index arrays make this a
        `while_loop`: it can then not be differentiated in reverse mode (in JAX, it never can).
        """
        kind = "apply once" if options.get("unique_indices") else "apply"
        zero = torch.zeros((), dtype=self._x.dtype)
        return Indexed(fun, self._where, kind, _mode_of(options))(self._x, self._arrays, zero)

    def get(self, *, fill_value: object = None, **options: Unpack[Options]) -> Tensor:
        """``x[index]``; indices out of bounds are clipped, or filled with ``mode="fill"``.

        They are filled with `fill_value`; by default NaN, the smallest signed integer, the largest
        unsigned integer, or True.
        """
        fill = _default_fill(self._x.dtype) if fill_value is None else fill_value
        if self._where.mask and tracing.current() is None:
            return IndexUpdateRef(self._x, self._index, find_mask=True).get(
                fill_value=fill_value, **options
            )
        kind = "get" if options.get("mode") in ("fill", "drop") else "get clipped"
        given = Indexed(_unused, self._where, kind, _mode_of(options))
        return given(self._x, self._arrays, _checked_values(fill, self._x))

    def _of(self, x: Tensor) -> IndexUpdateRef:
        """The same part of another array."""
        other = object.__new__(IndexUpdateRef)
        other._x, other._index = x, self._index
        other._where, other._arrays = self._where, self._arrays
        return other

    def _is_one_for_all(self, values: Tensor) -> bool:
        """Whether all places of a mask get the same values."""
        return _fits_mask(values, self._x.ndim - self._arrays[0].ndim)


def _fits_mask(values: Tensor, rest: int) -> bool:
    return values.ndim <= rest or all(n == 1 for n in values.shape[: values.ndim - rest])


def _negative(x: Leaf) -> Leaf:
    return -x


def _unused(x: Tensor) -> Tensor:
    return x


class Indexed(Transform[..., Tensor]):
    """``(x, index arrays, values) -> the result``."""

    def __init__(self, fun: Fun, where: IndexPlan, kind: str, mode: str):
        self._where, self._kind, self._mode = where, kind, mode
        super().__init__(fun, (where, kind, mode), "at")
        self.__name__ = self.__qualname__ = f"at.{kind}"

    def apply(self, x: Tensor, arrays: Sequence[Tensor], values: Tensor) -> Tensor:
        x, values = as_tensor(x), as_tensor(values)
        if x.dtype is torch.bool and self._kind in ("add", "mul", "min", "max"):
            return self.apply(x.int(), arrays, values.int()).bool()
        values = values.to(x.dtype)
        if self._where.mask:
            return self._masked(x, as_tensor(arrays[0]), values)
        places = self._places(x, [as_index(a) for a in arrays])
        if self._kind.startswith("get"):
            return self._read(x, places, values)
        if math.prod(self._where.dims) == 0:
            return x
        if not self._kind.startswith("apply"):
            values = self._arranged(values)
        return self._cut(x, self._where.slices, lambda part: self._write(part, places, values))

    def _masked(self, x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
        rest = x.ndim - mask.ndim
        if self._kind.startswith("get") or not _fits_mask(values, rest):
            fail(
                IndexError,
                f"the number of values in {short(mask)} is not known when tracing",
                "give values that are the same for all places of the mask, or choose with "
                "torch.where(mask, values, x), of the shape of x.",
                function=self.__name__,
            )
        values = values.reshape(values.shape[max(values.ndim - rest, 0) :])
        new = self.fun(x) if self._kind.startswith("apply") else _COMBINE[self._kind](x, values)
        return torch.where(mask.reshape((*mask.shape, *(1,) * rest)), new, x)

    def _places(self, x: Tensor, arrays: list[Tensor]) -> tuple[Tensor, Tensor] | None:
        """Flat positions in the indexed dimensions together, and which are in bounds.

        None if no dimension is indexed by an array.
        """
        if not arrays:
            return None
        found, valid = None, None
        for dim, i in zip(self._where.arrays, arrays, strict=True):
            n = x.shape[dim]
            i = torch.where(i < 0, i + n, i)
            inside = (i >= 0) & (i < n)
            valid = inside if valid is None else valid & inside
            i = i.clamp(0, max(n - 1, 0))
            found = i if found is None else found * n + i
        assert found is not None
        assert valid is not None
        shape = self._where.batch
        if self._mode == "clip" or self._kind == "get clipped":
            valid = torch.ones_like(valid)
        return found.expand(shape).reshape(-1), valid.expand(shape).reshape(-1)

    def _cut(
        self,
        x: Tensor,
        slices: Sequence[tuple[int, int, int, int]],
        change: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """`x` with a part of it changed."""
        if not slices:
            return change(x)
        (dim, start, length, step), *rest = slices
        bounds = dim, start, start + (length - 1) * step + 1, step
        part = x[(*(slice(None) for _ in range(dim)), slice(*bounds[1:]))]
        return torch.slice_scatter(x, self._cut(part, rest, change), *bounds)

    def _rows(self, x: Tensor) -> Tensor:
        """The indexed dimensions flat and in front."""
        moved = x.movedim(self._where.arrays, tuple(range(len(self._where.arrays))))
        return moved.reshape(-1, *moved.shape[len(self._where.arrays) :])

    def _write(self, x: Tensor, where: tuple[Tensor, Tensor] | None, values: Tensor) -> Tensor:
        if where is None:
            if self._kind.startswith("apply"):
                return self.fun(x).to(x.dtype)
            return _COMBINE[self._kind](x, values.reshape(x.shape))
        rows, (places, valid) = self._rows(x), where
        if self._kind.startswith("apply"):
            rows = self._applied(rows, places, valid)
        else:
            values = values.reshape(places.shape[0], *rows.shape[1:])
            rows = scattered(rows, places, valid, values, self._kind)
        front = tuple(range(len(self._where.arrays)))
        shape = [x.shape[d] for d in self._where.arrays]
        return rows.reshape((*shape, *rows.shape[1:])).movedim(front, self._where.arrays)

    def _applied(self, rows: Tensor, places: Tensor, valid: Tensor) -> Tensor:
        if self._kind == "apply once" or places.shape[0] == 1:
            return scattered(rows, places, valid, self.fun(rows[places]).to(rows.dtype), "set")
        count = torch.zeros(rows.shape[0], dtype=torch.int64, device=rows.device)
        count = count.index_add(0, places, valid.long())
        count = count.reshape(-1, *(1,) * (rows.ndim - 1))
        fun = self.fun

        def step(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            k, found = state
            return k + 1, torch.where(count > k, fun(found).to(found.dtype), found)

        start = torch.zeros((), dtype=torch.int64, device=rows.device)
        return while_loop(lambda s: s[0] < count.max(), step, (start, rows))[1]

    def _read(self, x: Tensor, where: tuple[Tensor, Tensor] | None, fill: Tensor) -> Tensor:
        w = self._where
        for dim, start, length, step in w.slices:
            cut = slice(start, start + (length - 1) * step + 1 if length else start, step)
            x = x[(*(slice(None) for _ in range(dim)), cut)]
        kept = [d for kind, d in w.axes if kind == "dim"]
        if where is None:
            part = x
        else:
            rows, (places, valid) = self._rows(x), where
            if not rows.shape[0] and places.shape[0]:
                rows = rows.new_full((1, *rows.shape[1:]), 0)
            found = rows[places]
            if self._kind == "get":
                found = torch.where(valid.reshape(-1, *(1,) * (found.ndim - 1)), found, fill)
            part = found
        sizes = [x.shape[d] for d in kept]
        part = part.reshape((*w.batch, *sizes))
        order = [d if kind == "batch" else len(w.batch) + kept.index(d)
                 for kind, d in w.axes if kind != "new"]  # fmt: skip
        return part.permute(order).reshape(w.dims).flip(w.flipped)

    def _arranged(self, values: Tensor) -> Tensor:
        """Values in the order of the array: the axes of index arrays first."""
        w = self._where
        if values.ndim > len(w.dims) or any(
            n not in (1, d) for n, d in zip(values.shape[::-1], w.dims[::-1], strict=False)
        ):
            fail(
                ValueError,
                f"values of the shape {tuple(values.shape)} do not broadcast to the "
                f"part of the array that is indexed, of the shape {w.dims}",
                "give values that broadcast to it.",
                function=self.__name__,
            )
        values = values.expand(w.dims).flip(w.flipped)
        batch = [k for k, (kind, _) in enumerate(w.axes) if kind == "batch"]
        kept = sorted((d, k) for k, (kind, d) in enumerate(w.axes) if kind == "dim")
        new = [k for k, (kind, _) in enumerate(w.axes) if kind == "new"]
        return values.permute([*new, *batch, *(k for _, k in kept)])


_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "set": lambda x, v: v.expand(x.shape),
    "add": torch.add,
    "mul": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


def _default_fill(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    if dtype is torch.bool:
        return True
    return torch.iinfo(dtype).min if dtype.is_signed else torch.iinfo(dtype).max


def _mode_of(options: Options) -> str:
    for name in options.keys() - Options.__annotations__.keys():
        fail(
            TypeError,
            f"at was given the unknown option {name!r}",
            f"choose from {', '.join(Options.__annotations__)}.",
        )
    mode = options.get("mode")
    if mode is not None and mode not in _MODES:
        fail(
            ValueError,
            f"at was given mode={mode!r}",
            f"choose from {', '.join(map(repr, _MODES))}, or None.",
        )
    return mode or "drop"


def _checked_values(values: object, x: Tensor) -> Tensor:
    """Values, unless the array cannot hold their kind of number."""
    given = as_tensor(values) if not isinstance(values, Tensor) else values
    if not isinstance(given, Tensor):
        what = f"{short_repr(values)} ({kind_of(values)})"
    elif torch.can_cast(given.dtype, x.dtype):
        if type(values) in NUMBERS:  # rounded once
            return torch.tensor(values, dtype=x.dtype)
        return given
    else:
        what = short(given)
    fail(
        TypeError,
        f"at was given values that {short(x)} cannot hold: {what}",
        "convert the values, or the array, with .to(dtype).",
    )
