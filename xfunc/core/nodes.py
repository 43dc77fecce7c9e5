"""optree; where it is not installed, the little of it that serving exported programs takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import optree as optree
else:
    try:
        import optree as optree
    except ModuleNotFoundError:
        from xfunc.core import plain_trees as optree  # noqa: F401
