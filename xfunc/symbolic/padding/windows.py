"""The padding pass's rules for slices, windows, gathers and scatters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from xfunc.hlo import Instruction, wire
from xfunc.hlo.write import padding
from xfunc.symbolic.padding.emit import PRED, S64
from xfunc.symbolic.padding.layouts import MaybeLayout, own
from xfunc.symbolic.padding.reductions import applied, neutral
from xfunc.symbolic.padding.rules import Rule, result, results
from xfunc.symbolic.padding.values import Inexact, PaddedValue, Relayout, State
from xfunc.symbolic.polynomial import Polynomial, Size, as_polynomial

_WINDOW = 7  # numbers of each dimension: see `numbers.Numbers`


def _in_groups(numbers: Sequence[Size], n: int) -> list[tuple[Size, ...]]:
    return [tuple(numbers[k : k + n]) for k in range(0, len(numbers), n)]


def slice_(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """If the start or stride depends on sizes, positions are computed."""
    (x,) = operands
    bounds = _in_groups(m.symbolic.sizes(i, "slice"), 3)
    for d, ((start, limit, stride), n, size) in enumerate(
        zip(bounds, i.shape.dims, m.symbolic.dims(i), strict=True)
    ):
        whole = start == 0 and stride == 1 and as_polynomial(limit) == x.sizes[d]
        if whole and n == x.dims[d]:
            continue
        if x.layouts[d] is None:  # any part of it is like any other
            x = _cut(m, x, d, n, size, None)
            continue
        x = m.plain(x, d)
        layout = own(n, size)
        if isinstance(start, int) and isinstance(stride, int):
            x = _cut(m, x, d, n, size, layout, start, stride)
            continue
        index = m.emit.binary("multiply", m.emit.iota(n), _spread(m, stride, n), [n])
        index = m.emit.binary("add", index, _spread(m, start, n), [n])
        index = m.emit.clamped(index, m.emit.number(x.dims[d] - 1), [n])
        x = _at(x, d, m.take(x, d, index, n), n, size, layout)
    return x


def _spread(m: Relayout, size: Size, n: int) -> int:
    return m.emit.spread(m.emit.size(size), [n])


def _at(x: PaddedValue, d: int, id: int, n: int, size: Size, layout: MaybeLayout) -> PaddedValue:
    """The result of moving a value along one dimension."""
    return dataclasses.replace(
        x,
        id=id,
        dims=(*x.dims[:d], n, *x.dims[d + 1 :]),
        sizes=(*x.sizes[:d], size, *x.sizes[d + 1 :]),
        layouts=(*x.layouts[:d], layout, *x.layouts[d + 1 :]),
        pad_values={k: v for k, v in x.pad_values.items() if k != d},
        nan_lines={},
        const=None,
    )


def _cut(
    m: Relayout,
    x: PaddedValue,
    d: int,
    n: int,
    size: Size,
    layout: MaybeLayout,
    start: int = 0,
    stride: int = 1,
) -> PaddedValue:
    """n elements of a dimension, from a known position on."""
    dims = (*x.dims[:d], n, *x.dims[d + 1 :])
    id = m.emit.add("slice", x.element_type, dims, [x.id])
    for k, have in enumerate(x.dims):
        bounds = m.emit.instructions[-1].slice_dimensions.add()
        bounds.start, bounds.limit, bounds.stride = 0, have, 1
        if k == d:
            limit = min(have, start + (n - 1) * stride + 1) if n else start
            bounds.start, bounds.limit, bounds.stride = start, limit, stride
    return _at(x, d, id, n, size, layout)


def concatenate(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """Each part is written where the one before ends."""
    d = i.proto.dimensions[0]
    operands, layouts = m.alike(operands, but=d)
    n, size = i.shape.dims[d], m.symbolic.dims(i)[d]
    layouts[d] = own(n, size)
    if not any(x.padded(d) for x in operands[:-1]):
        operands = [m.plain(x, d) for x in operands]
        return result(m, i, [x.id for x in operands], layouts)
    # Each overwrites the padding of the one before.
    dims = i.shape.dims
    zero = m.emit.number(0, i.shape.element_type)
    found = m.emit.spread(zero, dims, i.shape.element_type)
    place: Size = 0
    for x in (m.plain(x, d) for x in operands):
        starts = [m.emit.number(0) if k != d else m.emit.size(place) for k in range(len(dims))]
        found = m.emit.add(
            "dynamic-update-slice", i.shape.element_type, dims, [found, x.id, *starts]
        )
        place = as_polynomial(place) + x.sizes[d]
    return PaddedValue(found, i.shape.element_type, dims, m.symbolic.dims(i), tuple(layouts))


def pad(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """The bucket's padding holds the padding value as well."""
    x, value = operands
    edges = _in_groups(m.symbolic.sizes(i, "padding"), 3)
    for d, (low, _, interior) in enumerate(edges):
        if edges[d] == (0, 0, 0):
            continue
        if isinstance(interior, Polynomial) or (isinstance(low, Polynomial) and interior):
            raise Inexact(f"pad with {low} in front and {interior} in between", i)
        x = m.plain(x, d)
        n, size = i.shape.dims[d], m.symbolic.dims(i)[d]
        if isinstance(low, Polynomial):
            x = _moved_by(m, x, d, low, n, size, value)
        else:
            x = m.masked_by(x, [d], value)
            x = _padded(m, x, d, edges[d], n, size, value)
    return x


def _padded(
    m: Relayout,
    x: PaddedValue,
    d: int,
    edges: Sequence[Size],
    n: int,
    size: Size,
    value: PaddedValue,
) -> PaddedValue:
    """n positions of a dimension, with known padding in front and in between."""
    low, _, interior = edges
    assert isinstance(low, int)
    assert isinstance(interior, int)
    dims = (*x.dims[:d], n, *x.dims[d + 1 :])
    # At the end, as much as fills the bucket; this may be negative.
    high = n - low - (x.dims[d] + max(0, x.dims[d] - 1) * interior)
    id = m.emit.add("pad", x.element_type, dims, [x.id, value.id])
    wanted = (low, high, interior)
    edges_of_all = (wanted if k == d else (0, 0, 0) for k in range(len(dims)))
    m.emit.instructions[-1].MergeFromString(padding(edges_of_all))
    return _at(x, d, id, n, size, own(n, size))


def _moved_by(
    m: Relayout, x: PaddedValue, d: int, low: Size, n: int, size: Size, value: PaddedValue
) -> PaddedValue:
    """n positions of a dimension; that of the first element depends on sizes."""
    place = m.emit.binary("subtract", m.emit.iota(n), _spread(m, low, n), [n])
    index = m.emit.clamped(place, m.emit.number(x.dims[d] - 1), [n])
    taken = m.take(x, d, index, n)
    ends = _spread(m, 0, n), _spread(m, x.sizes[d], n)
    inside = [
        m.emit.add("compare", PRED, [n], [place, end], direction=direction)
        for end, direction in zip(ends, ("GE", "LT"), strict=True)
    ]
    dims = (*x.dims[:d], n, *x.dims[d + 1 :])
    row = m.emit.add("and", PRED, [n], inside)
    mask = m.emit.add("broadcast", PRED, dims, [row], dimensions=[d])
    filling = m.emit.spread(value.id, dims, x.element_type)
    id = m.emit.add("select", x.element_type, dims, [mask, taken, filling])
    return _at(x, d, id, n, size, own(n, size))


def dynamic_slice(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """Starts are clamped to the exact shape."""
    x, *starts = operands
    sizes = m.symbolic.sizes(i, "sizes")
    ids = [s.id for s in starts]
    layouts: list[MaybeLayout] = []
    for d, (n, size) in enumerate(zip(i.shape.dims, sizes, strict=True)):
        if n == x.dims[d] and as_polynomial(size) == x.sizes[d]:
            layouts.append(x.layouts[d])
            continue
        if x.layouts[d] is None:
            layouts.append(None)
            continue
        if isinstance(size, Polynomial):
            raise Inexact(f"a dynamic slice of {size} of {x.sizes[d]}", i)
        if x.padded(d):
            x = m.plain(x, d)
            ids[d] = _clamp_start(m, starts[d], x.sizes[d], size)
        layouts.append(own(n, size))
    return result(m, i, [x.id, *ids], layouts)


def _clamp_start(m: Relayout, start: PaddedValue, of: Size, size: Size) -> int:
    """A start index, clamped to the exact shape, as XLA clamps it to the shape it knows."""
    kind = start.element_type
    high = m.emit.clamped(m.emit.size(as_polynomial(of) - size), m.emit.number(2**62))
    if kind != S64:
        high = m.emit.add("convert", kind, (), [high])
    low = m.emit.number(0, kind)
    return m.emit.add("clamp", kind, (), [low, start.id, high])


def dynamic_update_slice(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """Starts are clamped to the exact shape, and padding of the update is not written."""
    x, update, *starts = operands
    ids = [s.id for s in starts]
    layouts: list[MaybeLayout] = []
    padded: list[int] = []
    for d in range(len(x.dims)):
        whole = x.dims[d] == update.dims[d] and as_polynomial(x.sizes[d]) == update.sizes[d]
        if whole:
            best = x.layouts[d] if x.layouts[d] is not None else update.layouts[d]
            if best is not None:
                x, update = (m.relaid(v, d, best, v.dims[d]) for v in (x, update))
            layouts.append(best)
            continue
        if update.padded(d):
            padded.append(d)
        x, update = m.plain(x, d), m.plain(update, d)
        if x.padded(d) or update.padded(d):
            ids[d] = _clamp_start(m, starts[d], x.sizes[d], update.sizes[d])
        layouts.append(x.layouts[d])
    if not padded:
        return result(m, i, [x.id, update.id, *ids], layouts)
    # With room for the update's padding at its end, which is then replaced by the old contents.
    room = [n + update.dims[d] if d in padded else n for d, n in enumerate(x.dims)]
    wide = _resized(m, x, room)
    id = m.emit.add("dynamic-update-slice", x.element_type, room, [wide, update.id, *ids])
    id = _resized(m, dataclasses.replace(x, id=id, dims=tuple(room)), x.dims)
    for d in padded:
        n = x.dims[d]
        start = ids[d]
        if starts[d].element_type != S64:
            start = m.emit.add("convert", S64, (), [start])
        end = m.emit.binary("add", start, m.emit.size(update.sizes[d]))
        ends = m.emit.spread(end, [n])
        row = m.emit.add("compare", PRED, [n], [m.emit.iota(n), ends], direction="LT")
        mask = m.emit.add("broadcast", PRED, x.dims, [row], dimensions=[d])
        id = m.emit.add("select", x.element_type, x.dims, [mask, id, x.id])
    return PaddedValue(id, x.element_type, x.dims, m.symbolic.dims(i), tuple(layouts))


def _resized(m: Relayout, x: PaddedValue, dims: Sequence[int]) -> int:
    """The array with more or fewer elements at the end of its dimensions."""
    zero = m.emit.number(0, x.element_type)
    id = m.emit.add("pad", x.element_type, dims, [x.id, zero])
    edges = ((0, n - have, 0) for n, have in zip(dims, x.dims, strict=True))
    m.emit.instructions[-1].MergeFromString(padding(edges))
    return id


def gather(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """Indices are clamped to the exact shape."""
    x, index = operands
    fields = wire.fields(i.proto.SerializeToString())
    numbers = wire.message(fields, 33)
    offset, collapsed, map_ = (wire.integers(numbers, k) for k in (1, 2, 3))
    vector = wire.integer(numbers, 4)
    batching, index_batching = wire.integers(numbers, 5), wire.integers(numbers, 6)
    for d, k in zip(batching, index_batching, strict=True):
        x, index = m.plain(x, d), m.plain(index, k)
    sizes = m.symbolic.sizes(i, "sizes")
    limits: list[Size | None] = []
    for d in map_:
        partial = as_polynomial(sizes[d]) != x.sizes[d]
        if partial and x.padded(d):
            x = m.plain(x, d)
        if isinstance(sizes[d], Polynomial) and partial:
            raise Inexact(f"a gather of {sizes[d]} of {x.sizes[d]}", i)
        # As XLA clamps to the shape it knows.
        limits.append(as_polynomial(x.sizes[d]) - sizes[d] if partial and x.padded(d) else None)
    if vector < len(index.dims):
        index = m.plain(index, vector)
    index = _clamped_index(m, index, vector, limits)
    kept = iter([d for d in range(len(x.dims)) if d not in collapsed and d not in batching])
    rows = iter([k for k in range(len(index.dims)) if k != vector])
    layouts: list[MaybeLayout] = []
    for d, (n, size) in enumerate(zip(i.shape.dims, m.symbolic.dims(i), strict=True)):
        if d not in offset:
            layouts.append(index.layouts[next(rows)])
            continue
        k = next(kept)
        same = x.dims[k] == n and as_polynomial(x.sizes[k]) == size
        layouts.append(x.layouts[k] if same else own(n, size))
    return result(m, i, [x.id, index.id], layouts)


def _clamped_index(
    m: Relayout, index: PaddedValue, vector: int, limits: Sequence[Size | None]
) -> PaddedValue:
    """Start indices, clamped to the exact shape where it differs from the bucket's."""
    if all(x is None for x in limits):
        return index
    kind, dims = index.element_type, index.dims
    highest = 2**31 - 1 if kind != S64 else 2**62
    ends = []
    for x in limits:
        end = m.emit.number(highest) if x is None else m.emit.size(x)
        end = m.emit.binary("maximum", end, m.emit.number(0))
        ends.append(m.emit.add("reshape", S64, [1], [end]))
    if vector < len(dims):
        row = m.emit.add("concatenate", S64, [len(ends)], ends, dimensions=[0])
        high = m.emit.add("broadcast", S64, dims, [row], dimensions=[vector])
    else:
        high = m.emit.spread(m.emit.add("reshape", S64, (), ends), dims)
    if kind != S64:
        high = m.emit.add("convert", kind, dims, [high])
    id = m.emit.add("minimum", kind, dims, [index.id, high])
    return dataclasses.replace(index, id=id, pad_values={}, nan_lines={}, const=None)


def scatter(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> State:
    """Updates that come from padding are skipped."""
    if len(operands) != 3:
        raise Inexact("a scatter into several arrays", i)
    x, index, updates = operands
    numbers = wire.message(wire.fields(i.proto.SerializeToString()), 48)
    window, inserted, map_ = (wire.integers(numbers, k) for k in (1, 2, 3))
    vector = wire.integer(numbers, 4)
    batching, index_batching = wire.integers(numbers, 5), wire.integers(numbers, 6)
    for d in map_:
        x = m.plain(x, d)
    for d, k in zip(batching, index_batching, strict=True):
        x, index = m.plain(x, d), m.plain(index, k)
    # Windows: dimensions of the updates that are contiguous in the operand.
    single = {*inserted, *batching}
    for w, d in zip(window, [d for d in range(len(x.dims)) if d not in single], strict=True):
        same = updates.dims[w] == x.dims[d] and as_polynomial(updates.sizes[w]) == x.sizes[d]
        if same:
            best = x.layouts[d] if x.layouts[d] is not None else updates.layouts[w]
            if best is not None:
                x = m.relaid(x, d, best, x.dims[d])
                updates = m.relaid(updates, w, best, updates.dims[w])
        elif updates.padded(w):
            raise Inexact(f"a scatter of {updates.sizes[w]} of {x.sizes[d]}", i)
    rows = [k for k in range(len(index.dims)) if k != vector]
    others = [w for w in range(len(updates.dims)) if w not in window]
    for k, w in zip(rows, others, strict=True):
        best = index.layouts[k] if index.layouts[k] is not None else updates.layouts[w]
        if best is None:
            best = index.own(k)
        index = m.relaid(index, k, best, index.dims[k])
        updates = m.relaid(updates, w, best, updates.dims[w])
    # Updates out of bounds are skipped, so padding gets such indices.
    index = m.masked(index, rows, -1 if index.element_type not in _UNSIGNED else 2**31)
    return result(m, i, [x.id, index.id, updates.id], [x.own(d) for d in range(len(x.dims))])


_UNSIGNED = (6, 7, 8, 9)


def reduce_window(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> State:
    """Windows see the neutral element in the padding."""
    half = len(operands) // 2
    windows = _in_groups(m.symbolic.sizes(i, "window"), _WINDOW)
    arrays, _ = m.alike(operands[:half])
    touched = [d for d, w in enumerate(windows) if w != (1, 1, 0, 0, 1, 1, 0)]
    opcode = applied(i) if half == 1 else ""
    for k, (x, start) in enumerate(zip(arrays, operands[half:], strict=True)):
        for d in touched:
            _check_window(m, i, windows[d], x.sizes[d], as_polynomial(m.symbolic.dims(i)[d]))
            x = m.plain(x, d)
        fill = neutral(opcode, x.element_type)
        over = [d for d in touched if not _causal(windows[d])]
        arrays[k] = m.masked_by(x, over, start) if fill is None else m.masked(x, over, fill)
    left = list(arrays[0].layouts)
    shape = i.shape.elements[0] if i.shape.is_tuple else i.shape
    for d in touched:
        left[d] = own(shape.dims[d], m.symbolic.dims(i)[d])
    ids = [*(x.id for x in arrays), *(x.id for x in operands[half:])]
    return results(m, i, ids, left)


def _causal(window: Sequence[Size]) -> bool:
    """Whether no window of an element sees anything after it."""
    size, stride, low, _, dilation, base, _ = window
    return dilation == base == stride == 1 and as_polynomial(size) - 1 == low


def _check_window(
    m: Relayout, i: Instruction, window: Sequence[Size], size: Size, out: Polynomial
) -> None:
    """Refuse windows that see other elements in the bucket than in the exact shape.

    The padding of the array holds the neutral element.
    """
    width, stride, low, _, dilation, base, _ = window
    if any(isinstance(x, Polynomial) for x in (stride, dilation, base)):
        raise Inexact(f"{i.opcode} with a stride that depends on sizes", i)
    box = m.symbolic.box
    reach = (as_polynomial(width) - 1) * dilation - low  # the last position in the first window
    if not isinstance(low, Polynomial) and not isinstance(width, Polynomial):
        return
    if not isinstance(low, Polynomial) and box.at_most(as_polynomial(size) - 1, reach):
        return  # both see all that follows
    first = (out - 1) * stride - low  # where the last window begins
    if reach.is_constant and base == 1 and box.at_most(first, 0):
        return  # both see all that comes before
    raise Inexact(f"{i.opcode} with a window of {width} and {low} in front of {size}", i)


RULES: dict[str, Rule] = {
    "slice": slice_,
    "concatenate": concatenate,
    "pad": pad,
    "dynamic-slice": dynamic_slice,
    "dynamic-update-slice": dynamic_update_slice,
    "gather": gather,
    "scatter": scatter,
    "reduce-window": reduce_window,
}
