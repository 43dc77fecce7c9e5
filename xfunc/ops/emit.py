"""Kernels built from nodes, or from a loop over torch operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from xfunc.backends.host_calls import host_call
from xfunc.backends.lock import lock
from xfunc.core.avals import Aval, array_of
from xfunc.graph import build
from xfunc.graph.composite import composite_name
from xfunc.graph.graph import Graph
from xfunc.graph.node import ArrayType, Node, unattributed
from xfunc.ops.registry import defunctionalized
from xfunc.trace import recorder

Results = ArrayType | Sequence[ArrayType]


def instruction(
    make: Callable[..., Node | Sequence[Node]], *inputs: torch.Tensor, **options: object
) -> Any:
    """Record ``make(*nodes, **options)``, which makes nodes of those of the inputs.

    Args:
        make: returns a node, or several.
        inputs: tensors on the device.
        options: of `make`.

    Returns:
        A tensor, or a tuple with one for each node.
    """
    is_single = False

    def record(*xs: torch.Tensor) -> list[torch.Tensor]:
        nonlocal is_single
        found = recorder.record(make, xs, options)
        is_single = isinstance(found, torch.Tensor)
        return [found] if isinstance(found, torch.Tensor) else found

    outputs = defunctionalized(record, *inputs)
    return outputs[0] if is_single else tuple(outputs)


def lapack(routine: str, *inputs: torch.Tensor, result: Results) -> Any:
    """Apply a CPU-only routine of `xfunc.backends.lapack` in a trace.

    Args:
        routine: its name there.
        inputs: nonempty tensors on the device.
        result: the type of its result, or of each of several.
    """
    return instruction(host_call, *inputs, name=f"lapack {routine}", result=result)


Step = Callable[..., Sequence[torch.Tensor]]
Tensors = tuple[torch.Tensor, ...]
Combine = Callable[[Tensors, Tensors], Tensors]


def loop(
    step: Step,
    length: int,
    state: Sequence[torch.Tensor],
    held: Sequence[torch.Tensor] = (),
    **options: object,
) -> tuple[torch.Tensor, ...]:
    """``for k in range(length): state = step(k, *state, *held, **options)``, as one HLO loop.

    Args:
        step: torch operations; a module-level function, so that its HLO can be cached. It takes
            `k` as an int64 scalar on the device, and preserves the state's shapes and dtypes.
        length: number of iterations.
        state: tensors that it updates.
        held: tensors that it only reads.
        options: hashable.
    """
    state, held = tuple(state), tuple(held)
    return _looped(step, length, False, state, held, options)


def halvings(
    step: Step,
    n: int,
    state: Sequence[torch.Tensor],
    held: Sequence[torch.Tensor] = (),
    **options: object,
) -> tuple[torch.Tensor, ...]:
    """``while n: state = step(n, *state, *held, **options); n //= 2``; see `loop`.

    With dynamic shapes it is one program for all `n`, because HLO holds `n` itself.
    """
    return _looped(step, n, True, tuple(state), tuple(held), options)


def _looped(
    step: Step,
    length: int,
    halves: bool,
    state: tuple[torch.Tensor, ...],
    held: tuple[torch.Tensor, ...],
    options: Mapping[str, object],
) -> tuple[torch.Tensor, ...]:
    if not length:
        return state
    avals = tuple(Aval(tuple(x.shape), x.dtype) for x in (*state, *held))
    computation = _loop(step, length, halves, avals, len(state), tuple(options.items()))
    outputs = defunctionalized(recorder.apply, step.__name__, [*state, *held], computation)
    return tuple(outputs)


@functools.lru_cache(4096)
def _loop(
    step: Step,
    length: int,
    halves: bool,
    avals: tuple[Aval, ...],
    n: int,
    options: tuple[tuple[str, object], ...],
) -> Graph:
    graph, inputs = _traced(step, (_INDEX, *avals), n, dict(options))

    def once(k: Node, values: list[Node]) -> list[Node]:
        found = build.call(graph, [[k, *values][i] for i in inputs])
        return [_halved(k) if halves else build.add(k, 1), *found, *values[n:]]

    first, end, more = (length, 0, "GT") if halves else (0, length, "LT")
    return _while(step.__name__, avals, first, lambda k: build.compare(k, end, more), once, n)


def _halved(k: Node) -> Node:
    return build.binary("shift-right-arithmetic", k, 1)


def _while(
    name: str,
    avals: Sequence[Aval],
    first: int,
    more: Callable[[Node], Node],
    once: Callable[[Node, list[Node]], list[Node]],
    n: int,
) -> Graph:
    """A loop over arrays, from the first value of its index on, that returns n of them."""
    with unattributed():
        types = [array_of(_INDEX), *map(array_of, avals)]
        given = build.parameters(types)
        test = Graph("test", given, [more(given[0])])
        given = build.parameters(types)
        body = Graph("body", given, once(given[0], given[1:]))
        given = build.parameters(types[1:])
        start = [build.constant(first, torch.int64), *given]
        return Graph(name, given, build.while_(body, test, start)[1 : n + 1])


def running(step: Combine, xs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """``for k in range(1, n): x[k] = step(x[k - 1], x[k])`` along the first axis, as one HLO loop.

    Args:
        step: torch operations; a module-level function, so that its HLO can be cached. It takes
            two tuples of slices, one of each tensor, and returns one.
        xs: tensors of one size along the first axis.
    """
    avals = tuple(Aval(tuple(x.shape), x.dtype) for x in xs)
    outputs = defunctionalized(recorder.apply, step.__name__, list(xs), _running(step, avals))
    return tuple(outputs)


@functools.lru_cache(4096)
def _running(step: Combine, avals: tuple[Aval, ...]) -> Graph:
    slices = [Aval(a.shape[1:], a.dtype) for a in avals]

    def of_rows(*rows: torch.Tensor) -> Sequence[torch.Tensor]:
        return step(rows[: len(slices)], rows[len(slices) :])

    graph, inputs = _traced(of_rows, (*slices, *slices), None, {})

    def once(k: Node, values: list[Node]) -> list[Node]:
        rest = [build.constant(0, torch.int64)] * (len(values[0].dims) - 1)
        places = [build.subtract(k, 1), *rest], [k, *rest]
        rows = [build.dynamic_slice(v, at, (1, *v.dims[1:])) for at in places for v in values]
        rows = [build.reshape(r, r.dims[1:]) for r in rows]
        found = build.call(graph, [rows[i] for i in inputs])
        found = [build.reshape(r, (1, *r.dims)) for r in found]
        updated = [
            Node("dynamic-update-slice", v.type, (v, row, *places[1]))
            for v, row in zip(values, found, strict=True)
        ]
        return [build.add(k, 1), *updated]

    length = avals[0].shape[0]
    more = lambda k: build.compare(k, length, "LT")  # noqa: E731
    return _while(step.__name__, avals, 1, more, once, len(avals))


def composite(
    operation: str, step: Step, *inputs: torch.Tensor, **options: object
) -> tuple[torch.Tensor, ...]:
    """``step(*inputs, **options)``, as a composite: see `xfunc.graph.composite`.

    Args:
        operation: its name.
        step: torch operations; a module-level function, so that its HLO can be cached.
        inputs: tensors on the device.
        options: hashable.
    """
    return called(composite_name(operation), step, *inputs, **options)


def called(
    name: str, step: Step, *inputs: torch.Tensor, **options: object
) -> tuple[torch.Tensor, ...]:
    """``step(*inputs, **options)``, as a call of a computation with a name; see `composite`."""
    avals = tuple(Aval(tuple(x.shape), x.dtype) for x in inputs)
    computation = _called(name, step, avals, tuple(options.items()))
    return tuple(defunctionalized(recorder.apply, step.__name__, list(inputs), computation))


@functools.lru_cache(4096)
def _called(
    name: str, step: Step, avals: tuple[Aval, ...], options: tuple[tuple[str, object], ...]
) -> Graph:
    graph, inputs = _traced(step, avals, None, dict(options))
    with unattributed():
        given = build.parameters([array_of(a) for a in avals])
        return Graph(name, given, build.call(graph, [given[i] for i in inputs]))


_INDEX = Aval((), torch.int64)


def _traced(
    step: Step, avals: Sequence[Aval], n: int | None, options: Mapping[str, object]
) -> tuple[Graph, tuple[int, ...]]:
    """A step as a graph, and which input each of its own is.

    If `n` is given, the results must match the `n` inputs after the first.
    """
    with lock:
        inputs = [recorder.placeholder(a) for a in avals]
        outputs = list(step(*inputs, **options))
        for found, aval in zip(outputs, avals[1 : n + 1] if n else (), strict=bool(n)):
            assert (tuple(found.shape), found.dtype) == (aval.shape, aval.dtype), step
        return recorder.lower(step.__name__, inputs, outputs)
