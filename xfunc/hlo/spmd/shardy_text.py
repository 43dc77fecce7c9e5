"""`Writer`: shardings in Shardy's notation, over the axes of a mesh."""

from __future__ import annotations

from collections.abc import Iterable

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.spmd.common_mesh import CommonMesh


class Writer:
    """Writes the shardings of instructions of a module.

    Args:
        mesh: in which all of them can be written.
    """

    def __init__(self, mesh: CommonMesh):
        self._mesh = mesh

    def meshes(self) -> str:
        """The meshes of the module; there is one."""
        known = zip(self._mesh.names, self._mesh.sizes, strict=True)
        axes = ", ".join(f'"{name}"={size}' for name, size in known)
        return f"{{mesh = #sdy.mesh<[{axes}]>}}"

    def one(self, i: pb.HloInstructionProto) -> str:
        """The sharding of a parameter."""
        return f"#sdy.sharding{self._sharding(i)}"

    def several(self, instructions: Iterable[pb.HloInstructionProto]) -> str:
        """The shardings of some values, as attributes of one that produces or takes them all."""
        return f"#sdy.sharding_per_value<[{', '.join(map(self._sharding, instructions))}]>"

    def open(self, ndim: int) -> str:
        """The sharding of a value, left to the partitioner."""
        return f"#sdy.sharding_per_value<[<@mesh, [{', '.join(['{?}'] * ndim)}]>]>"

    def manual(self, i: pb.HloInstructionProto) -> set[str]:
        """The axes over which a value is manual."""
        return {*self._mesh.axes(i.sharding, len(i.shape.dimensions)).manual}

    def manual_axes(self, names: Iterable[str]) -> str:
        """The axes of a manual region."""
        wanted = {*names}
        axes = ", ".join(f'"{n}"' for n in self._mesh.names if n in wanted)
        return f"#sdy<manual_axes{{{axes}}}>"

    def _sharding(self, i: pb.HloInstructionProto) -> str:
        """The axes of each dimension; `?`: the partitioner may add more."""
        axes, free = self._mesh.axes(i.sharding, len(i.shape.dimensions)), _free(i)
        dims: list[str] = []
        for d, names in enumerate(axes.dims):
            parts = [*(f'"{n}"' for n in names), *(["?"] if d in free else [])]
            dims.append(f"{{{', '.join(parts)}}}")
        return f"<@mesh, [{', '.join(dims)}]>"


def _free(i: pb.HloInstructionProto) -> set[int]:
    """The dimensions that are left to the partitioner: see `annotations.unspecified`."""
    listed = i.backend_config.decode().removeprefix("unspecified_dims=[").removesuffix("]")
    return {int(d) for d in listed.split(",")} if listed else set()
