"""Transforms in the programs, and custom rules. Each takes the writer, and what writes a body."""

from __future__ import annotations

from . import parts
from .parts import Inner
from .writer import Writer

# -- wrappers and batching --------------------------------------------------------------------


def _wrapped(w: Writer, inner: Inner, call: str) -> None:
    given = parts.arguments(w, w.count(1, 3))
    new = parts.renamed(w, given)
    with w.block():
        start = len(w.lines)
        with w.function(new) as f:
            before = len(w.scope)
            inner()
            text, paths = parts.tree(w, parts.results(w, before))
            w.line(f"return {text}")
        r = w.name("r")
        w.finish_block(start, f"{call.format(f)}({', '.join(given)})", r)
        parts.take(w, r, paths)


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
            text, paths = parts.tree(w, parts.results(w, before))
            w.line(f"return {text}")
        axes = [
            d if d is None or w.chance(0.7) else d - w.values[v].ndim for v, d in mapped.items()
        ]
        shown = f"({', '.join(map(str, axes))}{',' * (len(axes) == 1)})"
        options = "" if all(d == 0 for d in axes) else f", in_axes={shown}"
        options += w.choose(("", "", ", out_axes=-1"))
        r = w.name("r")
        w.finish_block(start, f"xf.vmap({f}{options})({', '.join(mapped)})", r)
        parts.take(w, r, paths)


def _grad(w: Writer, inner: Inner, word: str) -> None:
    given = parts.arguments(w, w.count(1, 2), "float")
    n = len(given)
    given += [v for v in parts.arguments(w, w.count(0, 1)) if v not in given]
    new = parts.renamed(w, given)
    with w.block():
        start = len(w.lines)
        with w.function(new, reverse=True) as f:
            before = len(w.scope)
            inner()
            value = parts.scalar(w, new[:n], before)
            aux = parts.results(w, before)[0] if w.chance(0.3) else ""
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
        parts.take(w, r, paths)


def grad(w: Writer, inner: Inner) -> None:
    _grad(w, inner, "grad")


def value_and_grad(w: Writer, inner: Inner) -> None:
    _grad(w, inner, "value_and_grad")


def jvp(w: Writer, inner: Inner) -> None:
    with w.block():
        start = len(w.lines)
        f, given, paths = parts.smooth(w, inner, forward=True)
        r = w.name("r")
        dots = parts.directions(w, given)
        w.finish_block(start, f"xf.jvp({f}, ({', '.join(given)},), ({dots},))", r)
        parts.take(w, r, [f"[{i}]{p}" for i in range(2) for p in paths])


def vjp(w: Writer, inner: Inner) -> None:
    with w.block():
        start = len(w.lines)
        f, given, paths = parts.smooth(w, inner, reverse=True)
        r, ct = w.name("r"), w.name("r")
        value = w.finish_block(start, f"xf.vjp({f}, {', '.join(given)})", r)[0]
        parts.take(w, r, [f"[0]{p}" for p in paths])
        new = w.scope[-len(paths) :]
        cts = [f"torch.cos({v})" for v in new]
        if isinstance(value, dict):
            shown = ", ".join(f'"{k}": {t}' for k, t in zip(value, cts, strict=True))
            text = f"{{{shown}}}"
        else:
            text = f"({', '.join(cts)},)" if isinstance(value, tuple) else cts[0]
        w.do(f"{ct} = {r}[1]({text})")
        parts.take(w, ct, [f"[{i}]" for i in range(len(given))])


def linearize(w: Writer, inner: Inner) -> None:
    with w.block():
        start = len(w.lines)
        f, given, paths = parts.smooth(w, inner, forward=True, reverse=True)
        r, dots = w.name("r"), w.name("r")
        w.finish_block(start, f"xf.linearize({f}, {', '.join(given)})", r)
        parts.take(w, r, [f"[0]{p}" for p in paths])
        w.do(f"{dots} = {r}[1]({parts.directions(w, given)})")
        parts.take(w, dots, paths)


def _jacobian(w: Writer, inner: Inner, word: str, *, forward: bool, reverse: bool) -> None:
    v = w.some("float", lambda t: 0 < t.numel() <= 4)
    new = parts.renamed(w, [v])
    with w.block():
        start = len(w.lines)
        with w.function(new, forward=forward, reverse=reverse) as f:
            before = len(w.scope)
            inner()
            if word == "hessian":
                w.line(f"return {parts.scalar(w, new, before)}")
            else:
                y = parts.results(w, before, "float", 1)[0]
                w.line(f"return {y if w.values[y].numel() <= 6 else new[0][0]}")
        r = w.name("r")
        w.finish_block(start, f"xf.{word}({f})({v})", r)
        parts.take(w, r, [""])


def jacfwd(w: Writer, inner: Inner) -> None:
    _jacobian(w, inner, "jacfwd", forward=True, reverse=False)


def jacrev(w: Writer, inner: Inner) -> None:
    _jacobian(w, inner, "jacrev", forward=False, reverse=True)


def hessian(w: Writer, inner: Inner) -> None:
    _jacobian(w, inner, "hessian", forward=True, reverse=True)


# -- custom rules -----------------------------------------------------------------------------


def _custom(w: Writer, inner: Inner, word: str) -> tuple[str, list[str], list[str]]:
    """A function that closes over nothing, whose result is of the type of its first argument."""
    given = parts.arguments(w, w.count(1, 2), "float")
    new = parts.renamed(w, given)
    with w.function(new, closed=True, decorator=f"xf.{word}") as f:
        inner()
        last = w.choose([v for v in w.scope if w.values[v].is_floating_point()][-2:])
        rest = "".join(f" + 0.1 * {a}.sum()" for a, _ in new[1:])
        a, t = new[0]
        w.line(f"return ({parts.fit(w, last, t, a)}{rest}).to({t.dtype})")
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
        parts.take(w, r, [""])


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
        parts.take(w, r, [""])
