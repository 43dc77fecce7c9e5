"""Meshes and shardings; import it as ``xfunc.sharding``."""

if __name__ != "xfunc.sharding":  # A second copy would have meshes of its own.
    raise ImportError("import this package as xfunc.sharding, not as " + __name__)

from .arrays import device_put as device_put
from .arrays import sharding_of as sharding_of
from .checkpoint import load_checkpoint as load_checkpoint
from .checkpoint import save_checkpoint as save_checkpoint
from .constraint import with_sharding_constraint as with_sharding_constraint
from .mesh import AbstractMesh as AbstractMesh
from .mesh import Mesh as Mesh
from .mesh import abstract_mesh as abstract_mesh
from .mesh import make_mesh as make_mesh
from .mesh import use_mesh as use_mesh
from .shard_as import shard_alike as shard_alike
from .shard_as import shard_as as shard_as
from .spec import NamedSharding as NamedSharding
from .spec import P as P
from .spec import PartitionSpec as PartitionSpec
from .visualize import visualize_sharding as visualize_sharding
