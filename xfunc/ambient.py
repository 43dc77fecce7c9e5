"""What surrounds a call.

The mesh in use, the axes that a manual region is manual over, those of vmaps that have a name, and
a policy in place of the user's.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Hashable
from typing import Any

import torch

_thread = threading.local()


def mesh() -> Any:
    """The mesh of the innermost `use_mesh` of this thread, or None."""
    return getattr(_thread, "mesh", None)


def set_mesh(new: Any) -> Any:
    """Have this mesh in use from now on; the one before."""
    before = mesh()
    _thread.mesh = new
    return before


_known: list[Any] = []
_MOST_KNOWN = 16


def known_meshes() -> list[Any]:
    """The mesh in use, then those that shardings were made for, the latest first."""
    return [*([] if mesh() is None else [mesh()]), *_known]


def note_mesh(new: Any) -> None:
    """A sharding was made for this mesh."""
    if not _known or _known[0] is not new:
        _known[:] = [new, *(m for m in _known if m != new)][:_MOST_KNOWN]


def region() -> Any:
    """The innermost manual region (`shard_map`) that is being traced in this thread, or None."""
    return getattr(_thread, "region", None)


def set_region(new: Any) -> Any:
    """Be in this manual region from now on; the one before."""
    before = region()
    _thread.region = new
    return before


def named_axes() -> tuple[Any, ...]:
    """The axes of vmaps that have a name and are being traced in this thread, outermost first."""
    return getattr(_thread, "named_axes", ())


def set_named_axes(new: tuple[Any, ...]) -> None:
    """Have these named axes from now on."""
    _thread.named_axes = new


@dataclasses.dataclass(eq=False)
class Override:
    """A policy for all checkpoints and scans, whatever policies they were given.

    It is compared by identity: what is traced under one is not found under another, so that each
    learns whether it was asked for.

    Attributes:
        policy: which one.
        asked: whether a checkpoint or a scan has been met.
    """

    policy: Any
    asked: bool = False


def set_override(new: Override | None) -> Override | None:
    """Have this policy in place of all others from now on; the one before."""
    before = _thread.__dict__.get("override")
    _thread.override = new
    return before


def policy_for(own: Any) -> Any:
    """The policy of a checkpoint or scan that was given `own`."""
    override = _thread.__dict__.get("override")
    if override is None:
        return own
    override.asked = True
    return override.policy


NOTHING = (None, None, None, ())


def key() -> Any:
    """What of it changes what is traced; `NOTHING` where nothing surrounds the call."""
    around = _thread.__dict__
    return around.get("mesh"), around.get("region"), around.get("override"), named_axes()


def modes() -> Hashable:
    """Global settings of torch, and surroundings, that change what is traced."""
    found: Hashable = torch.get_default_dtype()
    if torch.is_autocast_enabled("xla"):
        found = (found, torch.get_autocast_dtype("xla"))
    if torch.is_autocast_enabled("cpu"):
        found = (found, "cpu", torch.get_autocast_dtype("cpu"))
    if torch._C._get_deterministic_algorithms():
        found = (found, "deterministic")
    around = key()
    return found if around == NOTHING else (found, around)


def restore(surroundings: Any) -> Any:
    """Have what `key` told once around from now on; what was before."""
    before = key()
    _thread.mesh, _thread.region, _thread.override, _thread.named_axes = surroundings
    return before
