"""Transforms of functions; import it as ``xfunc.transforms``."""

if __name__ != "xfunc.transforms":  # A second copy would have its own cache and errors.
    raise ImportError("import this package as xfunc.transforms, not as " + __name__)

from xfunc.transforms.associative_scan import associative_scan as associative_scan
from xfunc.transforms.at import at as at
from xfunc.transforms.barrier import optimization_barrier as optimization_barrier
from xfunc.transforms.barrier import reduce_precision as reduce_precision
from xfunc.transforms.callback import io_callback as io_callback
from xfunc.transforms.callback import pure_callback as pure_callback
from xfunc.transforms.checkpoint import checkpoint as checkpoint
from xfunc.transforms.checkpoint import remat as remat
from xfunc.transforms.checkpoint_name import checkpoint_name as checkpoint_name
from xfunc.transforms.cond import cond as cond
from xfunc.transforms.cond import switch as switch
from xfunc.transforms.custom_gradient import custom_gradient as custom_gradient
from xfunc.transforms.custom_jvp import custom_jvp as custom_jvp
from xfunc.transforms.custom_linear_solve import custom_linear_solve as custom_linear_solve
from xfunc.transforms.custom_root import custom_root as custom_root
from xfunc.transforms.custom_vjp import custom_vjp as custom_vjp
from xfunc.transforms.custom_vmap import custom_vmap as custom_vmap
from xfunc.transforms.custom_vmap import sequential_vmap as sequential_vmap
from xfunc.transforms.dynamic_slice import dynamic_slice as dynamic_slice
from xfunc.transforms.dynamic_slice import dynamic_update_slice as dynamic_update_slice
from xfunc.transforms.fori_loop import fori_loop as fori_loop
from xfunc.transforms.fwd_and_bwd import fwd_and_bwd as fwd_and_bwd
from xfunc.transforms.grad import grad as grad
from xfunc.transforms.grad import value_and_grad as value_and_grad
from xfunc.transforms.inspect import eval_shape as eval_shape
from xfunc.transforms.inspect import make_hlo as make_hlo
from xfunc.transforms.jacobian import hessian as hessian
from xfunc.transforms.jacobian import jacfwd as jacfwd
from xfunc.transforms.jacobian import jacobian as jacobian
from xfunc.transforms.jacobian import jacrev as jacrev
from xfunc.transforms.jit import jit as jit
from xfunc.transforms.jvp import jvp as jvp
from xfunc.transforms.linear import closure_convert as closure_convert
from xfunc.transforms.linear import linear_transpose as linear_transpose
from xfunc.transforms.linearize import linearize as linearize
from xfunc.transforms.map import map as map
from xfunc.transforms.ragged_dot import ragged_dot as ragged_dot
from xfunc.transforms.ravel import ravel_pytree as ravel_pytree
from xfunc.transforms.scan.scan import scan as scan
from xfunc.transforms.segments import segment_max as segment_max
from xfunc.transforms.segments import segment_min as segment_min
from xfunc.transforms.segments import segment_prod as segment_prod
from xfunc.transforms.segments import segment_sum as segment_sum
from xfunc.transforms.stop_gradient import stop_gradient as stop_gradient
from xfunc.transforms.vectorize import vectorize as vectorize
from xfunc.transforms.vjp import vjp as vjp
from xfunc.transforms.vmap import vmap as vmap
from xfunc.transforms.while_loop import while_loop as while_loop
