"""The loops that implement a scan, and the ties of its gradients.

NOTE [gradients are sharded like their values]: on a mesh XLA chooses the sharding of each value,
and for the gradient of a matrix that is sharded over both axes it finds only one: it computes the
gradient from activations, in which the other axis no longer occurs. Stacked over all layers of a
large model, such a gradient does not fit on any chip. So reverse mode ties, at each step, the
gradient of a slice of `xs` to the slice, the gradient of a closed-over value to that value, and the
cotangent of the carry to the carry that the step received. Values that the steps of the backward
pass do not use are tied after the loop: there, a tie that would make an enclosing function keep a
value can be left out (`xfunc.remat.partition`). Whether ties have an effect is only known when a
program is compiled: see `xfunc.hlo.spmd.groups`. Forward mode needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from xfunc.backends.devices import device_count
from xfunc.core.avals import Aval, array_of, aval_of
from xfunc.program.annotation import ShardGroup
from xfunc.program.bind import bind
from xfunc.program.primitive import Tensor
from xfunc.trace import tracing
from xfunc.trace.lowering import HloProgram
from xfunc.transforms.scan.loop_graph import LoopSpec, Param, loop_graph

if TYPE_CHECKING:
    from xfunc.transforms.scan.primitive import Scan


def forward_loop(scan: Scan, avals: Sequence[Aval], body: HloProgram) -> HloProgram:
    """A loop over a body with inputs of these avals; the body's first results are the carries."""
    c, x, n = scan.n_carry, scan.n_carry + scan.n_xs, scan.length
    xs = [stacked(a, n) for a in avals[c:x]]
    params: list[Param] = []
    for i in body.inputs:
        params.append(("carry", i) if i < c else ("xs", i - c) if i < x else ("const", i - x))
    spec = LoopSpec(
        tuple(params),
        (*(("carry", i) for i in range(c)), *(("ys", None) for _ in body.outputs[c:])),
        tuple(array_of(a) for a in avals[:c]),
        tuple(array_of(a) for a in xs),
        tuple(array_of(a) for a in avals[x:]),
        n,
        scan.reverse,
        scan.unroll,
    )
    flat = (*avals[:c], *xs, *avals[x:])
    outputs = (*body.outputs[:c], *(stacked(o, n) for o in body.outputs[c:]))
    graph = loop_graph(scan.name, body.graph, spec)
    return HloProgram.of(scan.name, graph, flat, outputs)


def tied(gradient: Tensor, value: Tensor, apply: Callable[..., list[Tensor]] = bind) -> Tensor:
    """A gradient, tied to its value: see NOTE [gradients are sharded like their values]."""
    if tracing.current() is None and device_count() == 1:
        return gradient
    tie = ShardGroup((aval_of(gradient), aval_of(value)), automatic=True)
    return apply(tie, [gradient, value])[0]


def stacked(aval: Aval, length: int) -> Aval:
    """An aval with an added leading axis of the loop's length."""
    return Aval((length, *aval.shape), aval.dtype)
