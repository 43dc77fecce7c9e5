"""Meshes and shardings; import it as ``xfunc.sharding``."""

if __name__ != "xfunc.sharding":  # A second copy would have meshes of its own.
    raise ImportError("import this package as xfunc.sharding, not as " + __name__)

from .mesh import AbstractMesh as AbstractMesh
from .mesh import Mesh as Mesh
from .mesh import abstract_mesh as abstract_mesh
from .mesh import make_mesh as make_mesh
from .mesh import use_mesh as use_mesh
from .spec import NamedSharding as NamedSharding
from .spec import P as P
from .spec import PartitionSpec as PartitionSpec
