"""`PartitionSpec`, `NamedSharding`: over which axes of a mesh an array is sharded."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

from xfunc.core import ambient
from xfunc.errors import ShardingError, fail, kind_of, short_repr
from xfunc.hlo.spmd.tiles import HloSharding, whole
from xfunc.sharding.mesh import AbstractMesh, Mesh


class _Unconstrained:
    """In a constraint: XLA chooses how to shard the dimension."""

    def __reduce__(self) -> tuple[object, ...]:
        return _unconstrained, ()

    def __repr__(self) -> str:
        return "P.UNCONSTRAINED"


def _unconstrained() -> _Unconstrained:
    return PartitionSpec.UNCONSTRAINED


Entry = None | str | tuple[str, ...] | _Unconstrained


class PartitionSpec(tuple[Entry, ...]):
    """For each dimension of an array, the mesh axes that it is sharded over.

    An entry is the name of an axis; a tuple of names, the slowest first; None for a dimension that
    is not sharded; or, in a constraint, ``P.UNCONSTRAINED`` to let XLA choose. Dimensions beyond
    the last entry are not sharded, so None at the end changes nothing: ``P("x") == P("x", None)``.

    Raises:
        ShardingError: an entry is something else.

    Source: ``jax.sharding.PartitionSpec``.
    """

    UNCONSTRAINED = _Unconstrained()

    def __new__(cls, *entries: object) -> PartitionSpec:
        return super().__new__(cls, map(_entry, entries))

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries without trailing Nones."""
        n = len(self)
        while n and self[n - 1] is None:
            n -= 1
        return tuple(self[:n])

    @property
    def axes(self) -> tuple[tuple[str, ...], ...]:
        """For each entry, the names of its axes."""
        return tuple(names_of(e) for e in self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PartitionSpec):
            return self.entries == other.entries
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __hash__(self) -> int:
        return hash(self.entries)

    def __reduce__(self) -> tuple[object, ...]:
        return PartitionSpec, tuple(self)

    def __repr__(self) -> str:
        return f"P({', '.join(map(repr, self))})"


P = PartitionSpec


def _entry(x: object) -> Entry:
    if x is None or isinstance(x, (str, _Unconstrained)):
        return x
    if isinstance(x, (tuple, list)) and all(isinstance(n, str) for n in x):
        names = tuple(x)
        return None if not names else names[0] if len(names) == 1 else names
    fail(
        ShardingError,
        f"PartitionSpec was given {short_repr(x)} for a dimension",
        "give the name of a mesh axis, a tuple of names, or None.",
    )


def names_of(entry: Entry) -> tuple[str, ...]:
    """The names of the axes in an entry."""
    if entry is None or isinstance(entry, _Unconstrained):
        return ()
    return (entry,) if isinstance(entry, str) else entry


class NamedSharding:
    """How an array is laid out on a mesh.

    Args:
        mesh: the devices.
        spec: for each dimension of an array, the axes that it is sharded over.

    Raises:
        ShardingError: the spec names an axis that the mesh does not have, or one twice.

    Source: ``jax.sharding.NamedSharding``.
    """

    def __init__(self, mesh: AbstractMesh, spec: PartitionSpec | Sequence[object]):
        if not isinstance(mesh, AbstractMesh):
            fail(
                ShardingError,
                f"NamedSharding was given {short_repr(mesh)} as mesh",
                "pass a Mesh or an AbstractMesh, then a PartitionSpec.",
            )
        if isinstance(spec, str) or not isinstance(spec, (tuple, list)):
            fail(
                ShardingError,
                f"NamedSharding was given {short_repr(spec)} as spec",
                "pass a PartitionSpec: NamedSharding(mesh, P('data', None)).",
            )
        self.mesh = mesh
        self.spec = spec if isinstance(spec, PartitionSpec) else PartitionSpec(*spec)
        if isinstance(mesh, Mesh):
            ambient.note_mesh(mesh)
        seen: set[str] = set()
        for names in self.spec.axes:
            for n in names:
                if n not in mesh.shape:
                    problem = f"{mesh!r} has no axis {n!r}"
                    hint = f"its axes are {', '.join(map(repr, mesh.axis_names))}."
                elif n in seen:
                    problem = f"the axis {n!r} occurs twice"
                    hint = "use each axis for one dimension only."
                else:
                    seen.add(n)
                    continue
                fail(ShardingError, f"{self.spec!r}: {problem}", hint)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each device holds the whole array."""
        return self.tiles(len(self.spec)).is_replicated

    def tiles(self, ndim: int) -> HloSharding:
        """The tiling of an array of `ndim` dimensions (at least as many as the spec has)."""
        return tiles_on(self.mesh, self.spec, ndim)

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of one device's shard of an array.

        Raises:
            ShardingError: the spec does not fit the shape.
        """
        check_shape(self, tuple(global_shape), "the array")
        tiles = self.tiles(len(global_shape))
        return tuple(n // d for n, d in zip(global_shape, tiles.dims, strict=True))

    def check(self, shape: tuple[int, ...], what: str) -> None:
        """Raise `ShardingError` unless arrays of this shape can be sharded this way."""
        check_shape(self, shape, what)

    def divides(self, shape: tuple[int, ...]) -> bool:
        """Whether each device gets as many elements of such an array as any other."""
        return all(
            n % math.prod(self.mesh.shape[a] for a in names) == 0
            for n, names in zip(shape, self.spec.axes, strict=False)
        )

    def is_equivalent_to(self, other: NamedSharding, ndim: int) -> bool:
        """Whether both put the same part of an array of `ndim` dimensions on each device."""
        return self.tiles(ndim) == other.tiles(ndim)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, NamedSharding) and self.spec == other.spec and self.mesh == other.mesh
        )

    def __hash__(self) -> int:
        return hash((self.mesh, self.spec))

    def of_tiles(self, tiles: HloSharding) -> NamedSharding | None:
        """The sharding on the same mesh that divides an array so; None: there is none."""
        spec = spec_of(tiles, self.mesh)
        return None if spec is None else NamedSharding(self.mesh, spec)

    def __repr__(self) -> str:
        return f"NamedSharding({self.mesh!r}, {self.spec!r})"


@functools.lru_cache(maxsize=4096)
def tiles_on(
    mesh: AbstractMesh, spec: PartitionSpec, ndim: int, manual: tuple[str, ...] = ()
) -> HloSharding:
    """The tiling of an array of `ndim` dimensions by a spec, where some axes may be manual."""
    place = {n: i for i, n in enumerate(mesh.axis_names)}
    axes = [[place[n] for n in names] for names in spec.axes[:ndim]]
    axes += [[] for _ in range(ndim - len(axes))]
    dims = tuple(math.prod(mesh.axis_sizes[a] for a in own) for own in axes)
    dividing = [a for own in axes for a in own]
    held = [place[n] for n in manual]
    rest = [a for a in range(mesh.ndim) if a not in dividing and a not in held]
    n_manual, n_rest = (math.prod(mesh.axis_sizes[a] for a in group) for group in (held, rest))
    if n_manual == 1 and all(d == 1 for d in dims):
        return whole(ndim)
    return HloSharding(dims, n_manual, n_rest, mesh.layout.order([*dividing, *held, *rest]))


def check_shape(sharding: NamedSharding, shape: tuple[int, ...], what: str) -> None:
    """Raise unless arrays of this shape can be sharded this way; `what` names the array."""
    spec = sharding.spec
    if len(spec.entries) > len(shape):
        fail(
            ShardingError,
            f"{what} has {len(shape)} dimensions {shape}, and {spec!r} is for {len(spec)}",
            "give a spec with at most one entry for each dimension.",
        )
    for d, names in enumerate(spec.axes[: len(shape)]):
        size = math.prod(sharding.mesh.shape[n] for n in names)
        if shape[d] % size and not ambient.is_probe():
            axes = " x ".join(f"{n}={sharding.mesh.shape[n]}" for n in names)
            fail(
                ShardingError,
                f"{what} of shape {shape} cannot be sharded as {spec!r} says: its dimension "
                f"{d} is {shape[d]}, which is not a multiple of {size} ({axes})",
                "pad or change that dimension, or shard it over fewer devices; if its size is "
                f"a Dim, declare it with multiple_of={size}.",
            )


def resolve_sharding(x: object, what: str) -> NamedSharding:
    """A sharding, or a spec on the mesh in use."""
    if isinstance(x, NamedSharding):
        return x
    if isinstance(x, PartitionSpec):
        mesh = ambient.mesh()
        if mesh is None:
            fail(
                ShardingError,
                f"{what} is {x!r}, but no mesh is in use",
                "pass NamedSharding(mesh, spec), or call in a block of "
                "`with xf.sharding.use_mesh(mesh):`.",
            )
        return NamedSharding(mesh, x)
    fail(
        ShardingError,
        f"{what} is {short_repr(x)} ({kind_of(x)}), which is not a sharding",
        "pass a NamedSharding, or a PartitionSpec where a mesh is in use.",
    )


def spec_of(tiles: HloSharding, mesh: AbstractMesh) -> PartitionSpec | None:
    """The spec with this tiling on a mesh, or None if there is none."""
    if tiles.is_replicated:
        return PartitionSpec()
    found = _search(tiles, mesh)
    if found is None:
        return None
    spec = PartitionSpec(*found)
    return PartitionSpec(*spec.entries)


def _search(tiles: HloSharding, mesh: AbstractMesh) -> list[tuple[str, ...]] | None:
    """The axes of each dimension."""
    sizes = mesh.shape

    def choices(n: int, left: tuple[str, ...]) -> list[tuple[str, ...]]:
        if n == 1:
            return [()]
        result = []
        for name in left:
            if sizes[name] > 1 and n % sizes[name] == 0:
                rest = tuple(a for a in left if a != name)
                result += [(name, *more) for more in choices(n // sizes[name], rest)]
        return result

    def every(d: int, left: tuple[str, ...]) -> Iterator[list[tuple[str, ...]]]:
        if d == len(tiles.dims):
            yield []
            return
        for names in choices(tiles.dims[d], left):
            for rest in every(d + 1, tuple(a for a in left if a not in names)):
                yield [names, *rest]

    for found in every(0, mesh.axis_names):
        if _fits(tiles, mesh, found):
            return found
    return None


def _fits(tiles: HloSharding, mesh: AbstractMesh, names: list[tuple[str, ...]]) -> bool:
    made = NamedSharding(mesh, PartitionSpec(*names)).tiles(len(tiles.dims))
    if made.dims != tiles.dims or made.replicated != tiles.replicated:
        return False
    if made.order == tiles.order:
        return True
    # Devices that hold the same tile may be listed in any order.
    a = made.grid().copy()
    b = tiles.grid().copy()
    a.sort(axis=-1)
    b.sort(axis=-1)
    return bool((a == b).all())
