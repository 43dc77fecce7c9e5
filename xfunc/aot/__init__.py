"""Compiling for a TPU without one: libtpu, in its own process."""

from xfunc.aot import compiled as _compiled  # noqa: F401 (it makes the target known)
from xfunc.aot.buffers import Buffer as Buffer
from xfunc.aot.topology import Topology as Topology
from xfunc.aot.topology import topology_of as topology_of
from xfunc.hlo.estimate.cost import CHIPS as CHIPS
