"""Varying types in traces: the primitives behind the operations of `xfunc.hlo.spmd.vma`.

NOTE [gradients by type]: in the function that a device runs, collectives are transposed as
functions of all devices' arrays. For a value that does not vary, each device then has a part of the
cotangent: their sum is the cotangent. Where no user code sees it, this form is as good as any
other, and needs no types. Where user code does see it, at the beginning and the end of a `grad` or
a `vjp` and around the backward rule of a `custom_vjp`, the form changes: the cotangent of a value
that does not vary comes in as a share for each device (`unreduced`), and goes out summed
(`psum_unvarying`). JAX has the same result by transposing each implicit ``pvary`` to a ``psum``;
here the sums come once, at the end.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import torch

from xfunc.core import ambient
from xfunc.core.avals import Aval, array_of, aval_of, batched
from xfunc.core.locations import user_location
from xfunc.graph import build
from xfunc.graph.graph import Graph
from xfunc.graph.node import unattributed
from xfunc.hlo.spmd.vma import vma_op
from xfunc.hlo.spmd.vma_ops import CAST, SHARE, SUM, TYPE, VmaOp
from xfunc.program.bind import bind, zeros
from xfunc.program.custom_reverse_rule import CustomReverseRule
from xfunc.program.primitive import Dims, Primitive, ReverseRule, Tensor
from xfunc.torchlib import functorch
from xfunc.torchlib.batching import at_dim, axes_of
from xfunc.trace.calls import regions
from xfunc.trace.lowering import HloProgram
from xfunc.tree import PyTree

Tensors: TypeAlias = Tensor | Sequence[Tensor]
Pull: TypeAlias = Callable[[PyTree], tuple[Tensor, ...]]


def checked() -> tuple[str, ...]:
    """The axes along which the types of the values being traced are kept track of."""
    region = ambient.region()
    return () if region is None else region.checked


def vma_of(x: Tensor) -> Tensor:
    """The witness of `x`: a boolean scalar that varies along the same axes."""
    x = x.detach()
    return bind(Type(checked(), aval_of(x)), [x])[0]


def psum_unvarying(ct: Tensor, of: Tensor) -> Tensor:
    """The sum of a cotangent's parts over the axes along which the value does not vary.

    Args:
        ct: the cotangent.
        of: the witness (`vma_of`) of the primal value.
    """
    return bind(Linear(SUM, checked(), aval_of(ct), (aval_of(of),)), [ct, of])[0]


def unreduced(ct: Tensor, of: Tensor, at: str = "") -> Tensor:
    """The opposite of `psum_unvarying`. With `at`, it is an error that `ct` varies where `of` does
    not.
    """
    own = vma_of(ct)
    avals = (aval_of(of), aval_of(own))
    return bind(Linear(SHARE, checked(), aval_of(ct), avals, at=at), [ct, of, own])[0]


def vary(x: Tensor, axes: Sequence[str]) -> Tensor:
    """`x`, which varies along axes from here on."""
    return bind(Linear(CAST, tuple(axes), aval_of(x)), [x])[0]


def gathered(x: Tensor, axes: Sequence[str]) -> Tensor:
    """`vary` for values that are still known to be equal on all devices."""
    return bind(Linear(CAST, tuple(axes), aval_of(x), weak=True), [x])[0]


def vary_like(x: Tensor, like: Tensor) -> Tensor:
    """`x`, which varies along all axes that `like` varies along."""
    w = vma_of(like)
    return bind(Linear(CAST, checked(), aval_of(x), (aval_of(w),), weak=True), [x, w])[0]


def vjp(fun: Callable[..., object], *primals: Tensor) -> tuple[PyTree, Pull, PyTree]:
    """`functorch.vjp` with cotangents in the form that programs see."""
    out, pull, aux = functorch.vjp(fun, *primals)
    if not checked():
        return out, pull, aux
    single = isinstance(out, torch.Tensor)
    ins, outs = list(map(vma_of, primals)), list(map(vma_of, [out] if single else out))

    def typed(ct: PyTree) -> tuple[Tensor, ...]:
        at = _here()
        cts = [unreduced(c, w, at) for c, w in zip([ct] if single else ct, outs, strict=True)]
        grads = pull(cts[0] if single else tuple(cts))
        return tuple(psum_unvarying(g, w) for g, w in zip(grads, ins, strict=True))

    return out, typed, aux


def autograd_grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    *args: bool,
    **options: bool,
) -> tuple[Tensor | None, ...]:
    """``torch.autograd.grad`` with cotangents in the form that programs see."""
    outs, ins = ((x,) if isinstance(x, torch.Tensor) else tuple(x) for x in (outputs, inputs))
    cts = (grad_outputs,) if isinstance(grad_outputs, torch.Tensor) else grad_outputs
    cts = [None] * len(outs) if cts is None else cts
    given = [torch.ones_like(o) if c is None else c for o, c in zip(outs, cts, strict=True)]
    at = _here()
    shares = [unreduced(c, vma_of(o), at) for o, c in zip(outs, given, strict=True)]
    with functorch.own_gradient():
        found = torch.autograd.grad(outs, ins, shares, *args, **options)
    # With `allow_unused` some are None, which torch does not declare.
    grads = cast("tuple[Tensor | None, ...]", found)
    pairs = zip(grads, ins, strict=True)
    return tuple(None if g is None else psum_unvarying(g, vma_of(x)) for g, x in pairs)


def _here() -> str:
    at = user_location()
    return "?" if at is None else f"{at.file}\n{at.line}\n{at.function}"


@dataclasses.dataclass(frozen=True)
class Type(Primitive):
    """The primitive behind `vma_of`; see `Primitive`.

    Attributes:
        axes: the axes whose variation is tracked.
        aval: of the value.
    """

    axes: tuple[str, ...]
    aval: Aval
    name = TYPE.name
    vma_op = TYPE

    @property
    def operands(self) -> tuple[Aval, ...]:
        return (self.aval,)

    @property
    def outputs(self) -> tuple[Aval, ...]:
        return (Aval((), torch.bool),)

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        return _lowering(self).apply(args)

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        return [zeros(self.aval) for _ in wrt]

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        return [None]

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        return bind(dataclasses.replace(self, aval=aval_of(args[0])), args), [None]


@dataclasses.dataclass(frozen=True)
class Linear(Primitive):
    """The primitive behind `psum_unvarying`, `unreduced` and casts: linear in a value, given
    witnesses.

    Attributes:
        vma_op: the operation in the HLO.
        axes: the axes concerned.
        aval: of the value.
        witnesses: avals of the witnesses, which may be batched.
        weak: see `xfunc.hlo.spmd.vma.vma_op`.
        at: see there.
    """

    vma_op: VmaOp
    axes: tuple[str, ...]
    aval: Aval
    witnesses: tuple[Aval, ...] = ()
    weak: bool = False
    at: str = ""

    @property
    def name(self) -> str:
        return self.vma_op.name

    @property
    def operands(self) -> tuple[Aval, ...]:
        return (self.aval, *self.witnesses)

    @property
    def outputs(self) -> tuple[Aval, ...]:
        return (self.aval,)

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        return _lowering(self).apply(args)

    def reverse_rule(self, wrt: tuple[bool, ...]) -> ReverseRule:
        return CustomReverseRule(self)

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        ct = cts[0]
        if ct is None:
            return [zeros(self.aval)]
        # Sums and shares are their own transposes, and a cast changes no value.
        return [ct] if self.vma_op is CAST else bind(self, [ct, *args[1:]])

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        tangent = tangents[0]
        return [None] if tangent is None else list(bind(self, [tangent, *args[1:]]))

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        inner, wanted, _ = self.mapped(dims, n)
        moved = [at_dim(*x, n) for x in zip(args, dims, wanted, strict=True)]
        return bind(inner, moved), [0]

    def mapped(self, dims: Dims, n: int) -> tuple[Linear, Dims, Dims]:
        """The primitive of a batch; where operands and result have their batch dimensions."""
        wanted = (0, *(None if d is None else 0 for d in dims[1:]))
        first, *rest = batched(self.operands, wanted, n)
        # A difference along an axis that divides the examples does not concern one of them.
        axes = tuple(a for a in self.axes if a not in axes_of(n))
        inner = dataclasses.replace(self, axes=axes, aval=first, witnesses=tuple(rest))
        return inner, wanted, (0,)


@functools.lru_cache(maxsize=4096)
def _lowering(primitive: Type | Linear) -> HloProgram:
    weak, at = (False, "") if isinstance(primitive, Type) else (primitive.weak, primitive.at)
    with unattributed():
        given = build.parameters([array_of(a) for a in primitive.operands])
        result = vma_op(primitive.vma_op, given, primitive.axes, weak=weak, at=at)
    graph = Graph(primitive.name, given, [result])
    return HloProgram.of(primitive.name, graph, primitive.operands, primitive.outputs)


regions.grad = lambda: autograd_grad if checked() else None
regions.like = lambda out, like: vary_like(out, like) if checked() else out
