"""The words of the programs, in JAX. Imported only while recording."""

from __future__ import annotations

import importlib
from typing import Any

jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")
lax: Any = jax.lax
nn: Any = jax.nn

# -- making and converting --------------------------------------------------------------------


def array(data: Any) -> Any:
    """A constant; floats have the default width, which the recorder doubles to judge rounding."""
    x = jnp.asarray(data)
    return x.astype(jnp.int32) if jnp.issubdtype(x.dtype, jnp.integer) else x


def real(x: Any) -> Any:
    return jnp.asarray(x, jnp.result_type(float))


def integer(x: Any) -> Any:
    return jnp.asarray(x).astype(jnp.int32)


def boolean(x: Any) -> Any:
    return jnp.asarray(x).astype(bool)


def arange(n: int) -> Any:
    return jnp.arange(n, dtype=jnp.int32)


def _narrow(x: Any) -> Any:
    """Integers of the default width, also where float64 is enabled."""
    return integer(x) if jnp.issubdtype(x.dtype, jnp.integer) else x


def zeros(shape: Any) -> Any:
    return jnp.zeros(shape)


def ones(shape: Any) -> Any:
    return jnp.ones(shape)


def full(shape: Any, value: float) -> Any:
    return jnp.full(shape, value)


eye = jnp.eye
zeros_like = jnp.zeros_like
ones_like = jnp.ones_like

# -- elementwise ------------------------------------------------------------------------------

sin, cos, tanh, exp, log, sqrt = jnp.sin, jnp.cos, jnp.tanh, jnp.exp, jnp.log, jnp.sqrt
square, arctan, expm1, log1p, floor, sign = (
    jnp.square, jnp.arctan, jnp.expm1, jnp.log1p, jnp.floor, jnp.sign
)  # fmt: skip
abs_, erf, sigmoid, relu, softplus = jnp.abs, lax.erf, nn.sigmoid, nn.relu, nn.softplus
gelu, silu = (lambda x: nn.gelu(x, approximate=False)), nn.silu
maximum, minimum, logaddexp, arctan2 = jnp.maximum, jnp.minimum, jnp.logaddexp, jnp.arctan2
clip, where, floor_divide, remainder = jnp.clip, jnp.where, jnp.floor_divide, jnp.remainder
stop_gradient = lax.stop_gradient

# -- reductions and scans along an axis -------------------------------------------------------


def sum_(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return _narrow(jnp.sum(x, axis, keepdims=keepdims))


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return jnp.mean(x, axis, keepdims=keepdims)


def prod(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return jnp.prod(x, axis, keepdims=keepdims)


def max_(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return jnp.max(x, axis, keepdims=keepdims)


def min_(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return jnp.min(x, axis, keepdims=keepdims)


def var(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return jnp.var(x, axis, keepdims=keepdims)


def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return nn.logsumexp(x, axis, keepdims=keepdims)


def any_(x: Any, axis: Any = None) -> Any:
    return jnp.any(x, axis)


def all_(x: Any, axis: Any = None) -> Any:
    return jnp.all(x, axis)


def argmax(x: Any, axis: Any = None) -> Any:
    return _narrow(jnp.argmax(x, axis))


def argmin(x: Any, axis: Any = None) -> Any:
    return _narrow(jnp.argmin(x, axis))


softmax, log_softmax = nn.softmax, nn.log_softmax
cumprod, sort = jnp.cumprod, jnp.sort


def cumsum(x: Any, axis: int) -> Any:
    return _narrow(jnp.cumsum(x, axis))


def argsort(x: Any, axis: int) -> Any:
    return _narrow(jnp.argsort(x, axis))


def top_k(x: Any, k: int) -> Any:
    return lax.top_k(x, k)


# -- shapes, indices, products ----------------------------------------------------------------

reshape, transpose, swapaxes, expand_dims = (
    jnp.reshape, jnp.transpose, jnp.swapaxes, jnp.expand_dims
)  # fmt: skip
squeeze, broadcast_to, concat, stack, flip = (
    jnp.squeeze, jnp.broadcast_to, jnp.concatenate, jnp.stack, jnp.flip
)  # fmt: skip
tril, tile, take, take_along_axis = jnp.tril, jnp.tile, jnp.take, jnp.take_along_axis
matmul, einsum, outer = jnp.matmul, jnp.einsum, jnp.outer


def pad(x: Any, before: int, after: int) -> Any:
    """Zeros around the last axis."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(before, after)])


def pick(x: Any, i: Any) -> Any:
    """The entry of axis 0 at a traced index."""
    return lax.dynamic_index_in_dim(x, i, keepdims=False)


def set_at(x: Any, i: Any, y: Any) -> Any:
    """`x` with the entries of axis 0 at distinct `i` replaced."""
    return x.at[i].set(y)


def add_at(x: Any, i: Any, y: Any) -> Any:
    """`x` with `y` added to the entries of axis 0 at `i`, which may repeat."""
    return x.at[i].add(y)


def one_hot(i: Any, n: int) -> Any:
    return nn.one_hot(i, n)


# -- transforms and control flow --------------------------------------------------------------

jit, vmap, grad, value_and_grad, vjp, jvp = (
    jax.jit, jax.vmap, jax.grad, jax.value_and_grad, jax.vjp, jax.jvp
)  # fmt: skip
jacfwd, jacrev, hessian, linearize, checkpoint = (
    jax.jacfwd, jax.jacrev, jax.hessian, jax.linearize, jax.checkpoint
)  # fmt: skip
custom_vjp, custom_jvp = jax.custom_vjp, jax.custom_jvp
scan, cond, switch, while_loop, fori_loop, map_, associative_scan = (
    lax.scan, lax.cond, lax.switch, lax.while_loop, lax.fori_loop, lax.map, lax.associative_scan
)  # fmt: skip
leaves = jax.tree.leaves


def is_real(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)
