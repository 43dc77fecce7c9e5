"""Programs of random operations, and arguments on which they are likely to go wrong."""

from __future__ import annotations

import random

import torch

from xfunc.hlo import Builder, ComputationBuilder, Module, Shape, Value
from xfunc.hlo.passes.names import named

DIMS = [(6,), (2, 3), (3, 2), (1, 6), (2, 1, 3)]
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.bool]
NUMBERS = [0, -0.0, 1, -1, 2, 0.5]
SPECIAL = torch.tensor([0.0, -0.0, 1.5, -3.0, float("inf"), float("nan")], dtype=torch.float64)


def arguments(rng: random.Random) -> list[torch.Tensor]:
    """One of each float type and an int64."""
    order = torch.tensor(rng.sample(range(6), 6))
    floats = [SPECIAL[order].to(t) for t in TYPES[:3]]
    return [*floats, torch.tensor([rng.randint(-5, 5) for _ in range(6)])]


def program(rng: random.Random, size: int = 40) -> Module:
    """A function of `arguments`."""
    b = Builder("random")
    c = b.computation("random")
    values = [c.parameter(Shape(t, (6,))) for t in (*TYPES[:3], torch.int64)]
    while len(values) < size:
        values.append(_operation(rng, c, values))
    chosen = rng.sample(values, 8)
    return b.build(c.build(c.tuple([v for v in chosen if v.shape.dtype != torch.bool])))


def _operation(rng: random.Random, c: ComputationBuilder, values: list[Value]) -> Value:
    x = rng.choice(values)
    dims, dtype = x.shape.dims, x.shape.dtype
    match rng.randrange(13):
        case 0:
            return c.convert(x, rng.choice(TYPES))
        case 1:
            return c.reshape(x, rng.choice(DIMS))
        case 2:
            return _transpose(rng, c, x)
        case 3:
            number = c.convert(c.constant(rng.choice(NUMBERS), torch.float32), dtype)
            return c.broadcast(number, dims)
        case 4:  # the same again
            return _raw(c, "negate", x) if dtype != torch.bool else c.multiply(x, x)
        case 5:
            packed = c.tuple([x, rng.choice(values)])
            return c.get_tuple_element(packed, rng.randrange(2))
        case 6:
            return rng.choice([_raw(c, "copy", x), named(c, x, "name"), c.opt_barrier([x])[0]])
        case 7:
            start = [c.constant(0, torch.int32)] * len(dims)
            return c.dynamic_slice(x, start, dims)
        case 8:
            same = _alike(rng, x, values)
            start = [c.constant(0, torch.int32)] * len(dims)
            return c.dynamic_update_slice(x, same, start)
        case 9:
            predicate = c.compare(x, _alike(rng, x, values), "LT")
            return c.select(predicate, x, _alike(rng, x, values))
        case 10 if dtype in (torch.float32, torch.float64):
            number = c.broadcast(c.constant(rng.choice([1, -1, 2]), dtype), dims)
            return _raw(c, "divide", x, number)
        case _:
            number = c.broadcast(c.constant(rng.choice(NUMBERS), dtype), dims)
            other = rng.choice([number, number, _alike(rng, x, values)])
            pair = (x, other) if rng.random() < 0.7 else (other, x)
            kinds = [c.add, c.multiply] if dtype == torch.bool else [c.add, c.subtract, c.multiply]
            return rng.choice(kinds)(*pair)


def _alike(rng: random.Random, x: Value, values: list[Value]) -> Value:
    return rng.choice([v for v in values if v.shape == x.shape])


def _transpose(rng: random.Random, c: ComputationBuilder, x: Value) -> Value:
    order = rng.sample(range(len(x.shape.dims)), len(x.shape.dims))
    dims = [x.shape.dims[d] for d in order]
    value, proto = c.instruction("transpose", Shape(x.shape.dtype, dims), [x])
    proto.dimensions.extend(order)
    return value


def _raw(c: ComputationBuilder, opcode: str, *operands: Value) -> Value:
    return c.instruction(opcode, operands[0].shape, operands)[0]
