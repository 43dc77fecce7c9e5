"""A program under construction: its lines, and the variables in scope, with shapes and bounds."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence

from .draft import Draft, broadcasts

Shape = tuple[int, ...]
LARGEST = 36  # entries of one array


@dataclasses.dataclass(frozen=True)
class Value:
    """A variable: its name, shape, kind ("real", "int" or "bool"), and about what bounds it."""

    name: str
    shape: Shape
    kind: str
    bound: float = 1.0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def type(self) -> tuple[str, Shape]:
        return self.kind, self.shape


class Writer(Draft[Value]):
    """Writes the lines of a program.

    Values stay within a few units, and loops contract, so that comparing in float32 means
    something: `use` wraps what has grown.

    Attributes:
        reversible, pushable: whether the whole program can be.
    """

    def __init__(self, seed: int):
        super().__init__(seed)
        self.reversible = self.pushable = True

    # -- lines ----------------------------------------------------------------------------------

    def new(self, shape: Shape, kind: str = "real", bound: float = 1.0, prefix: str = "") -> Value:
        """A variable that is not in scope yet."""
        return Value(self.name(prefix or kind[0]), shape, kind, bound)

    def let(self, text: str, shape: Shape, kind: str = "real", bound: float = 1.0) -> Value:
        """Assign to a new variable."""
        value = self.new(shape, kind, bound)
        self.line(f"{value.name} = {text}")
        self.scope.append(value)
        return value

    def unpack(self, pattern: Pattern, values: Sequence[Value], text: str) -> None:
        """Assign the parts of a tree to new variables."""
        if pattern.style == "dict":
            whole = self.name("d")
            self.line(f"{whole} = {text}")
            parts = ", ".join(f'{whole}["{k}"]' for k in pattern.keys)
            self.line(f"{', '.join(v.name for v in values)} = {parts}")
        elif pattern.style == "nested":
            first, *rest = (v.name for v in values)
            self.line(f"{first}, ({', '.join(rest)}{',' * (len(rest) == 1)}) = {text}")
        elif pattern.style == "tuple":
            self.line(f"{', '.join(v.name for v in values)}{',' * (len(values) == 1)} = {text}")
        else:
            self.line(f"{values[0].name} = {text}")
        self.scope += values

    def function(
        self,
        parameters: Sequence[str],
        values: Sequence[Value] = (),
        *,
        closed: bool = False,
        reverse: bool = False,
        forward: bool = False,
        decorator: str = "",
    ) -> contextlib.AbstractContextManager[str]:
        """The body of a nested function, given which of its parameters are arrays: see `body`."""
        return self.body(
            parameters,
            values,
            closed=closed,
            reverse=reverse,
            forward=forward,
            decorator=decorator,
        )

    # -- variables ------------------------------------------------------------------------------

    def pick(
        self, kind: str = "real", suits: Callable[[Value], bool] = lambda v: True
    ) -> Value | None:
        """A variable, more likely a recent one."""
        found = [v for v in self.scope if v.kind == kind and suits(v)]
        if not found:
            return None
        if self.chance(0.6):
            found = found[-4:]
        return self.random.choice(found)

    def some(self, kind: str = "real", suits: Callable[[Value], bool] = lambda v: True) -> Value:
        """A variable; made if there is none that suits."""
        value = self.pick(kind, suits)
        if value is not None:
            return value
        return self.make(kind, next(s for s in SHAPES if suits(Value("", s, kind))))

    def make(self, kind: str, shape: Shape) -> Value:
        """A new variable computed from another."""
        if kind == "real":
            source = self.pick() or self.let(f"real({self.some('int').name})", (), "real", 3.0)
            phase = f"cos(real(arange({math.prod(shape)})))"
            phase = f"reshape({phase}, {shape})" if len(shape) != 1 else phase
            return self.let(f"sin({self.fit(source, ())} + {phase})", shape)
        if kind == "int":
            return self.let(f"reshape(arange({math.prod(shape)}), {shape}) % 3", shape, "int")
        return self.let(f"{self.make('real', shape).name} > 0.1", shape, "bool")

    def use(self, v: Value) -> str:
        """The text of a variable, wrapped if it is not small."""
        if v.kind != "real" or v.bound <= 2.0:
            return v.name
        return f"{self.random.choice(('tanh', 'sin'))}({v.name})"

    def fit(self, v: Value, shape: Shape) -> str:
        """A text made of a variable that broadcasts to a shape."""
        if broadcasts(v.shape, shape):
            return self.use(v)
        if v.size == math.prod(shape):
            return f"reshape({self.use(v)}, {shape})"
        if v.kind == "real":
            return f"{'mean' if self.chance(0.7) else 'max_'}({self.use(v)})"
        return f"{'max_' if v.kind == 'int' else 'any_'}({v.name})"

    def recent(self, kind: str) -> Value:
        """One of the last variables, so that what was computed last matters."""
        found = [v for v in self.scope if v.kind == kind]
        return self.random.choice(found[-3:]) if found else self.some(kind)

    def update(self, old: Value) -> str:
        """A value for the next round of a loop variable, of exactly its type."""
        if old.kind == "real":
            last = next((v for v in reversed(self.scope) if v.kind == "real"), old)
            new = last if self.chance(0.6) else self.recent("real")
            return f"tanh(0.6 * {old.name} + 0.5 * {self.fit(new, old.shape)})"
        if old.kind == "int":
            return f"({old.name} + {self.fit(self.recent('int'), old.shape)} + 1) % 7"
        return f"{old.name} ^ {self.fit(self.recent('bool'), old.shape)}"


SHAPES: tuple[Shape, ...] = (
    (3,),
    (),
    (2, 3),
    (4,),
    (2,),
    (3, 3),
    (2, 2, 3),
    (3, 2),
    (4, 3),
    (2, 2),
)


def joined(a: Shape, b: Shape) -> Shape | None:
    """The shape of two arrays combined, or None."""
    n = max(len(a), len(b))
    pairs = list(zip((1,) * (n - len(a)) + a, (1,) * (n - len(b)) + b, strict=True))
    return tuple(map(max, pairs)) if all(1 in p or p[0] == p[1] for p in pairs) else None


@dataclasses.dataclass(frozen=True)
class Pattern:
    """How arrays are put into a tree: "single", "tuple", "dict" or "nested"."""

    style: str
    size: int

    @property
    def keys(self) -> str:
        return "abcdefgh"[: self.size]

    def pack(self, texts: Sequence[str]) -> str:
        """The text of the tree of these texts."""
        if self.style == "single":
            return texts[0]
        if self.style == "dict":
            parts = ", ".join(f'"{k}": {t}' for k, t in zip(self.keys, texts, strict=True))
            return f"{{{parts}}}"
        if self.style == "nested":
            return f"({texts[0]}, {Pattern('tuple', self.size - 1).pack(texts[1:])})"
        return f"({', '.join(texts)}{',' * (len(texts) == 1)})"


def pattern(w: Writer, n: int) -> Pattern:
    """A random pattern for n arrays."""
    if n == 0:
        return Pattern("tuple", 0)
    styles = ["tuple", "dict", *(["single"] if n == 1 else ["nested"])]
    return Pattern("single" if n == 1 and w.chance(0.6) else w.random.choice(styles), n)
