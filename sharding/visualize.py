"""`visualize_sharding`: a picture of the devices that hold each part of an array."""

from __future__ import annotations

import dataclasses
import html
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar, cast

import numpy as np
import torch

from xfunc.core.avals import ShapeDtypeStruct, short
from xfunc.core.types import Shaped
from xfunc.errors import ShardingError, fail, short_repr
from xfunc.sharding.arrays import sharding_of
from xfunc.sharding.spec import NamedSharding, check_shape, resolve_sharding

_ROWS, _COLUMNS, _TABLES = 12, 8, 8  # Beyond these, tiles in the middle are left out.
_CELL = 22  # characters at most
_GAP = "..."
_T = TypeVar("_T")
Table = tuple[str, tuple[tuple[str, ...], ...]]  # Which part it shows, and its rows of cells.
_COLOURS = "#dbeafe #fde68a #dcfce7 #fbcfe8 #ede9fe #fed7aa #cffafe #e5e7eb".split()


def visualize_sharding(x: Shaped | Sequence[int] | int, sharding: object = None) -> Picture:
    """Show the devices that hold each part of an array.

    A script prints the picture. An interactive session displays the returned value, in a notebook
    as HTML, so nothing is printed there.

    Each cell is a part, with the numbers of the devices that hold it. Dimensions that are not
    sharded are left out; where more than two are sharded, there is a table for each part of the
    first ones. If there are very many parts, some are left out and shown as ``...``.

    Args:
        x: a tensor on the devices; or, with `sharding`, a shape, or a tensor or `ShapeDtypeStruct`
            of that shape.
        sharding: a `NamedSharding`, or a spec on the mesh in use, which may be an `AbstractMesh`.

    Returns:
        The picture; ``str`` gives its text.

    Raises:
        ShardingError: the sharding does not fit the shape; or the tensor is not on a mesh, or is
            traced: its sharding is chosen when the program is compiled.

    Source: ``jax.debug.visualize_array_sharding``, ``jax.debug.visualize_sharding``.
    """
    if sharding is None and isinstance(x, ShapeDtypeStruct):
        sharding = x.sharding
    if sharding is None:
        sharding = _of_tensor(x)
    sharding = resolve_sharding(sharding, "the sharding to show")
    shape = _shape(x)
    what = short(cast("Shaped", x)) if hasattr(x, "dtype") else f"[{','.join(map(str, shape))}]"
    check_shape(sharding, shape, "the array to show")
    picture = draw(what, shape, sharding)
    if not hasattr(sys, "ps1"):
        print(picture)
    return picture


def _of_tensor(x: object) -> NamedSharding:
    """The sharding of a tensor."""
    if not isinstance(x, torch.Tensor):
        fail(
            ShardingError,
            f"visualize_sharding was given {short_repr(x)} without a sharding",
            "pass a tensor on the devices, or a shape and a sharding.",
        )
    result = sharding_of(x)
    if result is None:
        fail(
            ShardingError,
            f"visualize_sharding was given {short(x)}, which is not on a mesh",
            "put it on one: xf.device_put(x, NamedSharding(mesh, spec)).",
        )
    return result


def _shape(x: object) -> tuple[int, ...]:
    given = getattr(x, "shape", x)
    given = (given,) if isinstance(given, (int, np.integer)) else given
    if isinstance(given, Sequence) and all(
        isinstance(n, (int, np.integer)) and n >= 0 for n in given
    ):
        return tuple(map(int, given))
    fail(
        ShardingError,
        f"visualize_sharding was given {short_repr(x)} as shape",
        "pass a tuple of sizes, a tensor or a ShapeDtypeStruct.",
    )


@dataclasses.dataclass(frozen=True)
class Picture:
    """The result of `visualize_sharding`; shown as text, or as HTML in a notebook.

    Attributes:
        title: the array and its sharding.
        tables: one, or one for each part of the dimensions that come before rows and columns.
    """

    title: str
    tables: tuple[Table, ...]

    def __str__(self) -> str:
        lines = [self.title]
        for name, rows in self.tables:
            lines += [name] if name else []
            lines += _lines(rows) if rows else []
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [f"<div><code>{html.escape(self.title)}</code></div>"]
        cells = dict.fromkeys(c for _, rows in self.tables for row in rows for c in row)
        colour = dict(zip(cells, itertools.cycle(_COLOURS), strict=False))
        for name, rows in self.tables:
            parts += [f"<div><code>{html.escape(name)}</code></div>"] if name else []
            parts.append('<table style="border-collapse:collapse">')
            for row in rows:
                parts.append("<tr>")
                for cell in row:
                    style = "border:1px solid;padding:0.5em 1em;text-align:center;color:black"
                    ground = "white" if cell == _GAP else colour[cell]
                    parts.append(f'<td style="{style};background:{ground}">{cell}</td>')
                parts.append("</tr>")
            parts.append("</table>")
        return "".join(parts)


def _lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    width = max(len(cell) for row in rows for cell in row) + 2
    n = len(rows[0])
    rule = "─" * width
    yield f"┌{'┬'.join([rule] * n)}┐"
    for i, row in enumerate(rows):
        if i:
            yield f"├{'┼'.join([rule] * n)}┤"
        yield f"│{'│'.join(cell.center(width) for cell in row)}│"
    yield f"└{'┴'.join([rule] * n)}┘"


def draw(what: str, shape: tuple[int, ...], sharding: NamedSharding) -> Picture:
    """The picture of an array of this shape."""
    part = ",".join(map(str, sharding.shard_shape(shape)))
    title = f"{what} as {sharding.spec!r} on {sharding.mesh!r}: parts of [{part}]"
    return Picture(title, tuple(_tables(shape, sharding)))


def _tables(shape: tuple[int, ...], sharding: NamedSharding) -> Iterator[Table]:
    """The tables: the last two sharded dimensions are rows and columns."""
    tiles = sharding.tiles(len(shape))
    divided = [d for d, n in enumerate(tiles.dims) if n > 1]
    sizes = [tiles.dims[d] for d in divided]
    lone = [1] * (2 - len(sizes))  # runs down if it is the first of several dimensions
    sizes = [*sizes, *lone] if divided == [0] and len(shape) > 1 else [*lone, *sizes]
    # Tiles do not list the devices of an array that each of them holds.
    grid = sharding.mesh.devices if tiles.is_replicated else tiles.grid()
    holders = grid.reshape(*sizes, -1)
    *leading, rows, columns = sizes
    for where in _some([*np.ndindex(*leading)], _TABLES):
        if where is None:
            yield _GAP, ()
            continue
        cells = tuple(
            tuple(
                _GAP if r is None or c is None else _numbers(holders[*where, r, c])
                for c in _some(range(columns), _COLUMNS)
            )
            for r in _some(range(rows), _ROWS)
        )
        yield _name(sharding.shard_shape(shape), dict(zip(divided, where, strict=False))), cells


def _name(part: tuple[int, ...], at: dict[int, int]) -> str:
    """The part of an array that a table shows, as an index; empty for the whole."""
    if not at:
        return ""
    ranges = [f"{at[d] * n}:{(at[d] + 1) * n}" if d in at else ":" for d, n in enumerate(part)]
    return f"[{', '.join(ranges)}]"


def _some(items: Sequence[_T], limit: int) -> list[_T | None]:
    """The items; if there are too many, the first ones, None and the last."""
    if len(items) <= limit:
        return [*items]
    return [*items[: limit - 2], None, items[-1]]


def _numbers(ids: np.ndarray) -> str:
    """Numbers of devices in ascending order: ``0,2,4-7``."""
    runs: list[list[int]] = []
    for i in sorted(ids.tolist()):
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    text = ",".join(parts)
    if len(text) <= _CELL:
        return text
    count = f" ({len(ids)})"
    kept = text[: _CELL - len(count) - len(_GAP)].rpartition(",")[0]
    return f"{kept},{_GAP}{count}"
