"""What the constructs have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .writer import LARGEST, Pattern, Shape, Value, Writer

Inner = Callable[[], None]
Kind = str


def start(w: Writer, v: Value) -> str:
    """The text of a loop variable's first value."""
    return f"tanh({v.name})" if v.kind == "real" and v.bound > 1.0 else v.name


def loop_variables(w: Writer) -> list[Value]:
    """What a loop carries: variables that are in scope."""
    kinds = ["real", *(k for k in ("real", "int", "bool") if w.chance(0.3))]
    chosen = [w.some(k, lambda u: u.size <= 12) for k in kinds]
    return list(dict.fromkeys(chosen))


def renamed(w: Writer, values: Sequence[Value], prefix: str = "") -> list[Value]:
    """New variables of the same types."""
    return [w.new(v.shape, v.kind, prefix=prefix) for v in values]


def finish(w: Writer, types: Sequence[tuple[Kind, Shape]], tree: Pattern) -> None:
    """Return values of these types."""
    texts = []
    for kind, shape in types:
        text = w.fit(w.recent(kind), shape)
        if kind == "real":
            text = f"sin({text} + zeros({shape}))"
        elif kind == "int":
            text = f"({text} + integer(zeros({shape}))) % 7"
        else:
            text = f"{text} | boolean(zeros({shape}))"
        texts.append(text)
    w.line(f"return {tree.pack(texts)}")


def outputs(w: Writer, before: int) -> list[Value]:
    """One to three variables of a body, the last real one among them."""
    mine = w.scope[before:]
    real = [v for v in mine if v.kind == "real"][-1:] or [w.recent("real")]
    others = [v for v in mine if v not in real]
    extra = w.random.sample(others, min(len(others), w.count(0, 2)))
    return [*real, *extra]


def arguments(w: Writer, n: int, largest: int = LARGEST) -> list[Value]:
    """Different real variables to differentiate with respect to."""
    found: list[Value] = []
    for _ in range(n):
        v = w.pick("real", lambda u: u not in found and u.size <= largest)
        found.append(v or w.make("real", (3,)))
    return found


def names(values: Sequence[Value]) -> list[str]:
    return [v.name for v in values]
