"""Random programs for xfunc and for plain torch, as text that both run.

The text defines some inputs, a function of them, and calls it through a transform: what it gives is
`out`. Which program a seed and a number give is fixed.
"""

from __future__ import annotations

import dataclasses

from .constructs import CONSTRUCTS
from .operations import operation
from .writer import SHAPES, DoesNotFit, Writer

DEPTH = 3
WAYS = ("jit", "jit", "jit", "jit", "grad", "vjp", "jvp", "linearize", "vmap", "scan", "cond")


@dataclasses.dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        name: its seed and number.
        nest: its constructs, from the outside in.
        source: its text, without imports.
    """

    name: str
    nest: tuple[str, ...]
    source: str

    def __str__(self) -> str:
        title = f"# program {self.name} ({' of '.join(self.nest)})\n"
        return f"{title}{HEADER}{self.source}"


HEADER = "import torch\nimport torch.nn.functional as F\n\nimport xfunc as xf\n\n"


def generate(seed: object, number: int) -> Program:
    """The program of this seed and number."""
    for attempt in range(100):
        w = Writer(f"{seed}/{number}/{attempt}")
        nest = (w.choose(WAYS), *(w.choose(list(CONSTRUCTS)) for _ in range(w.count(0, DEPTH - 1))))
        try:
            _write(w, nest)
        except DoesNotFit:
            continue
        return Program(f"{seed}/{number}", nest, "\n".join(w.lines) + "\n")
    raise RuntimeError(f"no attempt at program {seed}/{number} came to an end")


def _write(w: Writer, nest: tuple[str, ...]) -> None:
    for _ in range(w.count(3, 4)):
        _input(w)
    inputs = list(w.scope)
    CONSTRUCTS[nest[0]](w, lambda: _body(w, nest[1:], 2, 6))
    results = [v for v in w.scope if v not in inputs]
    w.line(f"out = ({', '.join(results)},)")


def _body(w: Writer, nest: tuple[str, ...], least: int = 1, most: int = 4) -> None:
    """Some operations around the next construct."""
    count = w.count(least, most)
    place = w.count(0, count)
    for i in range(count + 1):
        if nest and i == place:
            for _ in range(4):
                try:
                    CONSTRUCTS[nest[0]](w, lambda: _body(w, nest[1:]))
                    break
                except DoesNotFit:
                    continue
        if i < count:
            operation(w)


SPECIAL = ('float("nan")', 'float("inf")', '-float("inf")', "-0.0", "1e30")
EXTREMES = {
    "int64": (2**62, -(2**63)), "int32": (2**31 - 1, -(2**31)), "int16": (32767, -32768),
    "int8": (127, -128), "uint8": (255, 254),
}  # fmt: skip


def _input(w: Writer) -> None:
    """An input of the program; floats are multiples of 1/16, which every dtype holds."""
    dtype = w.dtype(w.choose(("float", "float", "any")))
    shape = w.choose(SHAPES) if w.chance(0.97) else w.choose(((0,), (2, 0)))
    strange = w.chance(0.08)
    name = str(dtype).removeprefix("torch.")

    def entry() -> str:
        if name == "bool":
            return str(w.chance(0.5))
        if name in EXTREMES:
            if strange and w.chance(0.4):
                return str(w.choose(EXTREMES[name]))
            return str(w.count(0 if name == "uint8" else -4, 6))
        if strange and w.chance(0.3):
            return w.choose(SPECIAL[: 4 if name in ("float16", "complex64") else 5])
        real = str(w.count(-32, 32) / 16)
        return f"{real} + {w.count(-16, 16) / 16}j" if name == "complex64" else real

    def nested(shape: tuple[int, ...]) -> str:
        return f"[{', '.join(nested(shape[1:]) for _ in range(shape[0]))}]" if shape else entry()

    new = w.name("x")
    w.do(f"{new} = torch.tensor({nested(shape)}, dtype={dtype})")
    w.scope.append(new)
