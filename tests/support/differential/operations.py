"""Single lines of the programs: operations on arrays."""

from __future__ import annotations

from collections.abc import Callable

from .writer import LARGEST, Pattern, Shape, Value, Writer, joined

UNARY = {  # text: what bounds the result, given what bounds the argument
    "sin({})": lambda b: 1.0,
    "cos({})": lambda b: 1.0,
    "tanh({})": lambda b: 1.0,
    "sigmoid({})": lambda b: 1.0,
    "erf({})": lambda b: 1.0,
    "arctan({})": lambda b: 1.5,
    "relu({})": lambda b: b,
    "gelu({})": lambda b: b,
    "silu({})": lambda b: b,
    "abs_({})": lambda b: b,
    "square({})": lambda b: b * b,
    "{} ** 3": lambda b: b**3,
    "exp(-square({}))": lambda b: 1.0,
    "exp({} - 1.0)": lambda b: 2.8,
    "sqrt(square({}) + 0.5)": lambda b: b + 0.8,
    "log(square({}) + 0.5)": lambda b: 1.6,
    "log1p(abs_({}))": lambda b: b,
    "expm1(0.5 * {})": lambda b: 1.8,
    "softplus({})": lambda b: b + 0.7,
    "-{}": lambda b: b,
    "0.5 * {} + 0.25": lambda b: 0.5 * b + 0.25,
    "{} - 0.5": lambda b: b + 0.5,
    "clip({}, -0.7, 0.6)": lambda b: 0.7,
    "{0} / (1.5 + square({0}))": lambda b: 1.0,
    "stop_gradient({})": lambda b: b,
    "sign({0}) * cos({0})": lambda b: 1.0,
    "floor(2.0 * {0}) * 0.25 + {0}": lambda b: 2 * b,
}

BINARY = {
    "{} + {}": lambda a, b: a + b,
    "{} - {}": lambda a, b: a + b,
    "{} * {}": lambda a, b: a * b,
    "maximum({}, {})": max,
    "minimum({}, {})": max,
    "logaddexp({}, {})": lambda a, b: max(a, b) + 0.7,
    "{} / (1.5 + square({}))": lambda a, b: a,
    "arctan2({}, 1.5 + square({}))": lambda a, b: 1.6,
    "sin({}) * cos({})": lambda a, b: 1.0,
}


def unary(w: Writer) -> None:
    v = w.some()
    text = w.random.choice(list(UNARY))
    w.let(text.format(w.use(v)), v.shape, bound=UNARY[text](min(v.bound, 2.0)))


def partner(w: Writer, v: Value, kind: str = "real") -> Value:
    """A variable that can be combined with another, and preferably is another."""
    other = w.pick(kind, lambda u: u.name != v.name and _small(joined(u.shape, v.shape)))
    return other or w.make(kind, v.shape)


def _small(shape: Shape | None) -> bool:
    size = 1
    for n in shape or ():
        size *= n
    return shape is not None and size <= LARGEST


def binary(w: Writer) -> None:
    a = w.some()
    b = partner(w, a)
    text = w.random.choice(list(BINARY))
    bound = BINARY[text](min(a.bound, 2.0), min(b.bound, 2.0))
    shape = joined(a.shape, b.shape)
    assert shape is not None
    w.let(text.format(w.use(a), w.use(b)), shape, bound=bound)


def mixed_kinds(w: Writer) -> None:
    a = w.some()
    b = partner(w, a, w.random.choice(("int", "bool")))
    shape = joined(a.shape, b.shape)
    assert shape is not None
    w.let(f"0.3 * {w.use(a)} * {b.name}", shape, bound=2.0)


def compare(w: Writer) -> None:
    kind = w.random.choice(("real", "real", "int"))
    a = w.some(kind)
    if w.chance(0.4):
        limit, shape = "0.1" if kind == "real" else "1", a.shape
    else:
        b = partner(w, a, kind)
        limit, shape = b.name, joined(a.shape, b.shape)
        assert shape is not None
    signs = ("<", ">", "<=", ">=") if kind == "real" else ("<", ">=", "==", "!=")
    w.let(f"{a.name} {w.random.choice(signs)} {limit}", shape, "bool")


def logic(w: Writer) -> None:
    a = w.some("bool")
    if w.chance(0.3):
        w.let(f"~{a.name}", a.shape, "bool")
        return
    b = partner(w, a, "bool")
    shape = joined(a.shape, b.shape)
    assert shape is not None
    w.let(f"{a.name} {w.random.choice('&|^')} {b.name}", shape, "bool")


def where(w: Writer) -> None:
    a = w.some()
    b = partner(w, a)
    shape = joined(a.shape, b.shape)
    assert shape is not None
    p = w.pick("bool", lambda u: joined(u.shape, shape) == shape) or w.make("bool", shape)
    bound = max(a.bound, b.bound)
    w.let(f"where({p.name}, {w.use(a)}, {w.use(b)})", shape, bound=min(bound, 2.0))


def integers(w: Writer) -> None:
    a = w.some("int")
    b = partner(w, a, "int")
    shape = joined(a.shape, b.shape)
    assert shape is not None
    text = w.random.choice(
        (
            "({} + {}) % 5", "({} - {}) % 5", "({} * {}) % 7",
            "floor_divide({} - 3, {} % 3 + 1) % 4", "remainder({} - 4, {} % 3 + 2)",
            "where({} > {}, 2, 1)", "abs_({} - {}) % 5",
        )
    )  # fmt: skip
    w.let(text.format(a.name, b.name), shape, "int")


def convert(w: Writer) -> None:
    choice = w.count(0, 3)
    if choice == 0:
        v = w.some("bool")
        w.let(f"integer({v.name})", v.shape, "int")
    elif choice == 1:
        v = w.some("int")
        w.let(f"0.25 * real({v.name})", v.shape, bound=2.0)
    elif choice == 2:
        v = w.some("bool")
        w.let(f"real({v.name})", v.shape)
    else:
        v = w.some()
        w.let(f"integer(floor({w.use(v)} * 3.0)) % 4", v.shape, "int")


def reduce(w: Writer) -> None:
    v = w.some("real", lambda u: bool(u.shape))
    name = w.random.choice(
        ("sum_", "sum_", "mean", "mean", "prod", "max_", "min_", "logsumexp", "var")
    )
    axis, keep = w.random.choice((None, *range(-1, len(v.shape)))), w.chance(0.3)
    if len(v.shape) == 3 and name != "prod" and w.chance(0.3):
        axis = (0, 2)
    axes = range(len(v.shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    gone = {a % len(v.shape) for a in axes}
    kept = name != "prod" or axis is not None  # torch.prod over all axes keeps none
    shape = tuple(
        1 if i in gone else n for i, n in enumerate(v.shape) if i not in gone or (keep and kept)
    )
    bound = {"sum_": 9.0, "prod": 9.0, "logsumexp": 9.0}.get(name, 2.0)
    options = f", axis={axis}" if axis is not None else ""
    options += ", keepdims=True" if keep and kept else ""
    w.let(f"{name}({w.use(v)}{options})", shape, bound=bound)


def reduce_others(w: Writer) -> None:
    name = w.random.choice(("argmax", "argmin", "sum_", "max_", "any_", "all_", "sum_", "mean"))
    kind = {"argmax": "real", "argmin": "real", "any_": "bool", "all_": "bool"}.get(name, "int")
    if name == "sum_" and w.chance(0.5):
        kind = "bool"
    v = w.some(kind, lambda u: bool(u.shape))
    axis = w.random.choice((None, *range(len(v.shape))))
    shape = () if axis is None else (*v.shape[:axis], *v.shape[axis + 1 :])
    text = f"{name}({v.name}{'' if axis is None else f', axis={axis}'})"
    if name == "mean":
        w.let(f"0.25 * {text}", shape, bound=2.0)
    else:
        w.let(text, shape, "bool" if name in ("any_", "all_") else "int")


def along_axis(w: Writer) -> None:
    v = w.some("real", lambda u: bool(u.shape))
    name = w.random.choice(
        (
            "cumsum", "cumsum", "cumprod", "cumsum", "softmax", "softmax", "log_softmax", "sort",
            "flip",
        )
    )  # fmt: skip
    bound = {"cumsum": 6.0, "cumprod": 6.0, "log_softmax": 6.0}.get(name, 2.0)
    axis = w.random.choice(range(-1, len(v.shape)))
    w.let(f"{name}({w.use(v)}, axis={axis})", v.shape, bound=bound)


def integers_along_axis(w: Writer) -> None:
    if w.chance(0.5):
        v = w.some("int", lambda u: bool(u.shape))
        name = w.random.choice(("cumsum({}, axis=-1) % 5", "sort({}, axis=0)", "flip({}, axis=0)"))
        w.let(name.format(v.name), v.shape, "int")
    else:
        v = w.some("real", lambda u: bool(u.shape))
        w.let(f"argsort({v.name}, axis=-1)", v.shape, "int")


def index(w: Writer) -> None:
    kind = w.random.choice(("real", "real", "real", "int", "bool"))
    v = w.some(kind, lambda u: bool(u.shape))
    n, rest = v.shape[0], v.shape[1:]
    choices: list[tuple[str, Shape]] = [
        (f"[{w.count(-n, n - 1)}]", rest),
        ("[1:]", (n - 1, *rest)),
        ("[:-1]", (n - 1, *rest)),
        ("[::2]", ((n + 1) // 2, *rest)),
        ("[None]", (1, *v.shape)),
        ("[..., 0]", v.shape[:-1]),
        ("[..., 1:]", (*v.shape[:-1], v.shape[-1] - 1)),
    ]
    if rest:
        choices += [("[:, -1]", (n, *rest[1:])), ("[1, 1:]", (rest[0] - 1, *rest[1:]))]
    choices = [(t, s) for t, s in choices if 0 not in s and len(s) <= 3]
    text, shape = w.random.choice([c for c in choices if n > 1 or c[0] != "[1, 1:]"])
    w.let(f"{w.use(v)}{text}", shape, v.kind, v.bound)


def gather(w: Writer) -> None:
    v = w.some("real", lambda u: bool(u.shape) and u.size <= 24)
    n, rest = v.shape[0], v.shape[1:]
    choice = w.count(0, 5)
    i = w.pick("int", lambda u: len(u.shape) == 1)
    if choice == 0:
        j = w.some("int", lambda u: not u.shape)
        w.let(f"pick({v.name}, {j.name} % {n})", rest, bound=v.bound)
    elif choice == 1 and i is not None:
        w.let(f"{v.name}[{i.name} % {n}]", (*i.shape, *rest), bound=v.bound)
    elif choice == 2:
        axis = w.count(0, len(v.shape) - 1)
        at = [w.count(0, v.shape[axis] - 1) for _ in range(3)]
        shape = (*v.shape[:axis], 3, *v.shape[axis + 1 :])
        w.let(f"take({v.name}, array({at}), axis={axis})", shape, bound=v.bound)
    elif choice == 3:
        k = w.pick("int", lambda u: u.shape == v.shape) or w.make("int", v.shape)
        text = f"take_along_axis({v.name}, {k.name} % {v.shape[-1]}, axis=-1)"
        w.let(text, v.shape, bound=v.bound)
    elif choice == 4 and v.shape[-1] > 1:
        shape = (*v.shape[:-1], 2)
        values, where = w.new(shape, bound=v.bound), w.new(shape, "int")
        w.unpack(Pattern("tuple", 2), [values, where], f"top_k({v.name}, 2)")
    else:
        at = [w.count(-n, n - 1) for _ in range(2)]
        w.let(f"{v.name}[array({at})]", (2, *rest), bound=v.bound)


def scatter(w: Writer) -> None:
    v = w.some("real", lambda u: bool(u.shape))
    n, rest = v.shape[0], v.shape[1:]
    if w.chance(0.5):
        at = w.random.sample(range(n), min(n, 2))
        name = "set_at"
    else:
        at = [w.count(0, n - 1) for _ in range(3)]
        name = "add_at"
    u = w.pick("real", lambda u: u.shape == rest)
    new = f"broadcast_to({w.use(u)}, {(len(at), *rest)})" if u else f"ones({(len(at), *rest)})"
    w.let(f"{name}({w.use(v)}, array({at}), {new})", v.shape, bound=4.0)


def one_hot(w: Writer) -> None:
    i = w.some("int", lambda u: len(u.shape) < 2)
    w.let(f"one_hot({i.name} % 4, 4)", (*i.shape, 4))


def reshape(w: Writer) -> None:
    v = w.some(w.random.choice(("real", "real", "real", "int")), lambda u: u.size > 1)
    choice, rank = w.count(0, 8), len(v.shape)
    if choice == 0:
        w.let(f"reshape({v.name}, (-1,))", (v.size,), v.kind, v.bound)
    elif choice == 1:
        shapes = [s for s in ((2, 3), (3, 2), (2, 2), (4, 3), (2, 6)) if s[0] * s[1] == v.size]
        shape = w.random.choice(shapes or [(v.size, 1)])
        w.let(f"reshape({v.name}, {shape})", shape, v.kind, v.bound)
    elif choice == 2:
        order = list(range(len(v.shape)))
        w.random.shuffle(order)
        shape = tuple(v.shape[i] for i in order)
        w.let(f"transpose({v.name}, {tuple(order)})", shape, v.kind, v.bound)
    elif choice == 3 and rank > 1:
        shape = (*v.shape[:-2], v.shape[-1], v.shape[-2])
        w.let(f"swapaxes({v.name}, -1, -2)", shape, v.kind, v.bound)
    elif choice == 4 and rank < 3:
        w.let(f"expand_dims({v.name}, 1)", (v.shape[0], 1, *v.shape[1:]), v.kind, v.bound)
    elif choice == 5 and v.size * 2 <= LARGEST and rank < 3:
        w.let(f"broadcast_to({v.name}, {(2, *v.shape)})", (2, *v.shape), v.kind, v.bound)
    elif choice == 6 and v.kind == "real":
        w.let(f"pad({w.use(v)}, 1, 0)", (*v.shape[:-1], v.shape[-1] + 1), bound=v.bound)
    elif choice == 7 and v.size * 2 <= LARGEST:
        shape = (*v.shape[:-1], v.shape[-1] * 2)
        w.let(f"tile({v.name}, {(*(1 for _ in v.shape[1:]), 2)})", shape, v.kind, v.bound)
    elif 1 in v.shape:
        axis = v.shape.index(1)
        shape = (*v.shape[:axis], *v.shape[axis + 1 :])
        w.let(f"squeeze({v.name}, {axis})", shape, v.kind, v.bound)
    elif len(v.shape) == 2 and v.kind == "real":
        w.let(f"tril({w.use(v)})", v.shape, bound=v.bound)
    else:
        w.let(f"flip({v.name}, axis=0)", v.shape, v.kind, v.bound)


def combine(w: Writer) -> None:
    a = w.some("real", lambda u: len(u.shape) > 0 and u.size * 2 <= LARGEST)
    b = w.pick("real", lambda u: u.shape == a.shape and u.name != a.name) or w.make("real", a.shape)
    if w.chance(0.5) and len(a.shape) < 3:
        axis = w.count(-1, len(a.shape))
        shape = list(a.shape)
        shape.insert(axis if axis >= 0 else len(shape), 2)
        w.let(f"stack([{w.use(a)}, {w.use(b)}], {axis})", tuple(shape), bound=2.0)
    else:
        axis = w.count(-1, len(a.shape) - 1)
        shape = list(a.shape)
        shape[axis] *= 2
        w.let(f"concat([{w.use(a)}, {w.use(b)}], {axis})", tuple(shape), bound=2.0)


def product(w: Writer) -> None:
    a = w.some("real", lambda u: len(u.shape) in (1, 2))
    n = a.shape[-1]
    choice = w.count(0, 4)
    if choice == 0:
        b = w.pick("real", lambda u: len(u.shape) == 2 and u.shape[0] == n)
        b = b or w.make("real", (n, 3))
        shape = (*a.shape[:-1], b.shape[1])
        w.let(f"{w.use(a)} @ {w.use(b)} / {float(n)}", shape, bound=2.0)
    elif choice == 1:
        b = w.pick("real", lambda u: u.shape == (n,)) or w.make("real", (n,))
        w.let(f"matmul({w.use(a)}, {w.use(b)}) * 0.5", a.shape[:-1], bound=2.0)
    elif choice == 2 and len(a.shape) == 1 and n <= 6:
        b = w.pick("real", lambda u: len(u.shape) == 1 and u.size <= 6) or w.make("real", (3,))
        w.let(f"outer({w.use(a)}, {w.use(b)})", (n, b.size), bound=2.0)
    elif choice == 3:
        b = w.make("real", (2, n, 2))
        left = "i" if len(a.shape) == 1 else "hi"
        shape = (2, *a.shape[:-1], 2)
        w.let(
            f'einsum("{left},bij->b{left[:-1]}j", {w.use(a)}, {b.name}) / {n}.0', shape, bound=2.0
        )
    elif len(a.shape) == 2:
        b = w.pick("real", lambda u: u.shape == a.shape) or w.make("real", a.shape)
        w.let(f'einsum("ij,ij->j", {w.use(a)}, {w.use(b)}) * 0.5', a.shape[1:], bound=2.0)
    else:
        b = w.pick("real", lambda u: u.shape == a.shape) or w.make("real", a.shape)
        w.let(f'einsum("i,i->", {w.use(a)}, {w.use(b)}) * 0.5', (), bound=2.0)


OPERATIONS: dict[Callable[[Writer], None], int] = {  # and how often
    unary: 8, binary: 9, mixed_kinds: 1, compare: 2, logic: 1, where: 3, integers: 2, convert: 2,
    reduce: 4, reduce_others: 2, along_axis: 4, integers_along_axis: 1, index: 4, gather: 3,
    scatter: 2, one_hot: 1, reshape: 4, combine: 3, product: 5,
}  # fmt: skip


def operation(w: Writer) -> None:
    """Write one operation on variables in scope."""
    (chosen,) = w.random.choices(list(OPERATIONS), list(OPERATIONS.values()))
    chosen(w)
