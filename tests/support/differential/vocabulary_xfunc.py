"""The words of the programs, in torch and xfunc.

What differs from torch's own functions is where the packages differ: integers are 32 bits wide, as
JAX's are by default, and axes are counted and defaulted as in numpy.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import xfunc as xf

Tensor = torch.Tensor


def _narrow(x: Tensor) -> Tensor:
    """Integers as JAX has them."""
    return x.to(torch.int32) if x.dtype == torch.int64 else x


# -- making and converting --------------------------------------------------------------------


def array(data: Any) -> Tensor:
    return _narrow(torch.tensor(data))


def real(x: Any) -> Tensor:
    return x.to(torch.float32) if isinstance(x, Tensor) else torch.tensor(float(x))


def integer(x: Any) -> Tensor:
    return x.to(torch.int32) if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.int32)


def boolean(x: Any) -> Tensor:
    return x.to(torch.bool) if isinstance(x, Tensor) else torch.tensor(x)


def arange(n: int) -> Tensor:
    return torch.arange(n, dtype=torch.int32)


zeros, ones, full, eye = torch.zeros, torch.ones, torch.full, torch.eye
zeros_like, ones_like = torch.zeros_like, torch.ones_like

# -- elementwise ------------------------------------------------------------------------------

sin, cos, tanh, exp, log, sqrt = torch.sin, torch.cos, torch.tanh, torch.exp, torch.log, torch.sqrt
square, arctan, expm1, log1p, floor, sign = (
    torch.square, torch.arctan, torch.expm1, torch.log1p, torch.floor, torch.sign
)  # fmt: skip
abs_, erf, sigmoid, relu, softplus = torch.abs, torch.erf, torch.sigmoid, F.relu, F.softplus
gelu, silu = F.gelu, F.silu
maximum, minimum, logaddexp, arctan2 = (
    torch.maximum, torch.minimum, torch.logaddexp, torch.arctan2
)  # fmt: skip
clip, where, floor_divide, remainder = (
    torch.clip, torch.where, torch.floor_divide, torch.remainder
)  # fmt: skip
stop_gradient: Any = xf.stop_gradient

# -- reductions and scans along an axis -------------------------------------------------------


def _axes(x: Tensor, axis: Any) -> Any:
    return tuple(range(x.ndim)) if axis is None else axis


def sum_(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return _narrow(torch.sum(x, _axes(x, axis), keepdim=keepdims))


def mean(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    x = x if x.is_floating_point() else x.float()  # torch has no mean of integers
    return torch.mean(x, _axes(x, axis), keepdim=keepdims)


def prod(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    if axis is None:
        return _narrow(torch.prod(x))
    return _narrow(torch.prod(x, axis, keepdim=keepdims))


def max_(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return torch.amax(x, _axes(x, axis), keepdim=keepdims)


def min_(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return torch.amin(x, _axes(x, axis), keepdim=keepdims)


def var(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return torch.var(x, _axes(x, axis), correction=0, keepdim=keepdims)


def logsumexp(x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return torch.logsumexp(x, _axes(x, axis), keepdim=keepdims)


def any_(x: Tensor, axis: Any = None) -> Tensor:
    return torch.any(x) if axis is None else torch.any(x, axis)


def all_(x: Tensor, axis: Any = None) -> Tensor:
    return torch.all(x) if axis is None else torch.all(x, axis)


def argmax(x: Tensor, axis: Any = None) -> Tensor:
    return _narrow(torch.argmax(x, axis))


def argmin(x: Tensor, axis: Any = None) -> Tensor:
    return _narrow(torch.argmin(x, axis))


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    return torch.softmax(x, axis)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    return torch.log_softmax(x, axis)


def cumsum(x: Tensor, axis: int) -> Tensor:
    return _narrow(torch.cumsum(x, axis))


def cumprod(x: Tensor, axis: int) -> Tensor:
    return torch.cumprod(x, axis)


def sort(x: Tensor, axis: int = -1) -> Tensor:
    return torch.sort(x, dim=axis, stable=True)[0]


def argsort(x: Tensor, axis: int = -1) -> Tensor:
    return _narrow(torch.argsort(x, dim=axis, stable=True))


def top_k(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, indices = torch.topk(x, k)
    return values, _narrow(indices)


# -- shapes, indices, products ----------------------------------------------------------------

reshape, transpose, swapaxes, expand_dims = (
    torch.reshape, torch.permute, torch.swapaxes, torch.unsqueeze
)  # fmt: skip
squeeze, broadcast_to, concat, stack = (
    torch.squeeze, torch.broadcast_to, torch.concat, torch.stack
)  # fmt: skip
tril, tile = torch.tril, torch.tile
matmul, einsum, outer = torch.matmul, torch.einsum, torch.outer


def flip(x: Tensor, axis: int) -> Tensor:
    return torch.flip(x, (axis,))


def pad(x: Tensor, before: int, after: int) -> Tensor:
    return F.pad(x, (before, after))


def take(x: Tensor, i: Tensor, axis: int) -> Tensor:
    return torch.index_select(x, axis, i)


def take_along_axis(x: Tensor, i: Tensor, axis: int) -> Tensor:
    return torch.take_along_dim(x, i.long(), axis)


def pick(x: Tensor, i: Tensor) -> Tensor:
    return torch.index_select(x, 0, i.reshape(1)).squeeze(0)


def set_at(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
    return torch.index_put(x, (i.long(),), y)


def add_at(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
    return torch.index_add(x, 0, i, y)


def one_hot(i: Tensor, n: int) -> Tensor:
    return F.one_hot(i.long(), n).float()


# -- transforms and control flow --------------------------------------------------------------

jit, vmap, grad, value_and_grad, vjp, jvp = (
    xf.jit, xf.vmap, xf.grad, xf.value_and_grad, xf.vjp, xf.jvp
)  # fmt: skip
jacfwd, jacrev, hessian, linearize, checkpoint = (
    xf.jacfwd, xf.jacrev, xf.hessian, xf.linearize, xf.checkpoint
)  # fmt: skip
custom_vjp, custom_jvp = xf.custom_vjp, xf.custom_jvp
scan, cond, switch, while_loop, map_, associative_scan = (
    xf.scan, xf.cond, xf.switch, xf.while_loop, xf.map, xf.associative_scan
)  # fmt: skip
leaves = xf.tree.leaves


def fori_loop(lower: Any, upper: Any, body: Any, init: Any) -> Any:
    return xf.fori_loop(lower, upper, lambda i, c: body(integer(i), c), init)


def is_real(x: Tensor) -> bool:
    return x.dtype.is_floating_point
