"""The leaves of a tree as stored in a checkpoint: by name, as tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import optree
import torch

from xfunc import tree
from xfunc.backends.devices import device_count
from xfunc.backends.placement import placement_of
from xfunc.core.avals import ShapeDtypeStruct, short
from xfunc.core.types import Shaped
from xfunc.errors import PurityError, TreeMismatchError, fail, kind_of, short_repr
from xfunc.sharding.local_parts import Target, target_of
from xfunc.sharding.mesh import Mesh, check_devices
from xfunc.sharding.spec import check_shape, resolve_sharding
from xfunc.torchlib import functorch
from xfunc.torchlib.values import check_array
from xfunc.trace import tracing

# Python numbers are stored as 0-d tensors that hold them exactly.
_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}

Keys = tuple[str | int, ...]


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A leaf of a tree; in the files it is called ``layers.0.w``, as torch calls it."""

    keys: Keys
    path: str
    value: tree.Leaf

    @property
    def name(self) -> str:
        return ".".join(map(str, self.keys))


def leaves_of(x: object, label: str) -> list[Leaf]:
    """The leaves of a tree that messages call `label`."""
    values, structure = tree.flatten(x)
    found: dict[str, Leaf] = {}
    for accessor, value in zip(structure.accessors(), values, strict=True):
        keys = tuple(map(_key, accessor)) or ("value",)
        leaf = Leaf(keys, accessor.codify(label), value)
        other = found.setdefault(leaf.name, leaf)
        if other is not leaf:
            fail(
                ValueError,
                f"{other.path} and {leaf.path} would both be called {leaf.name!r} in the files",
                "use other keys.",
            )
    return [*found.values()]


def _key(entry: optree.PyTreeEntry) -> str | int:
    """A step of a path: a position in a list or tuple, else a name."""
    key = getattr(entry, "field", entry.entry)
    return key if type(key) is int and not isinstance(entry, optree.MappingEntry) else str(key)


def tensor_of(leaf: Leaf, name: str) -> torch.Tensor:
    """A leaf that the function `name` saves."""
    x = leaf.value
    if type(x) is int and not -(2**63) <= x < 2**63:
        problem = f"{leaf.path} is {short_repr(x)}, which does not fit into 64 bits"
        fail(ValueError, problem, "save a smaller number.")
    if type(x) in _NUMBERS:
        return torch.tensor(x, dtype=_NUMBERS[type(x)])
    if not isinstance(x, torch.Tensor):
        fail(
            TypeError,
            f"{leaf.path} is {short_repr(x)} ({kind_of(x)}), which cannot be saved",
            "save tensors and Python numbers: make a tensor of an array (torch.from_numpy), "
            "make a dataclass a node (xf.tree.register_dataclass), leave out the rest.",
        )
    check_array(x, name, leaf.path)
    return x


def target_for(leaf: Leaf) -> Target:
    """The shape, dtype and placement that a leaf of the target requests."""
    x = leaf.value
    if type(x) in _NUMBERS:
        return Target((), _NUMBERS[type(x)], on_host=True)
    if isinstance(x, torch.Tensor):
        check_array(x, "load_checkpoint", leaf.path)
        return target_of(x)
    if not isinstance(x, ShapeDtypeStruct):
        fail(
            TypeError,
            f"{leaf.path} is {short_repr(x)} ({kind_of(x)}), which has no shape and dtype",
            "give a tensor, a Python number or a ShapeDtypeStruct(shape, dtype, sharding).",
        )
    check_array(x, "load_checkpoint", leaf.path)
    if x.sharding is None:
        return Target(x.shape, x.dtype)
    sharding = resolve_sharding(x.sharding, f"the sharding of {leaf.path}")
    check_shape(sharding, x.shape, leaf.path)
    if not isinstance(sharding.mesh, Mesh):
        check_devices(sharding.mesh)
    where = placement_of(sharding.tiles(x.ndim)) if device_count() > 1 else None
    return Target(x.shape, x.dtype, False, where, sharding)


def result_of(value: tree.Leaf, loaded: torch.Tensor) -> tree.Leaf:
    """The value returned for a target's leaf."""
    return type(value)(loaded.item()) if type(value) in _NUMBERS else loaded


def check_outside(name: str, x: object) -> None:
    """Raise inside a traced function."""
    wrapped = any(isinstance(t, torch.Tensor) and functorch.is_wrapped(t) for t in tree.leaves(x))
    if tracing.current() is not None or wrapped:
        fail(
            PurityError,
            f"{name} was called inside a function that is traced or transformed",
            "return the values, and call it outside.",
        )


def check_fits(
    stored: Mapping[str, Shaped | None],
    leaves: list[Leaf],
    targets: Mapping[str, Target],
    partial: bool = False,
) -> None:
    """Raise unless a checkpoint holds exactly what is requested; if `partial`, it may hold more."""
    lines = [f"  {leaf.path}: not in the checkpoint" for leaf in leaves if leaf.name not in stored]
    if not partial:
        lines += [f"  {name}: in the checkpoint only" for name in stored if name not in targets]
    for leaf in leaves:
        if leaf.name in stored:
            have, want = stored[leaf.name], short(targets[leaf.name])
            kept = "a Python object" if have is None else short(have)
            if kept != want:
                lines.append(f"  {leaf.path}: {kept} in the checkpoint, {want} in the target")
    if lines:
        fail(
            TreeMismatchError,
            "\n".join(["the checkpoint does not fit the target:", *lines]),
            "give a target with the paths, shapes and dtypes of what was saved, and convert "
            "the result.",
        )
