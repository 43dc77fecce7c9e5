"""Shardings in exported files: each mesh once, and for each array a mesh and a spec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xfunc.export import files, loaded
from xfunc.sharding.mesh import AbstractMesh, Layout, Mesh, unchecked
from xfunc.sharding.spec import NamedSharding


def _write(shardings: Sequence[NamedSharding | None]) -> dict[str, object]:
    meshes: dict[AbstractMesh, int] = {}
    arrays = [s and [meshes.setdefault(s.mesh, len(meshes)), s.spec.axes] for s in shardings]
    return {"meshes": [_written(m) for m in meshes], "arrays": arrays}


def _written(mesh: AbstractMesh) -> list[object]:
    layout = mesh.layout
    parts = mesh.axis_names, mesh.axis_sizes, layout.factors, layout.of_axis, layout.listed
    return [*parts]


def _read(written: Any) -> list[NamedSharding | None]:
    """The shardings, on meshes of devices that this process may not have."""
    meshes = [_mesh(*m) for m in written["meshes"]]
    return [
        None if found is None else NamedSharding(meshes[found[0]], found[1])
        for found in written["arrays"]
    ]


def _mesh(names: Any, sizes: Any, factors: Any, of_axis: Any, listed: Any) -> AbstractMesh:
    layout = Layout(
        tuple(factors), tuple(map(tuple, of_axis)), None if listed is None else tuple(listed)
    )
    mesh = unchecked(Mesh, sizes, names, layout)
    if sorted(mesh.devices.ravel()) != [*range(mesh.size)]:
        raise ValueError(f"the devices of {mesh} are not numbered")
    return mesh


files.write_shardings_with(_write)
loaded.read_shardings_with(_read)
