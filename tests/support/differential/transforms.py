"""Transforms in the programs. Each takes the writer, and what writes the body."""

from __future__ import annotations

from collections.abc import Sequence

from .parts import Inner, arguments, names, outputs
from .writer import LARGEST, Pattern, Shape, Value, Writer, pattern

# -- batching ---------------------------------------------------------------------------------


def vmap(w: Writer, inner: Inner) -> None:
    first = w.some("real", lambda u: bool(u.shape))
    axis = w.count(0, len(first.shape) - 1)
    size = first.shape[axis]
    mapped: list[tuple[Value, int | None]] = [(first, axis)]
    for _ in range(w.count(0, 2)):
        kind = w.random.choice(("real", "real", "int", "bool"))
        v = w.pick(kind, lambda u: all(u != m for m, _ in mapped))
        if v is not None:
            axes = [i for i, n in enumerate(v.shape) if n == size]
            mapped.append((v, w.random.choice([*axes, None])))
    new = [
        w.new(v.shape if a is None else (*v.shape[:a], *v.shape[a + 1 :]), v.kind, v.bound)
        for v, a in mapped
    ]
    with w.function(names(new), new) as f:
        before = len(w.scope)
        inner()
        ys = [v for v in outputs(w, before) if v.size * size <= 2 * LARGEST]
        ys = ys or [w.let(f"mean({w.recent('real').name})", ())]
        tree = pattern(w, len(ys))
        w.line(f"return {tree.pack(names(ys))}")
    axes = [a if a is None or w.chance(0.7) else a - len(v.shape) for v, a in mapped]
    shown = f"({', '.join(map(str, axes))}{',' * (len(axes) == 1)})"
    options = "" if all(a == 0 for a in axes) and w.chance(0.7) else f", in_axes={shown}"
    out_axis = w.random.choice((0, 0, -1))
    options += f", out_axes={out_axis}" if out_axis else ""
    results = [
        w.new((*y.shape, size) if out_axis else (size, *y.shape), y.kind, y.bound) for y in ys
    ]
    w.unpack(tree, results, f"vmap({f}{options})({', '.join(v.name for v, _ in mapped)})")


# -- differentiation --------------------------------------------------------------------------


def scalar(w: Writer, parameters: Sequence[Value], before: int) -> str:
    """The text of a scalar that depends on what a body computed last, and on its parameters."""
    last = [v for v in w.scope[before:] if v.kind == "real"][-2:] or list(parameters)[-1:]
    return " + ".join(f"mean(sin({v.name}))" for v in [*last, w.random.choice(list(parameters))])


def _grad(w: Writer, inner: Inner, with_value: bool) -> None:
    given = arguments(w, w.count(1, 3), 12)
    given = list(dict.fromkeys(given))
    new = [w.new(v.shape, v.kind, v.bound) for v in given]
    with w.function(names(new), new, reverse=True) as f:
        before = len(w.scope)
        inner()
        value = scalar(w, new, before)
        aux = outputs(w, before)[:1] if w.chance(0.3) else []
        w.line(f"return {value}{''.join(f', {a.name}' for a in aux)}")
    nums = w.random.choice(
        ["0", f"{len(given) - 1}", f"({', '.join(map(str, range(len(given))))},)"]
    )
    wrt = given if "(" in nums else [given[int(nums)]]
    options = f", argnums={nums}" if nums != "0" or w.chance(0.2) else ""
    options += ", has_aux=True" if aux else ""
    grads = [w.new(v.shape, bound=4.0, prefix="g") for v in wrt]
    shown = f"({', '.join(names(grads))},)" if "(" in nums else grads[0].name
    extra = [w.new(a.shape, a.kind, a.bound) for a in aux]
    call = f"({f}{options})({', '.join(names(given))})"
    if with_value:
        y = w.new((), bound=4.0)
        shown = f"({y.name}, {extra[0].name}), {shown}" if extra else f"{y.name}, {shown}"
        w.line(f"{shown} = value_and_grad{call}")
        w.scope.append(y)
    else:
        w.line(f"{shown}{''.join(f', {e.name}' for e in extra)} = grad{call}")
    w.scope += [*extra, *grads]


def grad(w: Writer, inner: Inner) -> None:
    _grad(w, inner, with_value=False)


def value_and_grad(w: Writer, inner: Inner) -> None:
    _grad(w, inner, with_value=True)


def _smooth(
    w: Writer, inner: Inner, *, forward: bool = False, reverse: bool = False
) -> tuple[str, list[Value], list[Value], Pattern]:
    """A function of reals with real results: its name, arguments, results, the results' tree."""
    given = list(dict.fromkeys(arguments(w, w.count(1, 2), 12)))
    new = [w.new(v.shape, v.kind, v.bound) for v in given]
    with w.function(names(new), new, forward=forward, reverse=reverse) as f:
        before = len(w.scope)
        inner()
        ys = [v for v in outputs(w, before) if v.kind == "real"]
        tree = pattern(w, len(ys))
        w.line(f"return {tree.pack(names(ys))}")
    return f, given, ys, tree


def _like(w: Writer, values: Sequence[Value]) -> str:
    """A tuple of arrays of the same shapes, for tangents."""
    texts = [f"{w.random.choice(('cos', 'sin', 'ones_like'))}({v.name})" for v in values]
    return f"({', '.join(texts)},)"


def jvp(w: Writer, inner: Inner) -> None:
    f, given, ys, tree = _smooth(w, inner, forward=True)
    out, dot = w.name("out"), w.name("dot")
    w.line(f"{out}, {dot} = jvp({f}, ({', '.join(names(given))},), {_like(w, given)})")
    w.unpack(tree, [w.new(y.shape, bound=y.bound) for y in ys], out)
    w.unpack(tree, [w.new(y.shape, bound=4.0) for y in ys], dot)


def vjp(w: Writer, inner: Inner) -> None:
    f, given, ys, tree = _smooth(w, inner, reverse=True)
    out, pull = w.name("out"), w.name("pull")
    w.line(f"{out}, {pull} = vjp({f}, {', '.join(names(given))})")
    results = [w.new(y.shape, bound=y.bound) for y in ys]
    w.unpack(tree, results, out)
    ct = tree.pack([f"cos({v.name})" for v in results])
    w.unpack(
        Pattern("tuple", len(given)), [w.new(v.shape, bound=4.0) for v in given], f"{pull}({ct})"
    )


def linearize(w: Writer, inner: Inner) -> None:
    f, given, ys, tree = _smooth(w, inner, forward=True, reverse=True)
    out, push = w.name("out"), w.name("push")
    w.line(f"{out}, {push} = linearize({f}, {', '.join(names(given))})")
    w.unpack(tree, [w.new(y.shape, bound=y.bound) for y in ys], out)
    dots = [w.new(y.shape, bound=4.0) for y in ys]
    w.unpack(tree, dots, f"{push}({_like(w, given)[1:-2]})")


def _jacobian(
    w: Writer, inner: Inner, name: str, *, forward: bool = False, reverse: bool = False
) -> None:
    v = w.some("real", lambda u: 0 < u.size <= 4)
    new = w.new(v.shape, bound=v.bound)
    with w.function([new.name], [new], forward=forward, reverse=reverse) as f:
        before = len(w.scope)
        inner()
        if name == "hessian":
            shape: Shape = ()
            w.line(f"return {scalar(w, [new], before)}")
        else:
            y = outputs(w, before)[0]
            y = y if y.size <= 6 else new
            shape = y.shape
            w.line(f"return sin({y.name})")
    shape = (*shape, *v.shape, *(v.shape if name == "hessian" else ()))
    w.let(f"{name}({f})({v.name})", shape, bound=4.0)


def jacfwd(w: Writer, inner: Inner) -> None:
    _jacobian(w, inner, "jacfwd", forward=True)


def jacrev(w: Writer, inner: Inner) -> None:
    _jacobian(w, inner, "jacrev", reverse=True)


def hessian(w: Writer, inner: Inner) -> None:
    _jacobian(w, inner, "hessian", forward=True, reverse=True)


# -- wrappers and custom rules ----------------------------------------------------------------


def _wrapped(w: Writer, inner: Inner, wrapper: str) -> None:
    given = arguments(w, w.count(1, 2))
    given += [v for v in (w.pick("int"),) if v is not None and w.chance(0.3)]
    given = list(dict.fromkeys(given))
    new = [w.new(v.shape, v.kind, v.bound) for v in given]
    with w.function(names(new), new) as f:
        before = len(w.scope)
        inner()
        ys = outputs(w, before)
        tree = pattern(w, len(ys))
        w.line(f"return {tree.pack(names(ys))}")
    results = [w.new(y.shape, y.kind, y.bound) for y in ys]
    w.unpack(tree, results, f"{wrapper}({f})({', '.join(names(given))})")


def checkpoint(w: Writer, inner: Inner) -> None:
    _wrapped(w, inner, "checkpoint")


def jit(w: Writer, inner: Inner) -> None:
    _wrapped(w, inner, "jit")


def _custom(w: Writer, inner: Inner, decorator: str) -> tuple[str, list[Value], list[Value]]:
    """A function that closes over nothing, with arguments and new names for them.

    It depends on all its arguments. Where an output depends on none that is batched, JAX's vmap
    sums the cotangents of the examples and calls the rule once, which is not the same as a call
    for each example if the rule is not the derivative.
    """
    given = list(dict.fromkeys(arguments(w, w.count(1, 2), 12)))
    new = [w.new(v.shape, v.kind, v.bound) for v in given]
    with w.function(names(new), new, closed=True, decorator=decorator) as f:
        inner()
        rest = "".join(f" + 0.1 * mean({n})" for n in names(new[1:]))
        w.line(f"return {w.update(new[0])}{rest}")
    return f, given, new


def custom_vjp(w: Writer, inner: Inner) -> None:
    """The rule is not the derivative, so that it shows which was used."""
    if w.forward:
        custom_jvp(w, inner)
        return
    w.pushable = False
    f, given, new = _custom(w, inner, "custom_vjp")
    ns = names(new)
    fwd, bwd, ct = w.name("fwd"), w.name("bwd"), w.name("ct")
    w.line(f"def {fwd}({', '.join(ns)}):")
    w.line(f"    return {f}({', '.join(ns)}), ({', '.join(ns)},)")
    w.line(f"def {bwd}(kept, {ct}):")
    w.line(f"    {', '.join(ns)}, = kept")
    rest = "".join(f", mean({ct}) * cos({n})" for n in ns[1:])
    w.line(f"    return (0.5 * {ct} * cos({ns[0]}){rest or ','})")
    w.line(f"{f}.defvjp({fwd}, {bwd})")
    w.let(f"{f}({', '.join(names(given))})", given[0].shape)


def custom_jvp(w: Writer, inner: Inner) -> None:
    """The rule is not the derivative, so that it shows which was used."""
    f, given, new = _custom(w, inner, "custom_jvp")
    ns = names(new)
    rule = w.name("rule")
    w.line(f"@{f}.defjvp")
    w.line(f"def {rule}(primals, tangents):")
    w.line(f"    {', '.join(ns)}, = primals")
    rest = "".join(f" + mean(tangents[{i}]) * 0.3" for i in range(1, len(ns)))
    w.line(f"    return {f}({', '.join(ns)}), 0.5 * tangents[0] * cos({ns[0]}){rest}")
    w.let(f"{f}({', '.join(names(given))})", given[0].shape)
