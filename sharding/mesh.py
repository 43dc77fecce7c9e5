"""`Mesh`, `AbstractMesh`: the devices, laid out along named axes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from xfunc.backends.devices import device_count
from xfunc.core import ambient
from xfunc.errors import ShardingError, fail, kind_of, short_repr
from xfunc.hlo.spmd.tiles import DeviceAssignment


@dataclasses.dataclass(frozen=True)
class Layout:
    """The positions of the devices in a mesh.

    Devices are numbered; ``arange(n).reshape(factors)`` is transposed so that the factors of each
    axis come together. A mesh whose order is not such a transposition lists its devices.

    Attributes:
        factors: sizes with the number of devices as their product.
        of_axis: for each axis, the factors it is made of, the slowest first.
        listed: the devices in row-major order, if they must be listed.
    """

    factors: tuple[int, ...]
    of_axis: tuple[tuple[int, ...], ...]
    listed: tuple[int, ...] | None = None

    @classmethod
    def plain(cls, sizes: Sequence[int]) -> Layout:
        """Devices in row-major order."""
        return cls(tuple(sizes), tuple((i,) for i in range(len(sizes))))

    def order(self, axes: Sequence[int]) -> DeviceAssignment:
        """The devices, read with these axes (all of them) from the slowest to the fastest."""
        if self.listed is None:
            return DeviceAssignment.of(self.factors, [f for a in axes for f in self.of_axis[a]])
        return DeviceAssignment.listing(
            np.array(self.listed).reshape(self.factors).transpose(axes).ravel()
        )


class AbstractMesh:
    """A mesh of devices that need not exist: for lowering and for compiling ahead of time.

    Args:
        axis_shapes: the number of devices along each axis.
        axis_names: a different name for each axis.

    Raises:
        ShardingError: sizes and names do not fit together.

    Source: ``jax.sharding.AbstractMesh``.
    """

    def __init__(
        self,
        axis_shapes: Sequence[int],
        axis_names: str | Sequence[str],
        *,
        _layout: Layout | None = None,
    ):
        names, sizes = _checked_axes(axis_shapes, axis_names, type(self).__name__)
        self._sizes, self._names = tuple(int(s) for s in sizes), names
        self._layout: Layout = _layout or Layout.plain(self._sizes)

    @property
    def axis_names(self) -> tuple[str, ...]:
        """The names of the axes."""
        return self._names

    @property
    def axis_sizes(self) -> tuple[int, ...]:
        """The number of devices along each axis."""
        return self._sizes

    @functools.cached_property
    def shape(self) -> Mapping[str, int]:
        """The size of each axis by its name."""
        return MappingProxyType(dict(zip(self._names, self._sizes, strict=True)))

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self._sizes)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._sizes)

    @property
    def layout(self) -> Layout:
        """The positions of the devices."""
        return self._layout

    @functools.cached_property
    def devices(self) -> np.ndarray:
        """The numbers of the devices, an array of the shape of the mesh."""
        order = self._layout.order(range(self.ndim)).devices()
        result = order.reshape(self._sizes)
        result.flags.writeable = False
        return result

    @functools.cached_property
    def _value(self) -> tuple[Hashable, ...]:
        order = self._layout.order(range(self.ndim))
        return (self._names, self._sizes, order)

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._value)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(other) is type(self) and other._value == self._value

    def __hash__(self) -> int:
        return self._hash

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__dict__:
            raise AttributeError(f"{kind_of(self)} cannot be changed")
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[object, ...]:
        return unchecked, (type(self), self._sizes, self._names, self._layout)

    def __repr__(self) -> str:
        axes = ", ".join(f"{n}={s}" for n, s in zip(self._names, self._sizes, strict=True))
        return f"{type(self).__name__}({axes})"


def unchecked(
    cls: type[AbstractMesh], sizes: Sequence[int], names: Sequence[str], layout: Layout
) -> AbstractMesh:
    """A mesh from elsewhere, possibly in a process without its devices."""
    mesh = cls.__new__(cls)
    AbstractMesh.__init__(mesh, sizes, names, _layout=layout)
    return mesh


class Mesh(AbstractMesh):
    """The devices, of all processes, laid out along named axes.

    Args:
        devices: the numbers of the devices, an array with one dimension for each axis. All devices
            take part: XLA runs a program on every one of them.
        axis_names: a different name for each axis.

    Raises:
        ShardingError: names and dimensions do not fit together, or these are not the devices.

    Source: ``jax.sharding.Mesh``.
    """

    def __init__(
        self, devices: object, axis_names: str | Sequence[str], *, _layout: Layout | None = None
    ):
        ids = np.asarray(devices)
        if ids.dtype.kind not in "iu":
            fail(
                ShardingError,
                f"Mesh was given {short_repr(devices)}, which is not an array of device numbers",
                "pass numbers: Mesh(numpy.arange(8).reshape(4, 2), ('data', 'tensor')).",
            )
        order = DeviceAssignment.listing(ids.ravel())
        plain = Layout.plain(ids.shape)
        layout = _layout or (plain if order.is_iota else _listed(ids))
        super().__init__(ids.shape, axis_names, _layout=layout)
        check_devices(self)


def _listed(ids: np.ndarray) -> Layout:
    return Layout(ids.shape, (), tuple(map(int, ids.ravel())))


def _checked_axes(
    axis_shapes: Sequence[int], axis_names: str | Sequence[str], maker: str
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The names and sizes of axes that `maker` was given."""
    names, sizes = _as_tuple(axis_names, str), _as_tuple(axis_shapes, int)
    problem = None
    if not all(isinstance(n, str) and n for n in names):
        problem = f"the axis names are {short_repr(names)}: a name is a string that is not empty"
    elif len(set(names)) < len(names):
        problem = f"the axis names {names} are not all different"
    elif not all(isinstance(s, (int, np.integer)) and s >= 1 for s in sizes):
        problem = f"the axis sizes are {short_repr(sizes)}: a size is an int of at least 1"
    elif len(sizes) != len(names):
        problem = f"there are {len(sizes)} axis sizes and {len(names)} axis names"
    if problem is not None:
        fail(
            ShardingError,
            f"{maker}: {problem}",
            f"give one size and one name for each axis: {maker}((4, 2), ('data', 'tensor')).",
        )
    return names, tuple(map(int, sizes))


def _as_tuple(given: object, single: type) -> tuple[Any, ...]:
    return (
        tuple(given) if isinstance(given, Iterable) and not isinstance(given, single) else (given,)
    )


def check_devices(mesh: AbstractMesh, what: str | None = None) -> None:
    """Raise unless a mesh contains each device exactly once.

    Args:
        mesh: the mesh.
        what: the name of the mesh in the message.
    """
    count = device_count()
    if sorted(mesh.devices.ravel().tolist()) == [*range(count)]:
        return
    if mesh.size > count:
        problem = f"needs {mesh.size} devices, but this process has {count}"
    elif mesh.size < count:
        problem = f"has {mesh.size} of {count} devices, but XLA runs every program on all of them"
    else:
        problem = f"has devices that are not those from 0 to {count - 1}, each one once"
    fail(
        ShardingError,
        f"{what or repr(mesh)} {problem}",
        "change the sizes; on the CPU, xf.config.set_cpu_devices(n) or CPU_NUM_DEVICES=n "
        "before the start makes n devices; to lower for devices that are not available, use "
        "xf.sharding.AbstractMesh.",
    )


def make_mesh(
    axis_shapes: Sequence[int],
    axis_names: str | Sequence[str],
    devices: object = None,
    *,
    dcn_axes: Mapping[str, int] | None = None,
) -> Mesh:
    """A mesh of the devices of all processes.

    Args:
        axis_shapes: the number of devices along each axis.
        axis_names: a name for each axis.
        devices: the numbers of the devices in order, if not 0, 1, 2, ...
        dcn_axes: for a pod of several slices, the number of slices that each of these axes spans:
            ``make_mesh((4, 8), ("data", "tensor"), dcn_axes={"data": 2})`` has 2 slices of 2 x 8
            devices. Slices, between which the network (DCN) is slow, are the slowest part of an
            axis. Devices are numbered slice by slice.

    Returns:
        A `Mesh` with these axes: an array of devices of shape `axis_shapes`.

    Raises:
        ShardingError: there are more or fewer devices than the mesh has.

    Source: ``jax.make_mesh``, ``jax.experimental.mesh_utils.create_hybrid_device_mesh``.
    """
    names, sizes = _checked_axes(axis_shapes, axis_names, "make_mesh")
    abstract = abstract_mesh(sizes, names, dcn_axes=dcn_axes)
    what = f"Mesh{repr(abstract).removeprefix('AbstractMesh')}"
    layout, order = abstract.layout, abstract.layout.order(range(abstract.ndim)).devices()
    if devices is not None:
        ids = np.asarray(devices).ravel()
        if len(ids) != len(order):
            fail(
                ShardingError,
                f"make_mesh was given {len(ids)} devices for {what}",
                f"pass {len(order)} devices, or change the sizes.",
            )
        layout, order = None, ids[order]
    if abstract.size != device_count():
        check_devices(abstract, what)
    return Mesh(order.reshape(abstract.axis_sizes), names, _layout=layout)


def abstract_mesh(
    axis_shapes: Sequence[int],
    axis_names: str | Sequence[str],
    *,
    dcn_axes: Mapping[str, int] | None = None,
) -> AbstractMesh:
    """`make_mesh` for devices that need not exist.

    Args:
        axis_shapes: the number of devices along each axis.
        axis_names: a name for each axis.
        dcn_axes: see `make_mesh`.

    Returns:
        An `AbstractMesh` with these axes.
    """
    mesh = AbstractMesh(axis_shapes, axis_names)
    if not dcn_axes:
        return mesh
    for name, n in dcn_axes.items():
        if name not in mesh.shape or n < 1 or mesh.shape[name] % n:
            found = "no such axis" if name not in mesh.shape else f"of size {mesh.shape[name]}"
            fail(
                ShardingError,
                f"dcn_axes says that axis {name!r} ({found}) of {mesh!r} spans {n} slices",
                "name axes of the mesh, with divisors of their sizes.",
            )
    slow = [dcn_axes.get(n, 1) for n in mesh.axis_names]
    fast = [s // d for s, d in zip(mesh.axis_sizes, slow, strict=True)]
    k = mesh.ndim
    layout = Layout((*slow, *fast), tuple((i, k + i) for i in range(k)))
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, _layout=layout)


@contextlib.contextmanager
def use_mesh(mesh: AbstractMesh) -> Iterator[AbstractMesh]:
    """Use this mesh for specs without a mesh, in a block.

    Args:
        mesh: a `Mesh`, or an `AbstractMesh`.

    Returns:
        A context manager, for a ``with`` block; ``as`` gives `mesh`.

    Raises:
        ShardingError: `mesh` is not a mesh.

    Source: ``jax.sharding.use_mesh``.
    """
    if not isinstance(mesh, AbstractMesh):
        fail(
            ShardingError,
            f"use_mesh was given {short_repr(mesh)}",
            "pass a Mesh or an AbstractMesh.",
        )
    before = ambient.set_mesh(mesh)
    try:
        yield mesh
    finally:
        ambient.set_mesh(before)
