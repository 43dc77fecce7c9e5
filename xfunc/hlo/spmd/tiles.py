"""`HloSharding`: the sharding of an array over devices, in HLO's form.

The devices of a pod are numbered; which of them holds which tile is a permutation of these numbers.
HLO writes it as ``iota(reshape)`` transposed by ``perm``, so that its text does not grow with the
pod; other permutations are listed.

Source: ``xla::HloSharding``, ``xla::TileAssignment`` (version 2, iota).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Sequence

import numpy as np

from xfunc.hlo import hlo_pb2 as pb


@dataclasses.dataclass(frozen=True)
class DeviceAssignment:
    """An order of devices: ``arange(prod(reshape)).reshape(reshape).transpose(perm).ravel()``.

    `DeviceAssignment.of` makes the canonical one. If `listed` is set, it is the order itself.
    """

    reshape: tuple[int, ...]
    perm: tuple[int, ...]
    listed: tuple[int, ...] | None = None

    @classmethod
    def of(cls, reshape: Sequence[int], perm: Sequence[int]) -> DeviceAssignment:
        """The order without dimensions of size 1, with neighbours that stay together merged."""
        kept = [p for p in perm if reshape[p] != 1]
        runs: list[list[int]] = []
        real = sorted(kept)
        after = dict(itertools.pairwise(real))
        for p in kept:
            if runs and after.get(runs[-1][-1]) == p:
                runs[-1].append(p)
            else:
                runs.append([p])
        by_start = sorted(runs)
        sizes = tuple(math.prod(reshape[p] for p in run) for run in by_start)
        return cls(sizes or (1,), tuple(by_start.index(run) for run in runs) or (0,))

    @classmethod
    def listing(cls, devices: Iterable[int]) -> DeviceAssignment:
        """An order given device by device."""
        listed = tuple(int(d) for d in devices)
        if listed == tuple(range(len(listed))):
            return cls((len(listed),), (0,))
        return cls((), (), listed)

    @property
    def is_iota(self) -> bool:
        """Whether it has a compact form."""
        return self.listed is None

    def devices(self) -> np.ndarray:
        """The numbers of the devices, in order."""
        if self.listed is not None:
            return np.array(self.listed)
        return np.arange(math.prod(self.reshape)).reshape(self.reshape).transpose(self.perm).ravel()


@dataclasses.dataclass(frozen=True)
class HloSharding:
    """The sharding of an array of ``len(dims)`` dimensions.

    The devices in `order` are laid out row-major over ``(*dims, manual, replicated)``.

    Attributes:
        dims: the number of tiles along each dimension of the array.
        manual: devices that each run their own program on a tile (in a manual region).
        replicated: devices that hold the same tile.
        order: of the devices.
    """

    dims: tuple[int, ...]
    manual: int = 1
    replicated: int = 1
    order: DeviceAssignment = DeviceAssignment((1,), (0,))

    @property
    def is_replicated(self) -> bool:
        """Whether each device holds the whole array."""
        return self.manual == 1 and all(d == 1 for d in self.dims)

    @property
    def is_manual(self) -> bool:
        """Whether each device runs its own program on its own array."""
        return self.manual > 1 and self.replicated == 1 and all(d == 1 for d in self.dims)

    def grid(self) -> np.ndarray:
        """The devices, of shape ``(*dims, manual * replicated)``."""
        return self.order.devices().reshape(*self.dims, self.manual * self.replicated)

    def write(self, proto: pb.OpSharding) -> None:
        """Fill an empty ``OpSharding``."""
        if self.is_replicated:
            proto.type = pb.OpSharding.REPLICATED
            return
        if self.is_manual:
            proto.type = pb.OpSharding.MANUAL
            return
        proto.type = pb.OpSharding.OTHER
        proto.tile_assignment_dimensions.extend(self.dims)
        kinds: list[pb.OpSharding.Type] = []
        if self.manual > 1:
            proto.tile_assignment_dimensions.append(self.manual)
            kinds.append(pb.OpSharding.MANUAL)
        if self.replicated > 1:
            proto.tile_assignment_dimensions.append(self.replicated)
            kinds.append(pb.OpSharding.REPLICATED)
        if kinds == [pb.OpSharding.REPLICATED]:
            proto.replicate_on_last_tile_dim = True
        else:
            proto.last_tile_dims.extend(kinds)
        if self.order.listed is not None:
            proto.tile_assignment_devices.extend(self.order.listed)
        else:
            proto.iota_reshape_dims.extend(self.order.reshape)
            proto.iota_transpose_perm.extend(self.order.perm)

    def to_proto(self) -> pb.OpSharding:
        """The ``OpSharding``."""
        proto = pb.OpSharding()
        self.write(proto)
        return proto

    @property
    def wire(self) -> bytes:
        """The serialised ``OpSharding``."""
        return self.to_proto().SerializeToString(deterministic=True)

    def __str__(self) -> str:
        """As HLO text has it: ``{devices=[2,1,4]<=[8] last_tile_dim_replicate}``."""
        if self.is_replicated:
            return "{replicated}"
        if self.is_manual:
            return "{manual}"
        sizes = [*self.dims]
        kinds = [
            name for name, n in (("manual", self.manual), ("replicated", self.replicated)) if n > 1
        ]
        sizes += [n for n in (self.manual, self.replicated) if n > 1]
        if self.order.listed is not None:
            order = ",".join(map(str, self.order.listed))
            text = f"devices=[{','.join(map(str, sizes))}]{order}"
        else:
            order = f"<=[{','.join(map(str, self.order.reshape))}]"
            if self.order.perm != tuple(range(len(self.order.perm))):
                order += f"T({','.join(map(str, self.order.perm))})"
            text = f"devices=[{','.join(map(str, sizes))}]{order}"
        if kinds == ["replicated"]:
            return f"{{{text} last_tile_dim_replicate}}"
        return f"{{{text} last_tile_dims={{{', '.join(kinds)}}}}}" if kinds else f"{{{text}}}"


def parse(text: str) -> HloSharding | None:
    """Read an ``HloSharding`` as XLA prints it.

    None: it does not specify a sharding (unknown, manual, or a single device).
    """
    if text == "{replicated}":
        return HloSharding(())
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    sizes = _ints(found["sizes"])
    if found["listed"] is not None:
        order = DeviceAssignment.listing(_ints(found["listed"]))
    else:
        reshape = _ints(found["reshape"])
        perm = _ints(found["perm"]) if found["perm"] else range(len(reshape))
        order = DeviceAssignment.of(reshape, perm)
    kinds = (found["kinds"] or "").split(", ") if found["kinds"] else []
    if found["partial"]:
        kinds = ["replicated"]
    if "manual" in kinds:
        return None
    n = len(sizes) - len(kinds)
    return HloSharding(tuple(sizes[:n]), 1, math.prod(sizes[n:]), order)


_TEXT = re.compile(
    r"\{devices=\[(?P<sizes>[\d,]+)\]"
    r"(?:(?P<listed>[\d,]+)|<=\[(?P<reshape>[\d,]+)\](?:T\((?P<perm>[\d,]+)\))?)"
    r"(?P<partial> last_tile_dim_replicate)?(?: last_tile_dims=\{(?P<kinds>[a-z, ]+)\})?\}"
)


def _ints(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def whole(ndim: int) -> HloSharding:
    """A replicated array."""
    return HloSharding((1,) * ndim)
