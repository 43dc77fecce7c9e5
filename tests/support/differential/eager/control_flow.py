"""Control flow in the programs. Each takes the writer, and what writes a body."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import parts
from .parts import Inner
from .writer import LARGEST, Tensor, Writer

# -- loops ------------------------------------------------------------------------------------


def _carried(w: Writer) -> list[str]:
    return list(
        dict.fromkeys(w.some("any", lambda t: t.numel() <= 12) for _ in range(w.count(1, 2)))
    )


def _next(w: Writer, new: Sequence[tuple[str, Tensor]], before: int) -> list[str]:
    """The values of the next round, of exactly the types of these."""
    return [parts.fit(w, w.choose(w.scope[before:][-3:] or w.scope), t, a) for a, t in new]


def _scan(w: Writer, inner: Inner, options: str) -> None:
    carry = _carried(w)
    length, xs = w.count(1, 3), list[str]()
    if w.chance(0.75):
        first = w.some("any", lambda t: t.ndim > 0 and 0 < len(t) <= 4)
        length = len(w.values[first])
        others = [v for v in w.scope if w.values[v].shape[:1] == (length,) and v != first]
        xs = [first, *w.random.sample(others, min(len(others), w.count(0, 1)))]
    new = parts.renamed(w, carry)
    slices = [(w.name("a"), w.values[v][0]) for v in xs]
    with w.block():
        start = len(w.lines)
        with w.function([*new, *slices], ["carry", "x"]) as f:
            w.line(f"{', '.join(a for a, _ in new)}, = carry")
            if xs:
                w.line(f"{', '.join(a for a, _ in slices)}, = x")
            before = len(w.scope)
            inner()
            ys = [v for v in parts.results(w, before) if w.values[v].numel() * length <= LARGEST]
            ys = [] if w.chance(0.2) else ys
            text, paths = parts.tree(w, ys) if ys else ("None", [])
            w.line(f"return ({', '.join(_next(w, new, before))},), {text}")
        given = f"({', '.join(xs)},)" if xs else f"None, {length}"
        r = w.name("r")
        w.finish_block(start, f"xf.scan({f}, ({', '.join(carry)},), {given}{options})", r)
        parts.take(w, r, [*(f"[0][{i}]" for i in range(len(carry))), *(f"[1]{p}" for p in paths)])


def scan(w: Writer, inner: Inner) -> None:
    _scan(w, inner, "")


def scan_reverse(w: Writer, inner: Inner) -> None:
    _scan(w, inner, ", reverse=True")


def fori_loop(w: Writer, inner: Inner) -> None:
    carry = _carried(w)
    new, i = parts.renamed(w, carry), w.name("i")
    low = w.count(-1, 1)
    with w.block():
        start = len(w.lines)
        with w.function([*new, (i, torch.tensor(low))], [i, "carry"]) as f:
            w.line(f"{', '.join(a for a, _ in new)}, = carry")
            before = len(w.scope)
            inner()
            w.line(f"return ({', '.join(_next(w, new, before))},)")
        r = w.name("r")
        high = low + w.count(1, 3)
        w.finish_block(start, f"xf.fori_loop({low}, {high}, {f}, ({', '.join(carry)},))", r)
        parts.take(w, r, [f"[{i}]" for i in range(len(carry))])


def while_loop(w: Writer, inner: Inner) -> None:
    if w.reverse:
        fori_loop(w, inner)
        return
    carry = _carried(w)
    new, n = parts.renamed(w, carry), w.name("n")
    limit = w.count(1, 3)
    with w.block():
        start = len(w.lines)
        with w.function([], ["carry"]) as test:
            w.line(f"return carry[0] < {limit}")
        with w.function([*new, (n, torch.tensor(0))], ["carry"]) as f:
            w.line(f"{', '.join([n, *(a for a, _ in new)])}, = carry")
            before = len(w.scope)
            inner()
            w.line(f"return ({', '.join([f'{n} + 1', *_next(w, new, before)])},)")
        r = w.name("r")
        init = f"(torch.tensor(0), {', '.join(carry)})"
        w.finish_block(start, f"xf.while_loop({test}, {f}, {init})", r)
        parts.take(w, r, [f"[{i}]" for i in range(len(carry) + 1)])


def map_(w: Writer, inner: Inner) -> None:
    v = w.some("any", lambda t: t.ndim > 0 and 0 < len(t) <= 4)
    new = (w.name("a"), w.values[v][0])
    with w.block():
        start = len(w.lines)
        with w.function([new]) as f:
            before = len(w.scope)
            inner()
            text, paths = parts.tree(w, parts.results(w, before))
            w.line(f"return {text}")
        options = w.choose(("", "", ", batch_size=2"))
        r = w.name("r")
        w.finish_block(start, f"xf.map({f}, {v}{options})", r)
        parts.take(w, r, paths)


def associative_scan(w: Writer, inner: Inner) -> None:
    """Of functions known to associate; `inner` comes before it."""
    inner()
    v = w.some("any", lambda t: 0 < t.ndim <= 2 and 0 < max(t.shape) < 6)
    t = w.values[v]
    functions = ["lambda a, b: a + b"]
    if not t.is_complex():
        functions += ["torch.maximum", "torch.minimum"]
    if not t.is_floating_point() and not t.is_complex():
        functions += ["torch.bitwise_and", "torch.bitwise_xor", "lambda a, b: a * b"]
    options = w.choose(("", ", reverse=True", f", axis={t.ndim - 1}"))
    w.let(f"xf.associative_scan({w.choose(functions)}, {v}{options})")


# -- branches ---------------------------------------------------------------------------------


def _branches(w: Writer, inner: Inner, n: int) -> tuple[list[str], list[str], list[str]]:
    """Functions of the same operands and results: names, operands, paths of the results."""
    operands = parts.arguments(w, w.count(1, 2))
    new = parts.renamed(w, operands)
    with w.function(new) as deep:
        before = len(w.scope)
        inner()
        results = parts.results(w, before)
        examples = [w.values[v] for v in results]
        _, paths = parts.tree(w, results)
        w.line(f"return {parts.packed(results, paths)}")
    functions = [deep]
    for _ in range(n - 1):
        new = parts.renamed(w, operands)
        with w.function(new) as f:
            texts = [
                parts.fit(
                    w,
                    w.choose([a for a, _ in new]),
                    t,
                    f"torch.ones({tuple(t.shape)}, dtype={t.dtype})",
                )
                for t in examples
            ]
            w.line(f"return {parts.packed(texts, paths)}")
        functions.append(f)
    w.random.shuffle(functions)
    return functions, operands, paths


def cond(w: Writer, inner: Inner) -> None:
    v = w.some("any")
    test = w.choose(("{0}.sum() {1} 0", "{0}.any()", "{0}.reshape(-1)[0] {1} 0"))
    sign = ">" if not w.values[v].is_complex() else "!="
    with w.block():
        start = len(w.lines)
        functions, operands, paths = _branches(w, inner, 2)
        r = w.name("r")
        given = ", ".join([test.format(v, sign), *functions, *operands])
        w.finish_block(start, f"xf.cond({given})", r)
        parts.take(w, r, paths)


def switch(w: Writer, inner: Inner) -> None:
    """The index may be out of range: it is clamped."""
    v = w.some("int")
    with w.block():
        start = len(w.lines)
        functions, operands, paths = _branches(w, inner, w.count(2, 3))
        r = w.name("r")
        i = f"{v}.sum()" if w.chance(0.3) else f"{v}.sum() % {len(functions)}"
        given = ", ".join([i, f"[{', '.join(functions)}]", *operands])
        w.finish_block(start, f"xf.switch({given})", r)
        parts.take(w, r, paths)
