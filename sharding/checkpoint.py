"""`save_checkpoint`, `load_checkpoint`: trees of sharded tensors as files."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optree
import torch
from torch import distributed

from xfunc import functorch, runtime, tracing, tree
from xfunc.avals import ShapeDtypeStruct, short
from xfunc.errors import PurityError, TreeMismatchError, report, shown
from xfunc.locations import user_location
from xfunc.placement import placement_of
from xfunc.values import check_array

from .mesh import Mesh, check_devices
from .parts import Target, target_of
from .spec import check_shape, resolve_sharding

# Python numbers are stored as 0-d tensors that hold them exactly.
_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def save_checkpoint(path: str | os.PathLike[str], x: Any) -> None:
    """Write a tree of tensors to a new folder.

    Each part of a sharded tensor is written once, by a process that holds it; the tensor is never
    put together. Files are written to a folder ``<path>.partial``, which gets its name at the end:
    a folder of the name `path` is complete.

    Args:
        path: the folder, which must not exist.
        x: a tree of tensors and Python numbers.

    Raises:
        FileExistsError: there is something at `path`.
        TypeError: a leaf is no tensor and no number.
        PurityError: a tensor is traced.
        RuntimeError: a tensor was donated.
    """
    folder = _folder(path)
    _check_outside("save_checkpoint", x)
    leaves = {leaf.name: leaf for leaf in _leaves(x, "x")}
    tensors = {name: _tensor(leaf) for name, leaf in leaves.items()}
    if folder.exists():
        raise FileExistsError(
            report(
                f"there is something at {folder} already",
                "save to a new folder, such as one for each step, or remove that one first.",
                at=user_location(),
            )
        )
    from . import planners

    is_first = not distributed.is_initialized() or distributed.get_rank() == 0
    partial = _partial(folder)
    if is_first:
        shutil.rmtree(partial, ignore_errors=True)
    _wait_for_all()
    try:
        planners.write(partial, tensors, {name: leaf.keys for name, leaf in leaves.items()})
        if is_first:
            partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _wait_for_all()


def load_checkpoint(path: str | os.PathLike[str], target: Any) -> Any:
    """Read the tree of tensors in a folder that `save_checkpoint` wrote.

    Of a sharded tensor only those parts are read that this process's devices hold, however it was
    divided when it was saved.

    Args:
        path: the folder.
        target: a tree that says what is there and where it shall be: like a tensor (on the CPU, or
            divided as that one), or as a `ShapeDtypeStruct` says (on the devices; whole on each,
            if it has no sharding), or a Python number. The tensors are not changed.

    Returns:
        A tree of the structure of `target`.

    Raises:
        FileNotFoundError: there is no checkpoint at `path`.
        ValueError: it is damaged.
        TreeMismatchError: paths, shapes or dtypes differ from those of `target`; all are listed.
        ShardingError: a sharding does not fit its array, or its mesh is not of these devices.
    """
    folder = _folder(path)
    _check_outside("load_checkpoint", target)
    leaves = _leaves(target, "target")
    targets = {leaf.name: _target(leaf) for leaf in leaves}
    _check_fits(_contents(folder), leaves, targets)
    from . import planners

    loaded = planners.read(folder, targets)
    found = [_result(leaf.value, loaded[leaf.name]) for leaf in leaves]
    return tree.unflatten(tree.structure(target), found)


# -- trees ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """A leaf of a tree; in the files it is called ``layers.0.w``, as torch calls it."""

    keys: tuple[str | int, ...]
    path: str
    value: Any

    @property
    def name(self) -> str:
        return ".".join(map(str, self.keys))


def _leaves(x: Any, label: str) -> list[_Leaf]:
    values, structure = tree.flatten(x)
    found: dict[str, _Leaf] = {}
    for accessor, value in zip(structure.accessors(), values, strict=True):
        keys = tuple(map(_key, accessor)) or ("value",)
        leaf = _Leaf(keys, accessor.codify(label), value)
        other = found.setdefault(leaf.name, leaf)
        if other is not leaf:
            raise ValueError(
                report(
                    f"{other.path} and {leaf.path} would both be called {leaf.name!r} in the files",
                    "use other keys.",
                    at=user_location(),
                )
            )
    return [*found.values()]


def _key(entry: optree.PyTreeEntry) -> str | int:
    """A step of a path: a position in a list or tuple, else a name."""
    key = getattr(entry, "field", entry.entry)
    return key if type(key) is int and not isinstance(entry, optree.MappingEntry) else str(key)


def _tensor(leaf: _Leaf) -> torch.Tensor:
    """A leaf to be saved."""
    x = leaf.value
    if type(x) is int and not -(2**63) <= x < 2**63:
        problem = f"{leaf.path} is {shown(x)}, which does not fit into 64 bits"
        raise ValueError(report(problem, "save a smaller number.", at=user_location()))
    if type(x) in _NUMBERS:
        return torch.tensor(x, dtype=_NUMBERS[type(x)])
    if not isinstance(x, torch.Tensor):
        raise TypeError(
            report(
                f"{leaf.path} is {shown(x)} (a {type(x).__name__}), which cannot be saved",
                "save tensors and Python numbers: make a tensor of an array (torch.from_numpy), "
                "make a dataclass a node (xf.tree.register_dataclass), leave out the rest.",
                at=user_location(),
            )
        )
    check_array(x, "save_checkpoint", leaf.path)
    return x


def _target(leaf: _Leaf) -> Target:
    """What a leaf of a target asks for."""
    x = leaf.value
    if type(x) in _NUMBERS:
        return Target((), _NUMBERS[type(x)], on_host=True)
    if isinstance(x, torch.Tensor):
        check_array(x, "load_checkpoint", leaf.path)
        return target_of(x)
    if not isinstance(x, ShapeDtypeStruct):
        raise TypeError(
            report(
                f"{leaf.path} is {shown(x)} (a {type(x).__name__}), which says no shape and dtype",
                "give a tensor, a Python number or a ShapeDtypeStruct(shape, dtype, sharding).",
                at=user_location(),
            )
        )
    check_array(x, "load_checkpoint", leaf.path)
    if x.sharding is None:
        return Target(x.shape, x.dtype)
    sharding = resolve_sharding(x.sharding, f"the sharding of {leaf.path}")
    check_shape(sharding, x.shape, leaf.path)
    if not isinstance(sharding.mesh, Mesh):
        check_devices(sharding.mesh)
    where = placement_of(sharding.tiles(x.ndim)) if runtime.device_count() > 1 else None
    return Target(x.shape, x.dtype, False, where, sharding)


def _result(value: Any, loaded: torch.Tensor) -> Any:
    return type(value)(loaded.item()) if type(value) in _NUMBERS else loaded


def _check_outside(name: str, x: Any) -> None:
    """Raise inside of a traced function."""
    wrapped = any(isinstance(t, torch.Tensor) and functorch.is_wrapped(t) for t in tree.leaves(x))
    if tracing.current() is not None or wrapped:
        raise PurityError(
            report(
                f"{name} was called inside a function that is traced or transformed",
                "return the values, and call it outside.",
                at=user_location(),
            )
        )


# -- files ------------------------------------------------------------------------------------


def _folder(path: str | os.PathLike[str]) -> Path:
    if "://" in os.fspath(path):
        raise ValueError(
            report(
                f"{os.fspath(path)!r} is no folder of a file system",
                "mount it, or save to a local folder and copy that.",
                at=user_location(),
            )
        )
    if runtime.xla()._xla_get_num_processes() > 1 and not distributed.is_initialized():
        raise RuntimeError(
            report(
                "there are several processes, which must agree on who writes and reads what",
                "call torch.distributed.init_process_group('gloo', init_method='xla://') first.",
                at=user_location(),
            )
        )
    return Path(path)


def _partial(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.partial")


def _wait_for_all() -> None:
    if distributed.is_initialized():
        distributed.barrier()


def _contents(folder: Path) -> dict[str, Any]:
    """What a checkpoint holds."""
    from . import planners

    try:
        return planners.contents(folder)
    except (FileNotFoundError, NotADirectoryError):
        partial = _partial(folder)
        note = f"; {partial} is of a save that did not end" if partial.exists() else ""
        raise FileNotFoundError(
            report(
                f"there is no checkpoint at {folder}{note}",
                "give the folder that save_checkpoint was given.",
                at=user_location(),
            )
        ) from None


def _check_fits(
    stored: Mapping[str, Any], leaves: list[_Leaf], targets: Mapping[str, Target]
) -> None:
    """Raise unless a checkpoint holds just what is asked for."""
    lines = [f"  {leaf.path}: not in the checkpoint" for leaf in leaves if leaf.name not in stored]
    lines += [f"  {name}: in the checkpoint only" for name in stored if name not in targets]
    for leaf in leaves:
        if leaf.name in stored:
            have, want = stored[leaf.name], short(targets[leaf.name])
            kept = "a Python object" if have is None else short(have)
            if kept != want:
                lines.append(f"  {leaf.path}: {kept} in the checkpoint, {want} in the target")
    if lines:
        raise TreeMismatchError(
            report(
                "\n".join(["the checkpoint does not fit the target:", *lines]),
                "give a target with the paths, shapes and dtypes of what was saved, and convert "
                "the result.",
                at=user_location(),
            )
        )
