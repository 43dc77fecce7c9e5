"""Kernels built from HLO instructions, or from a loop over torch operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from xfunc.backends.host_calls import host_call
from xfunc.backends.lock import lock
from xfunc.core.avals import Aval, hlo_shape
from xfunc.hlo import Builder, ComputationBuilder, Module, Shape, Value
from xfunc.hlo.composite import composite_name
from xfunc.hlo.computation import Function
from xfunc.ops.registry import below
from xfunc.trace import recorder

Emit = Callable[..., Value]


def instruction(emit: Emit, *inputs: torch.Tensor, **options: object) -> Any:
    """Apply ``emit(body, *values, **options)``, which adds instructions to a computation.

    Args:
        emit: a module-level function, so that its computation can be cached; may return a tuple.
        inputs: tensors on the device.
        options: hashable.

    Returns:
        A tensor, or one for each element of the tuple.
    """
    avals = tuple(Aval(tuple(x.shape), x.dtype) for x in inputs)
    computation, single = _computation(emit, avals, tuple(options.items()))
    outputs = below(recorder.apply, emit.__name__, list(inputs), computation)
    return outputs[0] if single else tuple(outputs)


@functools.lru_cache(4096)
def _computation(
    emit: Emit, avals: tuple[Aval, ...], options: tuple[tuple[str, object], ...]
) -> tuple[Module, bool]:
    b = Builder(emit.__name__)
    body = b.computation(emit.__name__)
    out = emit(body, *[body.parameter(hlo_shape(a)) for a in avals], **dict(options))
    single = not out.shape.is_tuple
    if single:
        out = body.tuple([out])
    module = b.build(body.build(out))
    return module, single


def lapack(routine: str, *inputs: torch.Tensor, result: Shape) -> Any:
    """Apply a CPU-only routine of `xfunc.backends.lapack` in a trace.

    Args:
        routine: its name there.
        inputs: nonempty tensors on the device.
        result: the shape of its result, or of its tuple of results.
    """
    return instruction(_host_call, *inputs, routine=routine, result=result)


def _host_call(body: ComputationBuilder, *operands: Value, routine: str, result: Shape) -> Value:
    return host_call(body, f"lapack {routine}", operands, result)


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
    outputs = below(recorder.apply, step.__name__, [*state, *held], computation)
    return tuple(outputs)


@functools.lru_cache(4096)
def _loop(
    step: Step,
    length: int,
    halves: bool,
    avals: tuple[Aval, ...],
    n: int,
    options: tuple[tuple[str, object], ...],
) -> Module:
    index = Aval((), torch.int64)
    module, inputs = _lowered(step, (index, *avals), n, dict(options))
    b = Builder(step.__name__)
    carry = hlo_shape(index), *map(hlo_shape, avals)
    whole = Shape.of_tuple(carry)

    test = b.computation("test")
    k = test.get_tuple_element(test.parameter(whole), 0)
    end = test.constant(0 if halves else length, torch.int64)
    again = test.build(test.compare(k, end, "GT" if halves else "LT"))

    body = b.computation("body")
    x = body.parameter(whole)
    values = [body.get_tuple_element(x, i) for i in range(len(carry))]
    found = body.call(b.embed(module), [values[i] for i in inputs])
    one = body.constant(1, torch.int64)
    if halves:
        values[0], _ = body.instruction("shift-right-arithmetic", values[0].shape, [values[0], one])
    else:
        values[0] = body.add(values[0], one)
    values[1 : n + 1] = [body.get_tuple_element(found, i) for i in range(n)]
    once = body.build(body.tuple(values))

    return _while(b, carry, length if halves else 0, again, once, n)


def _while(
    b: Builder, carry: Sequence[Shape], first: int, again: Function, once: Function, n: int
) -> Module:
    """A module that runs a loop, from the first value of its index on, and returns n values."""
    entry = b.computation(b.name)
    start = [entry.constant(first, torch.int64), *(entry.parameter(s) for s in carry[1:])]
    found = entry.while_(again, once, entry.tuple(start))
    result = entry.tuple([entry.get_tuple_element(found, i + 1) for i in range(n)])
    return b.build(entry.build(result))


def running(step: Combine, xs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """``for k in range(1, n): x[k] = step(x[k - 1], x[k])`` along the first axis, as one HLO loop.

    Args:
        step: torch operations; a module-level function, so that its HLO can be cached. It takes
            two tuples of slices, one of each tensor, and returns one.
        xs: tensors of one size along the first axis.
    """
    avals = tuple(Aval(tuple(x.shape), x.dtype) for x in xs)
    outputs = below(recorder.apply, step.__name__, list(xs), _running(step, avals))
    return tuple(outputs)


@functools.lru_cache(4096)
def _running(step: Combine, avals: tuple[Aval, ...]) -> Module:
    index = Aval((), torch.int64)
    slices = [Aval(a.shape[1:], a.dtype) for a in avals]

    def of_rows(*rows: torch.Tensor) -> Sequence[torch.Tensor]:
        return step(rows[: len(slices)], rows[len(slices) :])

    module, inputs = _lowered(of_rows, (*slices, *slices), None, {})
    b = Builder(step.__name__)
    carry = hlo_shape(index), *map(hlo_shape, avals)
    whole = Shape.of_tuple(carry)

    test = b.computation("test")
    k = test.get_tuple_element(test.parameter(whole), 0)
    length = test.constant(avals[0].shape[0], torch.int64)
    again = test.build(test.compare(k, length, "LT"))

    body = b.computation("body")
    state = body.parameter(whole)
    k, *values = [body.get_tuple_element(state, i) for i in range(len(carry))]
    zero, one = (body.constant(i, torch.int64) for i in (0, 1))
    places = [[at, *(zero for _ in avals[0].shape[1:])] for at in (body.subtract(k, one), k)]
    rows = [body.dynamic_slice(v, at, [1, *v.shape.dims[1:]]) for at in places for v in values]
    rows = [body.reshape(r, r.shape.dims[1:]) for r in rows]
    found = body.call(b.embed(module), [rows[i] for i in inputs])
    for i, value in enumerate(values):
        row = body.get_tuple_element(found, i)
        row = body.reshape(row, [1, *row.shape.dims])
        values[i] = body.dynamic_update_slice(value, row, places[1])
    once = body.build(body.tuple([body.add(k, one), *values]))

    return _while(b, carry, 1, again, once, len(avals))


def composite(
    operation: str, step: Step, *inputs: torch.Tensor, **options: object
) -> tuple[torch.Tensor, ...]:
    """``step(*inputs, **options)``, as a composite: see `xfunc.hlo.composite`.

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
    return tuple(below(recorder.apply, step.__name__, list(inputs), computation))


@functools.lru_cache(4096)
def _called(
    name: str, step: Step, avals: tuple[Aval, ...], options: tuple[tuple[str, object], ...]
) -> Module:
    module, inputs = _lowered(step, avals, None, dict(options))
    b = Builder(step.__name__)
    body = b.computation(name)
    values = [body.parameter(hlo_shape(a)) for a in avals]
    found = body.call(b.embed(module), [values[i] for i in inputs])
    outputs = [body.get_tuple_element(found, k) for k in range(len(found.shape.elements))]
    made = b.build(body.build(body.tuple(outputs)))
    return made


def _lowered(
    step: Step, avals: Sequence[Aval], n: int | None, options: Mapping[str, object]
) -> tuple[Module, list[int]]:
    """The HLO of a step, and which input each of its parameters is.

    If `n` is given, the results must match the `n` inputs after the first.
    """
    with lock:
        inputs = [recorder.placeholder(a) for a in avals]
        outputs = list(step(*inputs, **options))
        for found, aval in zip(outputs, avals[1 : n + 1] if n else (), strict=bool(n)):
            assert (tuple(found.shape), found.dtype) == (aval.shape, aval.dtype), step
        hlo, parameters = recorder.recorded(step.__name__, inputs, outputs)
    return Module.from_bytes(hlo), parameters
