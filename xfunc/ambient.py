"""What surrounds a call: the mesh in use, and the axes that a manual region is manual over."""

from __future__ import annotations

import threading
from typing import Any

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


def key() -> Any:
    """What of it changes what is traced."""
    return _thread.__dict__.get("mesh"), _thread.__dict__.get("region")


def restore(surroundings: Any) -> Any:
    """Have what `key` told once around from now on; what was before."""
    before = key()
    _thread.mesh, _thread.region = surroundings
    return before
