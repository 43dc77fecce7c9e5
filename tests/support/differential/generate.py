"""Random pure programs, as text that JAX and xfunc both run.

A program is a function named ``program``; its words (`sin`, `scan`, `vmap`, ...) are those of
`vocabulary_jax` or `vocabulary_xfunc`. Which program a number gives is fixed: the first few hundred
nest every construct in every other, and the rest nest random ones to depth 4.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from .constructs import CONSTRUCTS
from .operations import operation
from .parts import outputs
from .writer import SHAPES, Shape, Value, Writer, pattern

DEPTH = 4
PLAIN = 40  # programs without constructs
PAIRS = list(itertools.product(CONSTRUCTS, CONSTRUCTS))
COUNT = 640  # the rest nest deeper


@dataclasses.dataclass(frozen=True)
class Generated:
    """A program.

    Attributes:
        number: which one.
        attempt: counts texts of this number that were ill-conditioned.
        nest: its constructs, from the outside in.
        source: its text.
        inputs: names, kinds and shapes of its parameters.
        reversible, pushable: whether it has a gradient and a jvp.
    """

    number: int
    attempt: int
    nest: tuple[str, ...]
    source: str
    inputs: tuple[Value, ...]
    reversible: bool
    pushable: bool

    def arguments(self) -> dict[str, Any]:
        """Inputs for it, as nested lists: floats of three decimals, all different."""
        w = Writer(_seed(self.number, self.attempt))
        reals = sum(v.size for v in self.inputs if v.kind == "real")
        grid = [i / 1000 for i in range(-999, 1000) if abs(i) > 30]
        found = iter(w.random.sample(grid, reals))
        make = {
            "real": lambda: next(found),
            "int": lambda: w.count(0, 6),
            "bool": lambda: w.chance(0.5),
        }
        return {v.name: _nested(v.shape, make[v.kind]) for v in self.inputs}


def _nested(shape: Shape, make: Any) -> Any:
    return [_nested(shape[1:], make) for _ in range(shape[0])] if shape else make()


def nest_of(number: int, w: Writer) -> tuple[str, ...]:
    """The constructs of a program, from the outside in."""
    if number < PLAIN:
        return ()
    if number < PLAIN + len(PAIRS):
        return PAIRS[number - PLAIN]
    return tuple(w.random.choice(list(CONSTRUCTS)) for _ in range(w.count(3, DEPTH)))


def _seed(number: int, attempt: int) -> int:
    return number + 100_000 * attempt


def generate(number: int, attempt: int = 0) -> Generated:
    """The program of this number."""
    w = Writer(_seed(number, attempt))
    nest = nest_of(number, w)
    reals = w.random.sample(SHAPES, w.count(2, 3))
    inputs = [w.new(shape, prefix="x") for shape in reals]
    inputs.append(w.new(w.random.choice(((), (3,), (2,))), "int", 6.0, prefix="n"))
    if w.chance(0.5):
        inputs.append(w.new(w.random.choice(((), (3,))), "bool", prefix="p"))
    with w.function([v.name for v in inputs], inputs):
        body(w, nest, 10 if not nest else 3)
        results = outputs(w, len(inputs))
        tree = pattern(w, len(results))
        w.line(f"return {tree.pack([v.name for v in results])}")
    w.lines[0] = w.lines[0].replace(w.lines[0].split("(")[0], "def program", 1)
    source = "\n".join(w.lines) + "\n"
    return Generated(number, attempt, nest, source, tuple(inputs), w.reversible, w.pushable)


def body(w: Writer, nest: tuple[str, ...], most: int = 2) -> None:
    """Some operations around the next construct."""
    for _ in range(w.count(most // 2, most)):
        operation(w)
    if nest:
        CONSTRUCTS[nest[0]](w, lambda: body(w, nest[1:]))
        if w.chance(0.5):
            operation(w)
    elif most < 3:
        operation(w)
