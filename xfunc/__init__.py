"""xfunc: JAX-style functional transforms over torch and torch_xla."""

from xfunc import checkpoint_policies as checkpoint_policies
from xfunc import config as config
from xfunc import debug as debug
from xfunc import errors as errors
from xfunc import tree as tree
from xfunc.avals import ShapeDtypeStruct as ShapeDtypeStruct
from xfunc.cache import clear_caches as clear_caches
from xfunc.cache import trace_count as trace_count
from xfunc.staging import disable_jit as disable_jit
from xfunc.transfer import block_until_ready as block_until_ready
from xfunc.transfer import device_get as device_get
from xfunc.transfer import device_put as device_put
from xfunc.transforms import checkpoint as checkpoint
from xfunc.transforms import eval_shape as eval_shape
from xfunc.transforms import grad as grad
from xfunc.transforms import hessian as hessian
from xfunc.transforms import jacfwd as jacfwd
from xfunc.transforms import jacrev as jacrev
from xfunc.transforms import jit as jit
from xfunc.transforms import jvp as jvp
from xfunc.transforms import make_hlo as make_hlo
from xfunc.transforms import remat as remat
from xfunc.transforms import scan as scan
from xfunc.transforms import value_and_grad as value_and_grad
from xfunc.transforms import vjp as vjp
from xfunc.transforms import vmap as vmap
