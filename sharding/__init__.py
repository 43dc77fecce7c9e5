"""Meshes and shardings; import it as ``xfunc.sharding``."""

if __name__ != "xfunc.sharding":  # A second copy would have meshes of its own.
    raise ImportError("import this package as xfunc.sharding, not as " + __name__)

from .arrays import device_put as device_put
from .arrays import sharding_of as sharding_of
from .checkpoint import load_checkpoint as load_checkpoint
from .checkpoint import load_extra as load_extra
from .checkpoint import save_checkpoint as save_checkpoint
from .checkpoint import save_checkpoint_async as save_checkpoint_async
from .collectives import all_gather as all_gather
from .collectives import all_gather_invariant as all_gather_invariant
from .collectives import all_to_all as all_to_all
from .collectives import axis_index as axis_index
from .collectives import axis_size as axis_size
from .collectives import pcast as pcast
from .collectives import pmax as pmax
from .collectives import pmean as pmean
from .collectives import pmin as pmin
from .collectives import ppermute as ppermute
from .collectives import psum as psum
from .collectives import psum_scatter as psum_scatter
from .collectives import pvary as pvary
from .constraint import with_sharding_constraint as with_sharding_constraint
from .mesh import AbstractMesh as AbstractMesh
from .mesh import Mesh as Mesh
from .mesh import abstract_mesh as abstract_mesh
from .mesh import make_mesh as make_mesh
from .mesh import use_mesh as use_mesh
from .shard_as import shard_alike as shard_alike
from .shard_as import shard_as as shard_as
from .shard_map import shard_map as shard_map
from .spec import NamedSharding as NamedSharding
from .spec import P as P
from .spec import PartitionSpec as PartitionSpec
from .typeof import typeof as typeof
from .visualize import visualize_sharding as visualize_sharding
