"""The names of topologies: a kind of TPU, and the grid of its chips."""

from __future__ import annotations

import dataclasses
import math
import re

from xfunc.errors import format_error, short_repr

_EXAMPLES = "tpu:v6e:16x16, tpu:v6e-256, tpu:v5e:2x2, tpu:v5p:4x4x4, tpu:v5p-128, tpu:tpu7x:2x2x2"
_FULL = re.compile(r"(v\d\w*?|tpu7x):(\d+(?:x\d+)*)((?:_twisted|_untwisted)?)")
_SHORT = re.compile(r"(v\d[a-z]*)-(\d+)")
_SAME = {"v5litepod": "v5e", "v5lite": "v5e", "v6lite": "v6e"}
_TWO_DEVICES = ("v2", "v3", "tpu7x")  # to a chip: its cores

# The grids that Cloud TPU rents out under a short name, by the number of chips.
_FLAT = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
_CUBE = {
    4: "2x2x1",
    8: "2x2x2",
    16: "2x2x4",
    32: "2x4x4",
    64: "4x4x4",
    128: "4x4x8",
    256: "4x8x8",
    512: "8x8x8",
    1024: "8x8x16",
    2048: "8x16x16",
}
_LARGE = {3072: "12x16x16", 4096: "16x16x16", 6144: "16x16x24"}
# By kind: grids, and how many a short name counts per chip (tensor cores for v4 and v5p).
_SLICES = {
    "v4": (_CUBE, 2),
    "v5e": (_FLAT, 1),
    "v5p": (_CUBE | _LARGE, 2),
    "v6e": (_FLAT, 1),
}

# The MiB of a device, and those of them that libtpu 0.0.21 (for tpu7x, 0.0.52) keeps for itself, as
# its refusals say. 0.0.52 keeps 4 more of a v6e, and 16 more of a v5p.
_MEMORY = {
    "v4": (32 << 10, 1283),
    "v5e": (16 << 10, 258),
    "v5p": (96 << 10, 263),
    "v6e": (63 << 9, 260),
    "tpu7x": (95 << 10, 268),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """Chips of one kind in a grid.

    Attributes:
        name: as libtpu calls it, ``v6e:16x16``.
        kind: the kind of chip, ``v6e``.
        grid: the grid of chips, ``(16, 16)``.
    """

    name: str
    kind: str
    grid: tuple[int, ...]

    @property
    def devices(self) -> int:
        """The number of devices: chips, or cores for v2, v3 and tpu7x, two to a chip."""
        return math.prod(self.grid) * (2 if self.kind in _TWO_DEVICES else 1)

    @property
    def memory(self) -> int | None:
        """Bytes of a device's memory that a program may use, if known."""
        if self.kind not in _MEMORY:
            return None
        mib, kept = _MEMORY[self.kind]
        return (mib - kept) << 20

    @property
    def options(self) -> dict[str, object]:
        """The options that libtpu needs in addition to the name."""
        options: dict[str, object] = {}
        if self.kind == "v4":  # Two cores form one device, as in PyTorch/XLA and JAX.
            options["chip_config_name"] = "megacore"
        if math.prod(self.grid) < 4:  # libtpu assumes that a host has 2x2 chips.
            options["chips_per_host_bounds"] = [*self.grid, 1, 1][:3]
        return options


def topology_of(target: str) -> Topology:
    """The topology that a target names.

    Args:
        target: ``tpu:v6e:16x16``, ``tpu:v6e-256``, or the same without ``tpu:``. The number in a
            short name is Cloud TPU's: chips, or cores for v4 and v5p, two to a chip. TPU7x has no
            short names.

    Returns:
        A `Topology`: its name for libtpu, the kind of chip and their grid.

    Raises:
        ValueError: the name is not valid.
    """
    name = target.removeprefix("tpu:") if isinstance(target, str) else ""
    if found := _FULL.fullmatch(name):
        kind = _SAME.get(found[1], found[1])
        grid = tuple(map(int, found[2].split("x")))
        if math.prod(grid):
            return Topology(f"{kind}:{found[2]}{found[3]}", kind, grid)
    if (found := _SHORT.fullmatch(name)) and _SAME.get(found[1], found[1]) in _SLICES:
        kind = _SAME.get(found[1], found[1])
        slices, unit = _SLICES[kind]
        chips, rest = divmod(int(found[2]), unit)
        if chips in slices and not rest:
            return topology_of(f"{kind}:{slices[chips]}")
        sizes = ", ".join(f"{kind}-{n * unit}" for n in slices)
        raise unknown(target, hint=f"use one of {sizes}, or give a grid: {kind}:{slices[4]}.")
    raise unknown(target)


def unknown(target: object, why: str = "", hint: str = "") -> ValueError:
    """The error for a target that does not exist."""
    problem = f"unknown target {short_repr(target)}{why and f': {why}'}"
    usual = f"leave it out, to compile for the running device, or name a TPU: {_EXAMPLES}."
    return ValueError(format_error(problem, hint or usual))
