"""Transforms of functions; import it as ``xfunc.transforms``."""

if __name__ != "xfunc.transforms":  # A second copy would have a cache and errors of its own.
    raise ImportError("import this package as xfunc.transforms, not as " + __name__)

from .associative_scan import associative_scan as associative_scan
from .at import at as at
from .callback import io_callback as io_callback
from .callback import pure_callback as pure_callback
from .checkpoint import checkpoint as checkpoint
from .checkpoint import remat as remat
from .checkpoint_name import checkpoint_name as checkpoint_name
from .cond import cond as cond
from .cond import switch as switch
from .custom_jvp import custom_jvp as custom_jvp
from .custom_linear_solve import custom_linear_solve as custom_linear_solve
from .custom_vjp import custom_vjp as custom_vjp
from .custom_vmap import custom_vmap as custom_vmap
from .custom_vmap import sequential_vmap as sequential_vmap
from .fori_loop import fori_loop as fori_loop
from .fwd_and_bwd import fwd_and_bwd as fwd_and_bwd
from .grad import grad as grad
from .grad import value_and_grad as value_and_grad
from .inspect import eval_shape as eval_shape
from .inspect import make_hlo as make_hlo
from .jacobian import hessian as hessian
from .jacobian import jacfwd as jacfwd
from .jacobian import jacrev as jacrev
from .jit import jit as jit
from .jvp import jvp as jvp
from .linear import closure_convert as closure_convert
from .linear import linear_transpose as linear_transpose
from .linearize import linearize as linearize
from .map import map as map
from .ravel import ravel_pytree as ravel_pytree
from .scan import scan as scan
from .stop_gradient import stop_gradient as stop_gradient
from .vectorize import vectorize as vectorize
from .vjp import vjp as vjp
from .vmap import vmap as vmap
from .while_loop import while_loop as while_loop
