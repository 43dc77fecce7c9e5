"""Loops and branches of the programs. Each takes the writer, and what writes the body."""

from __future__ import annotations

from .parts import Inner, arguments, finish, loop_variables, names, outputs, renamed, start
from .writer import LARGEST, Pattern, Value, Writer, pattern

# -- loops ------------------------------------------------------------------------------------


def _scan(w: Writer, inner: Inner, reverse: bool) -> None:
    carry = loop_variables(w)
    c_tree, xs, length = pattern(w, len(carry)), list[Value](), w.count(2, 4)
    if w.chance(0.75):
        first = w.some("real", lambda u: bool(u.shape))
        length = first.shape[0]
        others = [u for u in w.scope if u.shape[:1] == (length,) and u != first]
        xs = [first, *w.random.sample(others, min(len(others), w.count(0, 2)))]
    x_tree = pattern(w, len(xs))
    c_new = renamed(w, carry)
    x_new = [w.new(v.shape[1:], v.kind, v.bound) for v in xs]
    with w.function(["carry", "x"]) as f:
        w.unpack(c_tree, c_new, "carry")
        if xs:
            w.unpack(x_tree, x_new, "x")
        before = len(w.scope)
        inner()
        new = [w.update(v) for v in c_new]
        ys = [v for v in outputs(w, before) if v.size * length <= LARGEST]
        ys = [] if w.chance(0.2) else ys
        y_tree = pattern(w, len(ys))
        w.line(f"return {c_tree.pack(new)}, {y_tree.pack(names(ys)) if ys else 'None'}")
    options = ", reverse=True" if reverse else ""
    options += ", unroll=2" if w.chance(0.15) else ""
    given = x_tree.pack(names(xs)) if xs else f"None, length={length}"
    out, stacked = w.name("carry"), w.name("ys")
    init = c_tree.pack([start(w, v) for v in carry])
    w.line(f"{out}, {stacked} = scan({f}, {init}, {given}{options})")
    if ys:
        w.unpack(y_tree, [w.new((length, *y.shape), y.kind, y.bound) for y in ys], stacked)
    w.unpack(c_tree, renamed(w, carry), out)


def scan(w: Writer, inner: Inner) -> None:
    _scan(w, inner, reverse=False)


def scan_reverse(w: Writer, inner: Inner) -> None:
    _scan(w, inner, reverse=True)


def while_loop(w: Writer, inner: Inner) -> None:
    if w.reverse:
        fori_loop(w, inner)
        return
    w.reversible = False
    carry = loop_variables(w)
    limit = str(w.count(1, 3))
    if w.chance(0.5):
        limit = f"{w.fit(w.some('int'), ())} % 3 + 1"
    tree = pattern(w, len(carry) + 1)
    tree = Pattern("tuple", tree.size) if tree.style == "single" else tree
    steps = w.new((), "int", prefix="n")
    limit_name = w.name("limit")
    w.line(f"{limit_name} = {limit}")
    inside, tested = renamed(w, carry), renamed(w, carry)
    with w.function(["carry"]) as test:
        w.unpack(tree, [steps, *tested], "carry")
        real = next(v for v in tested if v.kind == "real")
        also = f" & (mean({real.name}) < 0.85)" if w.chance(0.4) else ""
        w.line(f"return ({steps.name} < {limit_name}){also}")
    with w.function(["carry"]) as body:
        w.unpack(tree, [steps, *inside], "carry")
        inner()
        w.line(f"return {tree.pack([f'{steps.name} + 1', *map(w.update, inside)])}")
    init = tree.pack(["integer(0)", *(start(w, v) for v in carry)])
    w.unpack(
        tree,
        [w.new((), "int", prefix="n"), *renamed(w, carry)],
        f"while_loop({test}, {body}, {init})",
    )


def _fori(w: Writer, inner: Inner, bounds: str) -> None:
    carry = loop_variables(w)
    tree = pattern(w, len(carry))
    inside, i = renamed(w, carry), w.new((), "int", prefix="i")
    with w.function([i.name, "carry"], [i]) as body:
        w.unpack(tree, inside, "carry")
        inner()
        w.line(f"return {tree.pack([w.update(v) for v in inside])}")
    init = tree.pack([start(w, v) for v in carry])
    w.unpack(tree, renamed(w, carry), f"fori_loop({bounds}, {body}, {init})")


def fori_loop(w: Writer, inner: Inner) -> None:
    low = w.count(-1, 1)
    _fori(w, inner, f"{low}, {low + w.count(1, 4)}")


def fori_dynamic(w: Writer, inner: Inner) -> None:
    if w.reverse:
        fori_loop(w, inner)
        return
    w.reversible = False
    v = w.some("int")
    _fori(w, inner, f"{w.random.choice(('0', '1'))}, {w.fit(v, ())} % 3 + 2")


def _map(w: Writer, inner: Inner, options: str) -> None:
    first = w.some("real", lambda u: len(u.shape) > 0)
    length = first.shape[0]
    others = [u for u in w.scope if u.shape[:1] == (length,) and u != first]
    xs = [first, *w.random.sample(others, min(len(others), w.count(0, 1)))]
    tree = pattern(w, len(xs))
    with w.function(["x"]) as f:
        w.unpack(tree, [w.new(v.shape[1:], v.kind, v.bound) for v in xs], "x")
        before = len(w.scope)
        inner()
        ys = outputs(w, before)
        y_tree = pattern(w, len(ys))
        w.line(f"return {y_tree.pack(names(ys))}")
    new = [w.new((length, *y.shape), y.kind, y.bound) for y in ys]
    w.unpack(y_tree, new, f"map_({f}, {tree.pack(names(xs))}{options})")


def map_(w: Writer, inner: Inner) -> None:
    _map(w, inner, "")


def map_batched(w: Writer, inner: Inner) -> None:
    _map(w, inner, f", batch_size={w.count(1, 3)}")


def associative_scan(w: Writer, inner: Inner) -> None:
    """Of functions known to associate; `inner` comes before it."""
    inner()
    v = w.some("real", lambda u: 0 < len(u.shape) <= 2 and max(u.shape) < 6)
    options = w.random.choice(("", ", reverse=True", f", axis={len(v.shape) - 1}"))
    choice = w.count(0, 3)
    if choice == 0:
        w.let(f"associative_scan(lambda a, b: a + b, {v.name}{options})", v.shape, bound=8.0)
    elif choice == 1:
        w.let(f"associative_scan(maximum, {w.use(v)}{options})", v.shape, bound=2.0)
    elif choice == 2:
        m = w.make("real", (v.shape[0], 2, 2))
        options = "" if "axis" in options else options
        w.let(f"associative_scan(matmul, {m.name}{options})", m.shape, bound=4.0)
    else:
        a, b = w.name("a"), w.name("b")
        with w.function([a, b]) as f:
            w.line(f'return {{"m": {a}["m"] * {b}["m"], "c": {b}["m"] * {a}["c"] + {b}["c"]}}')
        text = f'associative_scan({f}, {{"m": sin({v.name}), "c": cos({v.name})}}{options})["c"]'
        w.let(text, v.shape, bound=6.0)


# -- branches ---------------------------------------------------------------------------------


def branches(
    w: Writer, inner: Inner, n: int
) -> tuple[list[str], list[Value], list[Value], Pattern]:
    """Functions of the same operands and results: names, operands, results, the results' tree."""
    operands = arguments(w, w.count(0, 2), 12)
    kinds = ["real", *(k for k in ("int", "real") if w.chance(0.3))]
    types = [(k, (operands or [w.some()])[0].shape if k == "real" else ()) for k in kinds]
    tree = pattern(w, len(types))
    functions = []
    deep = w.count(0, n - 1)
    for i in range(n):
        new = [w.new(v.shape, v.kind, v.bound) for v in operands]
        with w.function(names(new), new) as f:
            if i == deep:
                inner()
            else:
                v = w.some()
                w.let(f"{w.random.choice(('sin', 'cos', 'square'))}({v.name})", v.shape)
            finish(w, types, tree)
        functions.append(f)
    return functions, operands, [w.new(shape, kind) for kind, shape in types], tree


def cond(w: Writer, inner: Inner) -> None:
    tested = w.some("bool") if w.chance(0.5) else None
    if tested is None:
        v = w.some()
        p = w.let(f"mean({w.use(v)}) > {w.random.choice(('0.0', '0.1', '-0.2'))}", (), "bool").name
    else:
        p = w.fit(tested, ())
    (yes, no), operands, results, tree = branches(w, inner, 2)
    given = "".join(f", {n}" for n in names(operands))
    w.unpack(tree, results, f"cond({p}, {yes}, {no}{given})")


def switch(w: Writer, inner: Inner) -> None:
    """The index may be out of range: it is clamped."""
    i = w.fit(w.some("int"), ())
    n = w.count(2, 3)
    i = f"{i} - 1" if w.chance(0.3) else f"{i} % {n + 1}"
    functions, operands, results, tree = branches(w, inner, n)
    given = "".join(f", {n}" for n in names(operands))
    w.unpack(tree, results, f"switch({i}, [{', '.join(functions)}]{given})")
