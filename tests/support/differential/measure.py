"""What is compared of a program: its value, and its gradient and jvp where it has them.

The same code for both packages: `words` is `vocabulary_jax` or `vocabulary_xfunc`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "programs.jsonl"


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A program and what JAX gave for it.

    Attributes:
        number, attempt: what `generate` makes it from.
        nest: its constructs, from the outside in.
        inputs: its arguments, as nested lists.
        reversible, pushable: whether it has a gradient and a jvp.
        want: the flat results, as nested lists.
        source: its text.
    """

    number: int
    attempt: int
    nest: list[str]
    inputs: dict[str, Any]
    reversible: bool
    pushable: bool
    want: dict[str, list[Any]]
    source: str


def read(path: Path = DATA) -> Iterator[Recorded]:
    """The recorded programs."""
    with path.open() as lines:
        for line in lines:
            yield Recorded(**json.loads(line))


def measurement(
    source: str, words: Any, *, reversible: bool, pushable: bool
) -> Callable[[dict[str, Any], dict[str, Any]], dict[str, list[Any]]]:
    """A function of a program's real inputs and its others; it gives lists of arrays.

    "value" are the program's outputs, "grad" the gradient of a weighted sum of the real ones, and
    "jvp" their derivatives along a fixed direction.
    """
    namespace = dict(vars(words))
    exec(compile(source, "<program>", "exec"), namespace)  # the text is our own
    program = namespace["program"]

    def wave(x: Any) -> Any:
        """Different weights for the entries of an array."""
        phases = words.real(words.arange(math.prod(x.shape)))
        return words.reshape(words.cos(0.7 * phases + 0.4), tuple(x.shape))

    def reals(out: Any) -> list[Any]:
        return [x for x in words.leaves(out) if words.is_real(x)]

    def loss(smooth: dict[str, Any], others: dict[str, Any]) -> tuple[Any, Any]:
        out = program(**smooth, **others)
        return sum(words.sum_(x * wave(x)) for x in reals(out)), words.leaves(out)

    def measure(smooth: dict[str, Any], others: dict[str, Any]) -> dict[str, list[Any]]:
        found = {}
        if reversible:
            grads, found["value"] = words.grad(loss, has_aux=True)(smooth, others)
            found["grad"] = [grads[k] for k in smooth]
        else:
            found["value"] = loss(smooth, others)[1]
        if pushable:
            direction = {k: wave(x) for k, x in smooth.items()}
            _, dots = words.jvp(lambda s: reals(program(**s, **others)), (smooth,), (direction,))
            found["jvp"] = dots
        return found

    return measure


def split(inputs: dict[str, Any], array: Callable[[Any], Any]) -> tuple[dict[str, Any], Any]:
    """A program's inputs as arrays: the real ones, and the others."""
    smooth = {k: array(v) for k, v in inputs.items() if k.startswith("x")}
    return smooth, {k: array(v) for k, v in inputs.items() if k not in smooth}
