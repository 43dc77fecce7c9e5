"""Meshes and shardings; import it as ``xfunc.sharding``."""

if __name__ != "xfunc.sharding":  # A second copy would have its own meshes.
    raise ImportError("import this package as xfunc.sharding, not as " + __name__)

from xfunc.sharding import exported as _exported  # noqa: F401 (files can hold shardings then)
from xfunc.sharding.arrays import sharding_of as sharding_of
from xfunc.sharding.checkpoint import load_checkpoint as load_checkpoint
from xfunc.sharding.checkpoint import load_extra as load_extra
from xfunc.sharding.checkpoint import save_checkpoint as save_checkpoint
from xfunc.sharding.checkpoint import save_checkpoint_async as save_checkpoint_async
from xfunc.sharding.collectives import all_gather as all_gather
from xfunc.sharding.collectives import all_gather_invariant as all_gather_invariant
from xfunc.sharding.collectives import all_to_all as all_to_all
from xfunc.sharding.collectives import axis_index as axis_index
from xfunc.sharding.collectives import axis_size as axis_size
from xfunc.sharding.collectives import pcast as pcast
from xfunc.sharding.collectives import pmax as pmax
from xfunc.sharding.collectives import pmean as pmean
from xfunc.sharding.collectives import pmin as pmin
from xfunc.sharding.collectives import ppermute as ppermute
from xfunc.sharding.collectives import psum as psum
from xfunc.sharding.collectives import psum_scatter as psum_scatter
from xfunc.sharding.collectives import pvary as pvary
from xfunc.sharding.constraint import device_put as device_put
from xfunc.sharding.constraint import with_sharding_constraint as with_sharding_constraint
from xfunc.sharding.mesh import AbstractMesh as AbstractMesh
from xfunc.sharding.mesh import Mesh as Mesh
from xfunc.sharding.mesh import abstract_mesh as abstract_mesh
from xfunc.sharding.mesh import make_mesh as make_mesh
from xfunc.sharding.mesh import use_mesh as use_mesh
from xfunc.sharding.process_local import (
    make_array_from_process_local_data as make_array_from_process_local_data,
)
from xfunc.sharding.process_local import process_local_indices as process_local_indices
from xfunc.sharding.shard_as import shard_alike as shard_alike
from xfunc.sharding.shard_as import shard_as as shard_as
from xfunc.sharding.shard_map import shard_map as shard_map
from xfunc.sharding.shards import Shard as Shard
from xfunc.sharding.shards import addressable_shards as addressable_shards
from xfunc.sharding.spec import NamedSharding as NamedSharding
from xfunc.sharding.spec import P as P
from xfunc.sharding.spec import PartitionSpec as PartitionSpec
from xfunc.sharding.typeof import typeof as typeof
from xfunc.sharding.visualize import visualize_sharding as visualize_sharding
