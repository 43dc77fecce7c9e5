"""The graph of a loop of fixed length over a flat body.

One function is used for the forward and the backward pass of `scan`: *roles* describe the sources
of the body's parameters and the destinations of its results.

==================  ============================================================================
parameter role      fed from
==================  ============================================================================
``("carry", i)``    the loop-carried value i
``("xs", i)``       this step's slice of input i along axis 0
``("const", i)``    input i, the same at each step
==================  ============================================================================

==================  ============================================================================
result role         becomes
==================  ============================================================================
``("carry", i)``    the new value i; the loop returns the last one
``("ys", None)``    a slice of a stacked result
``("sum", None)``   a term of a sum over the steps
==================  ============================================================================

A result may be tied to the source of a parameter: on a mesh both are sharded alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch

from xfunc.graph import build
from xfunc.graph.graph import Graph
from xfunc.graph.node import ArrayType, Node, array_type, unattributed
from xfunc.hlo.spmd.annotations import tie

Param: TypeAlias = tuple[Literal["carry", "xs", "const"], int]
Result: TypeAlias = tuple[Literal["carry"], int] | tuple[Literal["ys", "sum"], None]


@dataclasses.dataclass(frozen=True)
class LoopSpec:
    """A loop; its graph takes the carries, then the xs, then the consts.

    Attributes:
        params: role of each parameter of the body.
        results: role of each result of the body; the loop's results come in the same order.
        carries: types of the initial values.
        xs: types of the stacked inputs.
        consts: types of the constant inputs.
        length: number of steps.
        reverse: whether to step from the end to the start.
        unroll: steps per iteration of the HLO loop.
        ties: for each result, the role it is tied to, or None; empty if there are no ties.
    """

    params: tuple[Param, ...]
    results: tuple[Result, ...]
    carries: tuple[ArrayType, ...]
    xs: tuple[ArrayType, ...]
    consts: tuple[ArrayType, ...]
    length: int
    reverse: bool = False
    unroll: int = 1
    ties: tuple[Param | None, ...] = ()


def loop_graph(name: str, body: Graph, spec: LoopSpec) -> Graph:
    """The graph of a loop: ``(carries, xs, consts) -> results``."""
    with unattributed():
        return _Loop(name, body, spec).graph()


class _Loop:
    def __init__(self, name: str, body: Graph, spec: LoopSpec):
        self._spec, self._name, self._body = spec, name, body
        self._out = [n.type for n in body.outputs]
        self._ties = spec.ties or (None,) * len(self._out)
        read = [*spec.params, *(role for role in self._ties if role is not None)]
        self._used_xs = sorted({role[1] for role in read if role[0] == "xs"})
        self._used_consts = sorted({role[1] for role in read if role[0] == "const"})

    def graph(self) -> Graph:
        spec = self._spec
        carries, xs, consts = map(build.parameters, (spec.carries, spec.xs, spec.consts))
        state = [
            *carries,
            *(self._initial(r, t) for r, t in zip(spec.results, self._out, strict=True)
              if r[0] != "carry"),
        ]  # fmt: skip
        fixed = [*(xs[i] for i in self._used_xs), *(consts[i] for i in self._used_consts)]
        trips, rest = divmod(spec.length, spec.unroll)
        if trips > 1:
            state = self._while(state, fixed, trips)
        else:
            rest = spec.length
        for k in range(spec.length - rest, spec.length):
            state = self._step(_number(k), state, fixed)
        return Graph(self._name, [*carries, *xs, *consts], self._ordered(state))

    def _initial(self, role: Result, type: ArrayType) -> Node:
        dims = (self._spec.length, *type.dims) if role[0] == "ys" else type.dims
        return build.zeros(array_type(type.dtype, dims))

    def _ordered(self, state: Sequence[Node]) -> list[Node]:
        """The state in the order of the results."""
        rest = iter(state[len(self._spec.carries) :])
        return [state[role[1]] if role[0] == "carry" else next(rest) for role in self._spec.results]

    def _while(self, state: list[Node], fixed: list[Node], trips: int) -> list[Node]:
        n, spec = len(state), self._spec
        init = [_number(0), *state, *fixed]
        types = [x.type for x in init]

        given = build.parameters(types)
        again = build.compare(given[0], trips * spec.unroll, "LT")
        condition = Graph(f"{self._name}.cond", given, [again])

        k, *given = inputs = build.parameters(types)
        values, held = given[:n], given[n:]
        for _ in range(spec.unroll):
            values = self._step(k, values, held)
            k = build.add(k, 1)
        body = Graph(f"{self._name}.body", inputs, [k, *values, *held])
        return build.while_(body, condition, init)[1 : 1 + n]

    def _step(self, k: Node, state: Sequence[Node], fixed: list[Node]) -> list[Node]:
        """The state after step k."""
        spec, n_xs = self._spec, len(self._used_xs)
        if spec.reverse:
            k = build.subtract(_number(spec.length - 1), k)
        slices = {i: _slice(x, k) for i, x in zip(self._used_xs, fixed[:n_xs], strict=True)}
        consts = dict(zip(self._used_consts, fixed[n_xs:], strict=True))

        def operand_for(role: Param) -> Node:
            if role[0] == "carry":
                return state[role[1]]
            return slices[role[1]] if role[0] == "xs" else consts[role[1]]

        out = build.call(self._body, [operand_for(role) for role in spec.params])
        new, position = list(state), len(spec.carries)
        for value, role, like in zip(out, spec.results, self._ties, strict=True):
            if like is not None:
                value = tie(value, operand_for(like), automatic=True)[0]
            if role[0] == "carry":
                new[role[1]] = value
                continue
            old = state[position]
            new[position] = build.add(old, value) if role[0] == "sum" else _update(old, value, k)
            position += 1
        return new


def _number(k: int) -> Node:
    return build.constant(k, torch.int32)


def _slice(x: Node, k: Node) -> Node:
    dims = x.dims
    piece = build.dynamic_slice(x, [k, *(_number(0) for _ in dims[1:])], (1, *dims[1:]))
    return build.reshape(piece, dims[1:])


def _update(stacked: Node, value: Node, k: Node) -> Node:
    dims = stacked.dims
    row = build.reshape(value, (1, *dims[1:]))
    starts = (k, *(_number(0) for _ in dims[1:]))
    return Node("dynamic-update-slice", stacked.type, (stacked, row, *starts))
