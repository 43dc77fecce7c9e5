"""The HLO of a loop of fixed length over a flat body.

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

from xfunc.hlo import Builder, ComputationBuilder, Module, Shape, Value
from xfunc.hlo.spmd.annotations import tie

Param: TypeAlias = tuple[Literal["carry", "xs", "const"], int]
Result: TypeAlias = tuple[Literal["carry"], int] | tuple[Literal["ys", "sum"], None]


@dataclasses.dataclass(frozen=True)
class LoopSpec:
    """A loop; its module takes the carries, then the xs, then the consts.

    Attributes:
        params: role of each parameter of the body.
        results: role of each result of the body; the loop's results come in the same order.
        carries: shapes of the initial values.
        xs: shapes of the stacked inputs.
        consts: shapes of the constant inputs.
        length: number of steps.
        reverse: whether to step from the end to the start.
        unroll: steps per iteration of the HLO loop.
        ties: for each result, the role it is tied to, or None; empty if there are no ties.
    """

    params: tuple[Param, ...]
    results: tuple[Result, ...]
    carries: tuple[Shape, ...]
    xs: tuple[Shape, ...]
    consts: tuple[Shape, ...]
    length: int
    reverse: bool = False
    unroll: int = 1
    ties: tuple[Param | None, ...] = ()


def loop_module(name: str, body: Module, spec: LoopSpec) -> Module:
    """The module of a loop: ``(carries, xs, consts) -> results``."""
    return _Loop(name, body, spec).module()


class _Loop:
    def __init__(self, name: str, body: Module, spec: LoopSpec):
        self._spec, self._builder = spec, Builder(name)
        self._name = name
        self._body = self._builder.embed(body)
        # Shapes of the results, without the leading tuple.
        self._out = [i.shape for i in body.entry.root.operands]
        self._ties = spec.ties or (None,) * len(self._out)
        read = [*spec.params, *(role for role in self._ties if role is not None)]
        self._used_xs = sorted({role[1] for role in read if role[0] == "xs"})
        self._used_consts = sorted({role[1] for role in read if role[0] == "const"})

    def module(self) -> Module:
        spec, b = self._spec, self._builder
        entry = b.computation(self._name)
        carries = [entry.parameter(s) for s in spec.carries]
        xs = [entry.parameter(s) for s in spec.xs]
        consts = [entry.parameter(s) for s in spec.consts]
        state = [
            *carries,
            *(self._initial(entry, r, s) for r, s in zip(spec.results, self._out, strict=True)
              if r[0] != "carry"),
        ]  # fmt: skip
        fixed: list[Value] = [
            *(xs[i] for i in self._used_xs),
            *(consts[i] for i in self._used_consts),
        ]
        trips, rest = divmod(spec.length, spec.unroll)
        if trips > 1:
            state = self._while(entry, state, fixed, trips)
        else:
            rest = spec.length
        for k in range(spec.length - rest, spec.length):
            state = self._step(entry, entry.constant(k, torch.int32), state, fixed)
        return b.build(entry.build(entry.tuple(self._ordered(state))))

    def _initial(self, comp: ComputationBuilder, role: Result, shape: Shape) -> Value:
        dims = (self._spec.length, *shape.dims) if role[0] == "ys" else shape.dims
        return comp.zeros(Shape(shape.dtype, dims))

    def _ordered(self, state: Sequence[Value]) -> list[Value]:
        """The state in the order of the results."""
        rest = iter(state[len(self._spec.carries) :])
        return [state[role[1]] if role[0] == "carry" else next(rest) for role in self._spec.results]

    def _while(
        self, entry: ComputationBuilder, state: list[Value], fixed: list[Value], trips: int
    ) -> list[Value]:
        b, n, spec = self._builder, len(state), self._spec
        init = entry.tuple([entry.constant(0, torch.int32), *state, *fixed])

        cond = b.computation(f"{self._name}.cond")
        counter = cond.get_tuple_element(cond.parameter(init.shape), 0)
        limit = cond.constant(trips * spec.unroll, torch.int32)
        condition = cond.build(cond.compare(counter, limit, "LT"))

        body = b.computation(f"{self._name}.body")
        p = body.parameter(init.shape)
        k = body.get_tuple_element(p, 0)
        values = [body.get_tuple_element(p, 1 + i) for i in range(n)]
        held = [body.get_tuple_element(p, 1 + n + i) for i in range(len(fixed))]
        for _ in range(spec.unroll):
            values = self._step(body, k, values, held)
            k = body.add(k, body.constant(1, torch.int32))
        step = body.build(body.tuple([k, *values, *held]))
        out = entry.while_(condition, step, init)
        return [entry.get_tuple_element(out, 1 + i) for i in range(n)]

    def _step(
        self, comp: ComputationBuilder, k: Value, state: Sequence[Value], fixed: list[Value]
    ) -> list[Value]:
        """The state after step k of a computation."""
        spec, n_xs = self._spec, len(self._used_xs)
        if spec.reverse:
            k = comp.subtract(comp.constant(spec.length - 1, torch.int32), k)
        zero = comp.constant(0, torch.int32)
        slices = {
            i: _slice(comp, x, k, zero) for i, x in zip(self._used_xs, fixed[:n_xs], strict=True)
        }
        consts = dict(zip(self._used_consts, fixed[n_xs:], strict=True))

        def fed(role: Param) -> Value:
            if role[0] == "carry":
                return state[role[1]]
            return slices[role[1]] if role[0] == "xs" else consts[role[1]]

        out = comp.call(self._body, [fed(role) for role in spec.params])
        new, position = list(state), len(spec.carries)
        for j, (role, like) in enumerate(zip(spec.results, self._ties, strict=True)):
            value = comp.get_tuple_element(out, j)
            if like is not None:
                value = tie(comp, value, fed(like), automatic=True)[0]
            if role[0] == "carry":
                new[role[1]] = value
                continue
            old = state[position]
            new[position] = (
                comp.add(old, value) if role[0] == "sum" else _update(comp, old, value, k, zero)
            )
            position += 1
        return new


def _slice(comp: ComputationBuilder, x: Value, k: Value, zero: Value) -> Value:
    dims = x.shape.dims
    piece = comp.dynamic_slice(x, [k, *(zero for _ in dims[1:])], [1, *dims[1:]])
    return comp.reshape(piece, dims[1:])


def _update(comp: ComputationBuilder, stacked: Value, value: Value, k: Value, zero: Value) -> Value:
    dims = stacked.shape.dims
    row = comp.reshape(value, (1, *dims[1:]))
    return comp.dynamic_update_slice(stacked, row, [k, *(zero for _ in dims[1:])])
