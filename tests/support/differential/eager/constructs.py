"""Transforms and control flow in the programs. Each takes the writer, and what writes a body."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tests.support.differential.draft import broadcasts

from .writer import LARGEST, Tensor, Writer

Inner = Callable[[], None]


def _small_float(t: Tensor) -> bool:
    return t.is_floating_point() and 0 < t.numel() <= 12


def _arguments(w: Writer, n: int, kind: str = "any") -> list[str]:
    """Different variables; of a kind "float", small ones."""
    suits = _small_float if kind == "float" else lambda t: True
    found = [w.some(kind, suits) for _ in range(n)]
    return list(dict.fromkeys(found))


def _renamed(w: Writer, given: Sequence[str]) -> list[tuple[str, Tensor]]:
    """Parameters for these variables."""
    return [(w.name("a"), w.values[v]) for v in given]


def _results(w: Writer, before: int, kind: str = "any", most: int = 4) -> list[str]:
    """Some variables of a body, the last of the kind among them."""
    mine = [v for v in w.scope[before:] if _suits(w, v, kind)]
    if not mine:
        found = [v for v in w.scope if _suits(w, v, kind)]
        return [w.choose(found)] if found else [w.some(kind)]
    rest = w.random.sample(mine[:-1], min(len(mine) - 1, w.count(0, most - 1)))
    return [mine[-1], *rest]


def _suits(w: Writer, v: str, kind: str) -> bool:
    return kind == "any" or _small_float(w.values[v])


def _tree(w: Writer, names: Sequence[str]) -> tuple[str, list[str]]:
    """The text of a tree of values, and how to get each of them out of it."""
    if len(names) == 1 and w.chance(0.6):
        return names[0], [""]
    if w.chance(0.3):
        shown = ", ".join(f'"{k}": {n}' for k, n in zip("abcdef", names, strict=False))
        return f"{{{shown}}}", [f'["{k}"]' for k in "abcdef"[: len(names)]]
    shown = f"({', '.join(names)}{',' * (len(names) == 1)})"
    return shown, [f"[{i}]" for i in range(len(names))]


def _take(w: Writer, result: str, paths: Sequence[str]) -> None:
    """Give the parts of a result names."""
    for path in paths:
        w.let(f"{result}{path}", tame=False)


def _fit(w: Writer, v: str, like: Tensor, base: str) -> str:
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


# -- wrappers and batching --------------------------------------------------------------------


def _wrapped(w: Writer, inner: Inner, call: str) -> None:
    given = _arguments(w, w.count(1, 3))
    new = _renamed(w, given)
    with w.block():
        start = len(w.lines)
        with w.function(new) as f:
            before = len(w.scope)
            inner()
            text, paths = _tree(w, _results(w, before))
            w.line(f"return {text}")
        r = w.name("r")
        w.finish_block(start, f"{call.format(f)}({', '.join(given)})", r)
        _take(w, r, paths)


def jit(w: Writer, inner: Inner) -> None:
    _wrapped(w, inner, "xf.jit({})")


def checkpoint(w: Writer, inner: Inner) -> None:
    _wrapped(w, inner, "xf.checkpoint({})")


def vmap(w: Writer, inner: Inner) -> None:
    first = w.some("any", lambda t: t.ndim > 0 and min(t.shape) > 0)
    shape = w.values[first].shape
    axis = w.count(0, len(shape) - 1)
    size = shape[axis]
    mapped: dict[str, int | None] = {first: axis}
    for _ in range(w.count(0, 2)):
        v = w.some()
        axes = [i for i, n in enumerate(w.values[v].shape) if n == size]
        mapped.setdefault(v, w.choose([*axes, None]))
    new = [
        (w.name("a"), w.values[v] if d is None else w.values[v].select(d, 0))
        for v, d in mapped.items()
    ]
    with w.block():
        start = len(w.lines)
        with w.function(new) as f:
            before = len(w.scope)
            inner()
            text, paths = _tree(w, _results(w, before))
            w.line(f"return {text}")
        axes = [
            d if d is None or w.chance(0.7) else d - w.values[v].ndim for v, d in mapped.items()
        ]
        shown = f"({', '.join(map(str, axes))}{',' * (len(axes) == 1)})"
        options = "" if all(d == 0 for d in axes) else f", in_axes={shown}"
        options += w.choose(("", "", ", out_axes=-1"))
        r = w.name("r")
        w.finish_block(start, f"xf.vmap({f}{options})({', '.join(mapped)})", r)
        _take(w, r, paths)


# -- derivatives ------------------------------------------------------------------------------


def _scalar(w: Writer, parameters: Sequence[tuple[str, Tensor]], before: int) -> str:
    """The text of a real scalar that depends on what a body computed last."""
    inexact = [
        v for v in w.scope[before:] if w.values[v].is_floating_point() or w.values[v].is_complex()
    ][-2:]
    texts = []
    for v in [*inexact, w.choose(parameters)[0]]:
        whole = f"{v}.abs()" if w.values[v].is_complex() else f"torch.sin({v})"
        texts.append(f"{whole}.sum()")
    return " + ".join(texts)


def _grad(w: Writer, inner: Inner, word: str) -> None:
    given = _arguments(w, w.count(1, 2), "float")
    n = len(given)
    given += [v for v in _arguments(w, w.count(0, 1)) if v not in given]
    new = _renamed(w, given)
    with w.block():
        start = len(w.lines)
        with w.function(new, reverse=True) as f:
            before = len(w.scope)
            inner()
            value = _scalar(w, new[:n], before)
            aux = _results(w, before)[0] if w.chance(0.3) else ""
            w.line(f"return {value}{f', {aux}' if aux else ''}")
        nums = w.choose(("0", str(n - 1), f"({', '.join(map(str, range(n)))},)"))
        options = f", argnums={nums}" + (", has_aux=True" if aux else "")
        r = w.name("r")
        w.finish_block(start, f"xf.{word}({f}{options})({', '.join(given)})", r)
        many = nums.startswith("(")
        if word == "grad":
            grads = "[0]" if aux else ""
            paths = ["[1]"] if aux else []
        else:
            grads = "[1]"
            paths = ["[0][0]", "[0][1]"] if aux else ["[0]"]
        paths += [f"{grads}[{i}]" for i in range(n)] if many else [grads]
        _take(w, r, paths)


def grad(w: Writer, inner: Inner) -> None:
    _grad(w, inner, "grad")


def value_and_grad(w: Writer, inner: Inner) -> None:
    _grad(w, inner, "value_and_grad")


def _smooth(
    w: Writer, inner: Inner, *, forward: bool = False, reverse: bool = False
) -> tuple[str, list[str], list[str]]:
    """A function of floats with float results: its name, arguments, paths of its results."""
    given = _arguments(w, w.count(1, 2), "float")
    new = _renamed(w, given)
    with w.function(new, forward=forward, reverse=reverse) as f:
        before = len(w.scope)
        inner()
        text, paths = _tree(w, _results(w, before, "float", 2))
        w.line(f"return {text}")
    return f, given, paths


def _directions(w: Writer, given: Sequence[str]) -> str:
    return ", ".join(f"torch.{w.choose(('cos', 'sin', 'ones_like'))}({v})" for v in given)


def jvp(w: Writer, inner: Inner) -> None:
    with w.block():
        start = len(w.lines)
        f, given, paths = _smooth(w, inner, forward=True)
        r = w.name("r")
        dots = _directions(w, given)
        w.finish_block(start, f"xf.jvp({f}, ({', '.join(given)},), ({dots},))", r)
        _take(w, r, [f"[{i}]{p}" for i in range(2) for p in paths])


def vjp(w: Writer, inner: Inner) -> None:
    with w.block():
        start = len(w.lines)
        f, given, paths = _smooth(w, inner, reverse=True)
        r, ct = w.name("r"), w.name("r")
        value = w.finish_block(start, f"xf.vjp({f}, {', '.join(given)})", r)[0]
        _take(w, r, [f"[0]{p}" for p in paths])
        new = w.scope[-len(paths) :]
        cts = [f"torch.cos({v})" for v in new]
        if isinstance(value, dict):
            shown = ", ".join(f'"{k}": {t}' for k, t in zip(value, cts, strict=True))
            text = f"{{{shown}}}"
        else:
            text = f"({', '.join(cts)},)" if isinstance(value, tuple) else cts[0]
        w.do(f"{ct} = {r}[1]({text})")
        _take(w, ct, [f"[{i}]" for i in range(len(given))])


def linearize(w: Writer, inner: Inner) -> None:
    with w.block():
        start = len(w.lines)
        f, given, paths = _smooth(w, inner, forward=True, reverse=True)
        r, dots = w.name("r"), w.name("r")
        w.finish_block(start, f"xf.linearize({f}, {', '.join(given)})", r)
        _take(w, r, [f"[0]{p}" for p in paths])
        w.do(f"{dots} = {r}[1]({_directions(w, given)})")
        _take(w, dots, paths)


def _jacobian(w: Writer, inner: Inner, word: str, *, forward: bool, reverse: bool) -> None:
    v = w.some("float", lambda t: 0 < t.numel() <= 4)
    new = _renamed(w, [v])
    with w.block():
        start = len(w.lines)
        with w.function(new, forward=forward, reverse=reverse) as f:
            before = len(w.scope)
            inner()
            if word == "hessian":
                w.line(f"return {_scalar(w, new, before)}")
            else:
                y = _results(w, before, "float", 1)[0]
                w.line(f"return {y if w.values[y].numel() <= 6 else new[0][0]}")
        r = w.name("r")
        w.finish_block(start, f"xf.{word}({f})({v})", r)
        _take(w, r, [""])


def jacfwd(w: Writer, inner: Inner) -> None:
    _jacobian(w, inner, "jacfwd", forward=True, reverse=False)


def jacrev(w: Writer, inner: Inner) -> None:
    _jacobian(w, inner, "jacrev", forward=False, reverse=True)


def hessian(w: Writer, inner: Inner) -> None:
    _jacobian(w, inner, "hessian", forward=True, reverse=True)


# -- loops ------------------------------------------------------------------------------------


def _carried(w: Writer) -> list[str]:
    return list(
        dict.fromkeys(w.some("any", lambda t: t.numel() <= 12) for _ in range(w.count(1, 2)))
    )


def _next(w: Writer, new: Sequence[tuple[str, Tensor]], before: int) -> list[str]:
    """The values of the next round, of exactly the types of these."""
    return [_fit(w, w.choose(w.scope[before:][-3:] or w.scope), t, a) for a, t in new]


def _scan(w: Writer, inner: Inner, options: str) -> None:
    carry = _carried(w)
    length, xs = w.count(1, 3), list[str]()
    if w.chance(0.75):
        first = w.some("any", lambda t: t.ndim > 0 and 0 < len(t) <= 4)
        length = len(w.values[first])
        others = [v for v in w.scope if w.values[v].shape[:1] == (length,) and v != first]
        xs = [first, *w.random.sample(others, min(len(others), w.count(0, 1)))]
    new = _renamed(w, carry)
    slices = [(w.name("a"), w.values[v][0]) for v in xs]
    with w.block():
        start = len(w.lines)
        with w.function([*new, *slices], ["carry", "x"]) as f:
            w.line(f"{', '.join(a for a, _ in new)}, = carry")
            if xs:
                w.line(f"{', '.join(a for a, _ in slices)}, = x")
            before = len(w.scope)
            inner()
            ys = [v for v in _results(w, before) if w.values[v].numel() * length <= LARGEST]
            ys = [] if w.chance(0.2) else ys
            text, paths = _tree(w, ys) if ys else ("None", [])
            w.line(f"return ({', '.join(_next(w, new, before))},), {text}")
        given = f"({', '.join(xs)},)" if xs else f"None, {length}"
        r = w.name("r")
        w.finish_block(start, f"xf.scan({f}, ({', '.join(carry)},), {given}{options})", r)
        _take(w, r, [*(f"[0][{i}]" for i in range(len(carry))), *(f"[1]{p}" for p in paths)])


def scan(w: Writer, inner: Inner) -> None:
    _scan(w, inner, "")


def scan_reverse(w: Writer, inner: Inner) -> None:
    _scan(w, inner, ", reverse=True")


def fori_loop(w: Writer, inner: Inner) -> None:
    carry = _carried(w)
    new, i = _renamed(w, carry), w.name("i")
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
        _take(w, r, [f"[{i}]" for i in range(len(carry))])


def while_loop(w: Writer, inner: Inner) -> None:
    if w.reverse:
        fori_loop(w, inner)
        return
    carry = _carried(w)
    new, n = _renamed(w, carry), w.name("n")
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
        _take(w, r, [f"[{i}]" for i in range(len(carry) + 1)])


def map_(w: Writer, inner: Inner) -> None:
    v = w.some("any", lambda t: t.ndim > 0 and 0 < len(t) <= 4)
    new = (w.name("a"), w.values[v][0])
    with w.block():
        start = len(w.lines)
        with w.function([new]) as f:
            before = len(w.scope)
            inner()
            text, paths = _tree(w, _results(w, before))
            w.line(f"return {text}")
        options = w.choose(("", "", ", batch_size=2"))
        r = w.name("r")
        w.finish_block(start, f"xf.map({f}, {v}{options})", r)
        _take(w, r, paths)


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
    operands = _arguments(w, w.count(1, 2))
    new = _renamed(w, operands)
    with w.function(new) as deep:
        before = len(w.scope)
        inner()
        results = _results(w, before)
        examples = [w.values[v] for v in results]
        _, paths = _tree(w, results)
        w.line(f"return {_packed(results, paths)}")
    functions = [deep]
    for _ in range(n - 1):
        new = _renamed(w, operands)
        with w.function(new) as f:
            texts = [
                _fit(
                    w,
                    w.choose([a for a, _ in new]),
                    t,
                    f"torch.ones({tuple(t.shape)}, dtype={t.dtype})",
                )
                for t in examples
            ]
            w.line(f"return {_packed(texts, paths)}")
        functions.append(f)
    w.random.shuffle(functions)
    return functions, operands, paths


def _packed(texts: Sequence[str], paths: Sequence[str]) -> str:
    if paths == [""]:
        return texts[0]
    if paths[0] == "[0]":
        return f"({', '.join(texts)},)"
    parts = ", ".join(f"{p[1:-1]}: {t}" for p, t in zip(paths, texts, strict=True))
    return f"{{{parts}}}"


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
        _take(w, r, paths)


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
        _take(w, r, paths)


# -- custom rules -----------------------------------------------------------------------------


def _custom(w: Writer, inner: Inner, word: str) -> tuple[str, list[str], list[str]]:
    """A function that closes over nothing, whose result is of the type of its first argument."""
    given = _arguments(w, w.count(1, 2), "float")
    new = _renamed(w, given)
    with w.function(new, closed=True, decorator=f"xf.{word}") as f:
        inner()
        last = w.choose([v for v in w.scope if w.values[v].is_floating_point()][-2:])
        rest = "".join(f" + 0.1 * {a}.sum()" for a, _ in new[1:])
        a, t = new[0]
        w.line(f"return ({_fit(w, last, t, a)}{rest}).to({t.dtype})")
    return f, given, [a for a, _ in new]


def custom_vjp(w: Writer, inner: Inner) -> None:
    """The rule is not the derivative, so that it shows which was used."""
    if w.forward:
        custom_jvp(w, inner)
        return
    with w.block():
        start = len(w.lines)
        f, given, new = _custom(w, inner, "custom_vjp")
        fwd, bwd = w.name("fwd"), w.name("bwd")
        w.line(f"def {fwd}({', '.join(new)}):")
        w.line(f"    return {f}({', '.join(new)}), ({', '.join(new)},)")
        w.line(f"def {bwd}(kept, ct):")
        w.line(f"    {', '.join(new)}, = kept")
        types = [w.values[v].dtype for v in given]
        rest = [
            f"(ct.sum() * torch.cos({a})).to({d})" for a, d in zip(new[1:], types[1:], strict=True)
        ]
        w.line(f"    return ({', '.join([f'0.5 * ct * torch.cos({new[0]})', *rest])},)")
        w.line(f"{f}.defvjp({fwd}, {bwd})")
        r = w.name("r")
        w.finish_block(start, f"{f}({', '.join(given)})", r)
        _take(w, r, [""])


def custom_jvp(w: Writer, inner: Inner) -> None:
    """The rule is not the derivative, so that it shows which was used."""
    with w.block():
        start = len(w.lines)
        f, given, new = _custom(w, inner, "custom_jvp")
        rule = w.name("rule")
        w.line(f"@{f}.defjvp")
        w.line(f"def {rule}(primals, tangents):")
        w.line(f"    {', '.join(new)}, = primals")
        rest = "".join(f" + 0.3 * tangents[{i}].sum()" for i in range(1, len(new)))
        dot = f"(0.5 * tangents[0] * torch.cos({new[0]}){rest}).to({w.values[given[0]].dtype})"
        w.line(f"    return {f}({', '.join(new)}), {dot}")
        r = w.name("r")
        w.finish_block(start, f"{f}({', '.join(given)})", r)
        _take(w, r, [""])


CONSTRUCTS: dict[str, Callable[[Writer, Inner], None]] = {
    f.__name__: f
    for f in (
        jit, checkpoint, vmap, grad, value_and_grad, jvp, vjp, linearize, jacfwd, jacrev, hessian,
        scan, scan_reverse, fori_loop, while_loop, map_, associative_scan, cond, switch,
        custom_vjp, custom_jvp,
    )
}  # fmt: skip
"""The constructs by name."""
