"""What the constructs have in common: arguments, results and bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tests.support.differential.draft import broadcasts

from .writer import Tensor, Writer

Inner = Callable[[], None]


def _small_float(t: Tensor) -> bool:
    return t.is_floating_point() and 0 < t.numel() <= 12


def arguments(w: Writer, n: int, kind: str = "any") -> list[str]:
    """Different variables; of a kind "float", small ones."""
    suits = _small_float if kind == "float" else lambda t: True
    found = [w.some(kind, suits) for _ in range(n)]
    return list(dict.fromkeys(found))


def renamed(w: Writer, given: Sequence[str]) -> list[tuple[str, Tensor]]:
    """Parameters for these variables."""
    return [(w.name("a"), w.values[v]) for v in given]


def results(w: Writer, before: int, kind: str = "any", most: int = 4) -> list[str]:
    """Some variables of a body, the last of the kind among them."""
    mine = [v for v in w.scope[before:] if _suits(w, v, kind)]
    if not mine:
        found = [v for v in w.scope if _suits(w, v, kind)]
        return [w.choose(found)] if found else [w.some(kind)]
    rest = w.random.sample(mine[:-1], min(len(mine) - 1, w.count(0, most - 1)))
    return [mine[-1], *rest]


def _suits(w: Writer, v: str, kind: str) -> bool:
    return kind == "any" or _small_float(w.values[v])


def tree(w: Writer, names: Sequence[str]) -> tuple[str, list[str]]:
    """The text of a tree of values, and how to get each of them out of it."""
    if len(names) == 1 and w.chance(0.6):
        return names[0], [""]
    if w.chance(0.3):
        shown = ", ".join(f'"{k}": {n}' for k, n in zip("abcdef", names, strict=False))
        return f"{{{shown}}}", [f'["{k}"]' for k in "abcdef"[: len(names)]]
    shown = f"({', '.join(names)}{',' * (len(names) == 1)})"
    return shown, [f"[{i}]" for i in range(len(names))]


def take(w: Writer, result: str, paths: Sequence[str]) -> None:
    """Give the parts of a result names."""
    for path in paths:
        w.let(f"{result}{path}", tame=False)


def fit(w: Writer, v: str, like: Tensor, base: str) -> str:
    """A text made of a variable, of exactly a shape and dtype; `base` is a tensor of that type."""
    value = w.values[v]
    if value.dtype == like.dtype and value.shape == like.shape and w.chance(0.5):
        return f"torch.tanh({v})" if value.is_floating_point() else v
    part = v if broadcasts(value.shape, like.shape) else f"{v}.sum()"
    if value.dtype.is_complex and not like.dtype.is_complex:
        part = f"{part}.abs()"
    if like.dtype == torch.bool:
        return f"{base} ^ ({part} != 0)"
    if like.is_floating_point():
        return f"torch.tanh({base} + {part}).to({like.dtype})"
    return f"({base} + {part}).to({like.dtype})"


def scalar(w: Writer, parameters: Sequence[tuple[str, Tensor]], before: int) -> str:
    """The text of a real scalar that depends on what a body computed last."""
    inexact = [
        v for v in w.scope[before:] if w.values[v].is_floating_point() or w.values[v].is_complex()
    ][-2:]
    texts = []
    for v in [*inexact, w.choose(parameters)[0]]:
        whole = f"{v}.abs()" if w.values[v].is_complex() else f"torch.sin({v})"
        texts.append(f"{whole}.sum()")
    return " + ".join(texts)


def smooth(
    w: Writer, inner: Inner, *, forward: bool = False, reverse: bool = False
) -> tuple[str, list[str], list[str]]:
    """A function of floats with float results: its name, arguments, paths of its results."""
    given = arguments(w, w.count(1, 2), "float")
    new = renamed(w, given)
    with w.function(new, forward=forward, reverse=reverse) as f:
        before = len(w.scope)
        inner()
        text, paths = tree(w, results(w, before, "float", 2))
        w.line(f"return {text}")
    return f, given, paths


def directions(w: Writer, given: Sequence[str]) -> str:
    return ", ".join(f"torch.{w.choose(('cos', 'sin', 'ones_like'))}({v})" for v in given)


def packed(texts: Sequence[str], paths: Sequence[str]) -> str:
    if paths == [""]:
        return texts[0]
    if paths[0] == "[0]":
        return f"({', '.join(texts)},)"
    parts = ", ".join(f"{p[1:-1]}: {t}" for p, t in zip(paths, texts, strict=True))
    return f"{{{parts}}}"
