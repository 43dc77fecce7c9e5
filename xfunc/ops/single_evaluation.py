"""Values that are computed once, where they are compared with something computed from them.

NOTE [values computed twice]: XLA computes a value again in each fusion that reads it, and each
fusion may round in its own way: by fused multiplications and additions, or for another width of
vectors. A value then differs from itself: ``x == x.amax()`` can hold nowhere. So torch's
derivatives of maxima were silently zero, and the indices of maxima out of range. XLA does not
compute a value again that is behind a barrier (see also `xfunc.hlo.passes.barriers`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from xfunc.graph import build
from xfunc.graph.graph import Graph
from xfunc.graph.node import ArrayType, Node, unattributed
from xfunc.ops.emit import instruction
from xfunc.ops.registry import differentiable, kernel, original
from xfunc.torchlib.functorch import is_watched_at_this_level

Tensor = torch.Tensor

_COMPARED = "amax amin max min median nanmedian".split()


def materialize(x: Tensor) -> Tensor:
    """The same values, computed once: see NOTE [values computed twice]."""
    return torch.ops.aten.flip.default(x, [])  # whose derivative and batching rule are right here


@kernel("flip")
def flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    if not dims:
        return instruction(_barrier_call, x)
    return original("flip")(x.reshape(x.shape or (1,)), dims).reshape(x.shape)


def _barrier_call(x: Node) -> Node:
    # A function with only the barrier, which `outline_barriers` keeps XLA from inlining.
    return build.call(_barrier(x.type), [x])[0]


@functools.lru_cache(4096)
def _barrier(type: ArrayType) -> Graph:
    with unattributed():
        given = build.parameters([type])
        return Graph("materialize", given, build.several("opt-barrier", [type], tuple(given)))


def _materialize_operands(name: str) -> None:
    """Let torch's derivative of an operation compare values that are computed once."""

    @differentiable(name)
    def run(rule: Callable[..., object], *args: object, **named: object) -> object:
        tensors = [a for a in args if isinstance(a, Tensor)]
        if any(map(is_watched_at_this_level, tensors)):
            args = tuple(materialize(a) if isinstance(a, Tensor) else a for a in args)
        return rule(*args, **named)


for _name in _COMPARED:
    _materialize_operands(_name)
