"""`ravel_pytree`: a tree of arrays as one vector, and back."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from xfunc import tree
from xfunc.backends.devices import to_device
from xfunc.core.avals import short
from xfunc.errors import TreeMismatchError, fail, kind_of, short_repr
from xfunc.stages.checks import Tensor, arrays, as_tensors, labels_in
from xfunc.tree import PyTree


def ravel_pytree(pytree: object) -> tuple[Tensor, Callable[[Tensor], PyTree]]:
    """The leaves of a tree in one vector, and the function that turns such vectors into trees.

    Args:
        pytree: a tree of tensors and numbers. Leaves of several dtypes are promoted to one;
            `unravel` restores each leaf's dtype.

    Returns:
        ``(vector, unravel)``.

    Source: ``jax.flatten_util.ravel_pytree``.
    """
    leaves, structure = tree.flatten(as_tensors(pytree))
    leaves = arrays(leaves, "ravel_pytree", labels_in(pytree, "the tree"))
    if len({x.device for x in leaves}) > 1:
        leaves = [to_device(x) for x in leaves]
    dtypes = [x.dtype for x in leaves]
    dtype = functools.reduce(torch.promote_types, dtypes) if dtypes else torch.get_default_dtype()
    shapes = [tuple(x.shape) for x in leaves]
    sizes = [x.numel() for x in leaves]
    flat = [x.reshape(-1).to(dtype) for x in leaves]
    # torch.cat rejects an empty list, and has its own promotion rules.
    vector = torch.cat(flat) if flat else torch.zeros(0, dtype=dtype)

    def unravel(v: object) -> PyTree:
        if not isinstance(v, Tensor) or tuple(v.shape) != (sum(sizes),) or v.dtype != dtype:
            what = short(v) if isinstance(v, Tensor) else f"{short_repr(v)} ({kind_of(v)})"
            fail(
                TreeMismatchError,
                f"unravel was given {what}, but the tree was raveled to {short(vector)}",
                "give a vector of that shape and dtype.",
            )
        parts = zip(torch.split(v, sizes) if sizes else (), shapes, dtypes, strict=True)
        return tree.unflatten(structure, [p.reshape(s).to(d) for p, s, d in parts])

    return vector, unravel
