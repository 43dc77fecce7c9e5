"""Numbers of bytes, for people."""

from __future__ import annotations


def size(n: float) -> str:
    """A number of bytes in the unit that suits it: ``7.5 MiB``."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while n >= 1024 and len(units) > 1:
        n /= 1024
        del units[0]
    return f"{n:.0f} B" if units[0] == "B" else f"{n:.1f} {units[0]}"
