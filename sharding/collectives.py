"""Collectives: how the devices that run the function of a `shard_map` communicate.

`axis_name` is the name of an axis of the mesh, or a tuple of names: then the devices along all of
them communicate, in an order in which the first axis is the slowest. Trees are taken leaf by leaf.
Along the named axis of a `vmap`, its examples communicate in the same way.

Each one is differentiated as a linear function of the arrays of all devices together. For gradients
taken inside the function of one device, see `shard_map` and `xfunc.program.vma`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch

from xfunc import tree
from xfunc.core.avals import NUMBERS, short
from xfunc.errors import ShardingError, fail, short_repr
from xfunc.program import vma
from xfunc.program.collective_ops import AllToAll, CollectivePermute, Maximum, Sum
from xfunc.sharding.axes import Axes, axes_of
from xfunc.stages.checks import arrays, as_tensors, labels_in
from xfunc.tree import Leaf, PyTree

Tensor = torch.Tensor
AxisName = str | tuple[str, ...]
T = TypeVar("T")


def psum(x: T, axis_name: AxisName) -> T:
    """The sum over devices. Booleans are counted, as int64; a Python number gives a number.

    Args:
        x: a tree of tensors and Python numbers.
        axis_name: the name of an axis of the mesh or of a `vmap`, or a tuple of names.

    Returns:
        A tree like `x`, with leaves of the same shapes: the sums, which all devices along the axis
        share.

    Source: ``jax.lax.psum``.
    """
    return _sum("psum", x, axes_of("psum", axis_name))


def pmean(x: T, axis_name: AxisName) -> T:
    """The mean over devices.

    Args:
        x: a tree of tensors and Python numbers.
        axis_name: the name of an axis of the mesh or of a `vmap`, or a tuple of names.

    Returns:
        A tree like `x`, with leaves of the same shapes: the means, which all devices along the axis
        share. Those of integers and booleans are floating.

    Source: ``jax.lax.pmean``.
    """
    axes = axes_of("pmean", axis_name)
    return tree.map(lambda t: t / axes.size, _sum("pmean", x, axes))


def pmax(x: T, axis_name: AxisName) -> T:
    """The elementwise maximum over devices. Its derivative is shared by equal maxima.

    Args:
        x: a tree of tensors, none of them complex, and of Python numbers.
        axis_name: the name of an axis of the mesh or of a `vmap`, or a tuple of names.

    Returns:
        A tree like `x`, with leaves of the same shapes and dtypes, which all devices along the axis
        share.

    Source: ``jax.lax.pmax``.
    """
    return _extremum("pmax", x, axis_name, lambda t: t)


def pmin(x: T, axis_name: AxisName) -> T:
    """The elementwise minimum over devices. Its derivative is shared by equal minima.

    Args:
        x: a tree of tensors, none of them complex, and of Python numbers.
        axis_name: the name of an axis of the mesh or of a `vmap`, or a tuple of names.

    Returns:
        A tree like `x`, with leaves of the same shapes and dtypes, which all devices along the axis
        share.

    Source: ``jax.lax.pmin``.
    """
    return _extremum("pmin", x, axis_name, _reversed)


def all_gather(
    x: T, axis_name: AxisName, axis: int = 0, tiled: bool = False, to: str = "varying"
) -> T:
    """The arrays of all devices.

    Args:
        x: a tree.
        axis_name: the name of an axis of the mesh or of a `vmap`, or a tuple of names.
        axis: of the result, along which the values are gathered.
        tiled: whether they are concatenated along that axis rather than stacked.
        to: the type of the result: ``"varying"``, so that each device has its own gradient, or
            ``"invarying"``, so that all share one (`all_gather_invariant`).

    Returns:
        A tree like `x`. A leaf of shape ``[s, ...]`` on each of n devices becomes ``[n, s, ...]``
        with ``axis=0``, or ``[n * s, ...]`` if `tiled`.

    Source: ``jax.lax.all_gather``.
    """
    if to not in ("varying", "invarying"):
        fail(
            ShardingError,
            f"all_gather was given to={to!r}",
            "give 'varying' or 'invarying'; a value is one or the other along an axis.",
        )
    axes = axes_of("all_gather", axis_name)

    def one(t: Tensor) -> Tensor:
        d = _dimension("all_gather", "axis", axis, t, extra=not tiled)
        rows = axes.gather(t)
        rows = _cast(rows, axes, vma.gathered) if to == "varying" else rows
        return _merged(rows, d) if tiled else rows.movedim(0, d)

    return _each("all_gather", one, x)


def all_gather_invariant(x: T, axis_name: AxisName, axis: int = 0, tiled: bool = False) -> T:
    """`all_gather` with a result that counts as equal on all devices.

    Args:
        x: a tree.
        axis_name: the name of an axis of the mesh or of a `vmap`, or a tuple of names.
        axis: see `all_gather`.
        tiled: see `all_gather`.

    Returns:
        A tree like `x`, with leaves of the shapes that `all_gather` gives them.

    Source: ``jax.lax.all_gather_invariant``.
    """
    return all_gather(x, axis_name, axis, tiled, to="invarying")


def pvary(x: T, axis_name: AxisName) -> T:
    """The same tree, which from here on counts as varying along the axes.

    A device's gradient with respect to the result is its own; that with respect to `x` is the sum
    of them. Where a value that does not vary is combined with one that does, this happens
    automatically.

    Args:
        x: a tree of tensors and Python numbers.
        axis_name: the name of an axis of the mesh or of a `vmap`, or a tuple of names.

    Returns:
        A tree like `x`, with tensors of the same shapes, dtypes and values.

    Source: ``jax.lax.pvary``.
    """
    axes = axes_of("pvary", axis_name)
    return _each("pvary", lambda t: _cast(t, axes, vma.vary), x)


def pcast(x: T, axis_name: AxisName, *, to: str) -> T:
    """`pvary`, by its newer name: `to` is ``"varying"``.

    Args:
        x: a tree of tensors and Python numbers.
        axis_name: the name of an axis of the mesh or of a `vmap`, or a tuple of names.
        to: must be ``"varying"``.

    Returns:
        A tree like `x`, with tensors of the same shapes, dtypes and values.

    Source: ``jax.lax.pcast``.
    """
    if to != "varying":
        fail(
            ShardingError,
            f"pcast was given to={to!r}",
            "give to='varying'. A collective such as xf.psum or xf.pmean makes a varying value "
            "the same on all devices.",
        )
    return pvary(x, axis_name)


def _cast(t: Tensor, axes: Axes, cast: Callable[[Tensor, Sequence[str]], Tensor]) -> Tensor:
    return cast(t, axes.checked) if axes.checked else t


def psum_scatter(x: T, axis_name: AxisName, scatter_dimension: int = 0, tiled: bool = False) -> T:
    """The sum over devices; each device keeps the part at its index.

    Args:
        x: a tree.
        axis_name: the name of an axis of the mesh or of a `vmap`, or a tuple of names.
        scatter_dimension: along which the sum is cut into parts. Its size is the number of devices,
            and the result does not have it; if `tiled`, it is a multiple of that number, and the
            result keeps it.
        tiled: see `scatter_dimension`.

    Returns:
        A tree like `x`. With n devices and ``scatter_dimension=0``, a leaf of shape ``[n, ...]``
        becomes ``[...]``; if `tiled`, one of shape ``[n * s, ...]`` becomes ``[s, ...]``.

    Source: ``jax.lax.psum_scatter``.
    """
    name = "psum_scatter"
    axes = axes_of(name, axis_name)
    n = axes.size

    def one(t: Tensor) -> Tensor:
        d = _dimension(name, "scatter_dimension", scatter_dimension, t)
        _check_parts(name, "scatter_dimension", d, t, n, tiled)
        rows = _cut(t, d, n) if tiled else t.movedim(d, 0)
        return axes.scatter(rows)

    return _each(name, one, x)


def ppermute(x: T, axis_name: AxisName, perm: Sequence[tuple[int, int]]) -> T:
    """The value that another device sent; zeros if none did.

    Args:
        x: a tree.
        axis_name: the name of an axis of the mesh or of a `vmap`, or a tuple of names.
        perm: pairs of a source and a target, counted along the axis. No device is a source twice,
            or a target twice.

    Returns:
        A tree like `x`, with tensors of the same shapes and dtypes.

    Source: ``jax.lax.ppermute``.
    """
    axes = axes_of("ppermute", axis_name)
    pairs = _pairs(perm, axes.size)
    return _each("ppermute", lambda t: axes.apply(CollectivePermute(pairs), t), x)


def all_to_all(
    x: T, axis_name: AxisName, split_axis: int, concat_axis: int, tiled: bool = False
) -> T:
    """Each device sends a part to every device.

    Args:
        x: a tree.
        axis_name: the name of an axis of the mesh or of a `vmap`, or a tuple of names.
        split_axis: along which an array is cut into parts, one for each device. Its size is the
            number of devices; if `tiled`, a multiple of that.
        concat_axis: of the result, along which the received parts are stacked; if `tiled`,
            concatenated.
        tiled: see `split_axis`.

    Returns:
        A tree like `x`. Each leaf has its axis `split_axis` moved to `concat_axis`; if `tiled`, it
        has the same axes, and with n devices `split_axis` is n times shorter, `concat_axis` n times
        longer.

    Source: ``jax.lax.all_to_all``.
    """
    name = "all_to_all"
    axes = axes_of(name, axis_name)
    n = axes.size

    def one(t: Tensor) -> Tensor:
        split = _dimension(name, "split_axis", split_axis, t)
        concat = _dimension(name, "concat_axis", concat_axis, t)
        _check_parts(name, "split_axis", split, t, n, tiled)
        rows = _cut(t, split, n) if tiled else t.movedim(split, 0)
        got = axes.apply(AllToAll(), rows)
        return _merged(got, concat) if tiled else got.movedim(0, concat)

    return _each(name, one, x)


def axis_index(axis_name: AxisName) -> Tensor:
    """The index of the device along an axis, from 0: an int64 scalar.

    Args:
        axis_name: the name of an axis of the mesh or of a `vmap`, or a tuple of names.

    Returns:
        An int64 tensor of shape ``[]``.

    Source: ``jax.lax.axis_index``.
    """
    return axes_of("axis_index", axis_name).axis_index()


def axis_size(axis_name: AxisName) -> int:
    """The number of devices along an axis, a Python int.

    Args:
        axis_name: the name of an axis of the mesh or of a `vmap`, or a tuple of names.

    Returns:
        The number; for several axes, the product of their sizes.

    Source: ``jax.lax.axis_size``.
    """
    return axes_of("axis_size", axis_name).size


def _sum(name: str, x: T, axes: Axes) -> T:
    def one(t: Leaf) -> Leaf:
        if type(t) in NUMBERS:
            return t * axes.size
        return axes.combine(Sum(), t.to(torch.int64) if t.dtype == torch.bool else t)

    return _each(name, one, x, numbers=True)


def _reversed(t: Tensor) -> Tensor:
    """In the opposite order; applied twice, the same values."""
    return -t if t.dtype.is_floating_point else ~t


def _extremum(name: str, x: T, axis_name: AxisName, turned: Callable[[Tensor], Tensor]) -> T:
    axes = axes_of(name, axis_name)

    def one(t: Leaf) -> Leaf:
        if type(t) in NUMBERS:
            return t
        if t.dtype.is_complex:
            fail(
                ShardingError,
                f"{name} was given {short(t)}: complex numbers have no order",
                "take t.abs().",
            )
        return turned(axes.combine(Maximum(), turned(t)))

    return _each(name, one, x, numbers=True)


def _each(name: str, one: Callable[[Leaf], Leaf], x: T, numbers: bool = False) -> T:
    """A tree, leaf by leaf; `numbers`: leave Python numbers unchanged."""
    leaves, structure = tree.flatten(x)
    made = [t if numbers and type(t) in NUMBERS else as_tensors(t) for t in leaves]
    for t, label in zip(made, labels_in(x, "x"), strict=True):
        if type(t) not in NUMBERS:
            arrays([t], name, [label])
    return tree.unflatten(structure, [one(t) for t in made])


def _dimension(name: str, what: str, d: object, t: Tensor, extra: bool = False) -> int:
    ndim = t.ndim + extra
    if type(d) is not int or not -ndim <= d < ndim:
        fail(
            ShardingError,
            f"{name} has {what}={d!r} for {short(t)}",
            f"give an axis that {'the result' if extra else 'the array'} has.",
        )
    return d % ndim


def _check_parts(name: str, what: str, d: int, t: Tensor, n: int, tiled: bool) -> None:
    size = t.shape[d]
    if size == n or (tiled and size % n == 0):
        return
    wanted = f"a multiple of {n}" if tiled else str(n)
    fail(
        ShardingError,
        f"{name}: {what} {d} of {short(t)} is {size}, which is not {wanted}, the number of devices",
        "pad it." if tiled else "reshape it to that, or concatenate with tiled=True.",
    )


def _pairs(perm: Iterable[PyTree], n: int) -> tuple[tuple[int, int], ...]:
    pairs = [tuple(p) if isinstance(p, (tuple, list)) else p for p in perm]
    problem = None
    for p in pairs:
        if not isinstance(p, tuple) or len(p) != 2 or not all(type(i) is int for i in p):
            problem = f"{short_repr(p)} is no pair of ints"
        elif not all(0 <= i < n for i in p):
            problem = f"{p} is beyond the {n} places of the axis"
    for k, what in ((0, "source"), (1, "target")):
        if problem is None and len({p[k] for p in pairs}) < len(pairs):
            problem = f"a {what} occurs twice"
    if problem is not None:
        fail(
            ShardingError,
            f"ppermute has perm={short_repr(perm)}: {problem}",
            "give pairs (source, target) of device indices, each at most once a source and at "
            "most once a target: "
            "[(i, (i + 1) % n) for i in range(n)].",
        )
    return tuple(pairs)


def _cut(t: Tensor, d: int, n: int) -> Tensor:
    """`n` parts along a dimension, as the rows of a new first one."""
    return t.unflatten(d, (n, t.shape[d] // n)).movedim(d, 0)


def _merged(rows: Tensor, d: int) -> Tensor:
    """Rows, concatenated along dimension `d` of each."""
    shape = [*rows.shape[1:]]
    shape[d] *= rows.shape[0]
    return rows.movedim(0, d).reshape(shape)
