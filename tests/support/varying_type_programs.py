"""Programs that take gradients in the function of a `shard_map`: see `shard_map_programs.py`.

Where one device can do the same alone, ``NAME alone`` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.shard_map_programs import iota

RING = [(j, (j + 1) % 8) for j in range(8)]


def networks(n: Any) -> dict[str, Callable[[], Any]]:
    """Gradients of what devices do together, taken inside."""
    P = n.P
    one, two = n.mesh((8,), ("i",)), n.mesh((4, 2), ("data", "model"))
    x, y = n.tanh(iota(n, 16, 8) - 0.3), iota(n, 16, 8)
    w1, w2 = n.tanh(iota(n, 8, 16) - 0.5), n.tanh(iota(n, 16, 8) - 0.4)

    def error(out: Any, target: Any) -> Any:
        return ((out - target) ** 2).sum()

    def alone(a: Any, b: Any) -> Any:
        return error(n.tanh(x @ a) @ b, y)

    def tensor(a: Any, b: Any) -> Any:
        return error(n.psum(n.tanh(x @ a) @ b, "i"), y)

    def megatron(**options: Any) -> Any:
        specs = P(None, "i"), P("i", None)
        return n.shard_map(n.grad(tensor, argnums=(0, 1)), one, specs, specs, **options)(w1, w2)

    def both(a: Any, b: Any, xs: Any, ys: Any) -> Any:
        def loss(a: Any, b: Any) -> Any:
            h = n.psum(n.tanh(xs @ a) @ b, "model")
            return n.psum(error(h, ys), "data")

        return n.value_and_grad(loss, argnums=(0, 1))(a, b)

    def two_axes(a: Any, b: Any) -> Any:
        weights = P(None, "model"), P("model", None)
        specs = (*weights, P("data"), P("data"))
        return n.shard_map(both, two, specs, (P(), weights))(a, b, x, y)

    def data(a: Any, b: Any) -> Any:
        """The sum over devices is put in: of a loss that varies, by parameters that do not."""

        def local(a: Any, b: Any, xs: Any, ys: Any) -> Any:
            return n.grad(lambda a, b: error(n.tanh(xs @ a) @ b, ys), argnums=(0, 1))(a, b)

        return n.shard_map(local, one, (P(), P(), P("i"), P("i")), P())(a, b, x, y)

    def training(a: Any, b: Any) -> Any:
        def local(a: Any, b: Any, xs: Any, ys: Any) -> Any:
            def loss(p: Any) -> Any:
                return n.pmean(error(n.tanh(xs @ p[0]) @ p[1], ys), "i")

            def step(p: Any, _: Any) -> Any:
                value, g = n.value_and_grad(loss)(p)
                return (p[0] - 0.01 * g[0], p[1] - 0.01 * g[1]), value

            return n.scan(step, (a, b), n.arange(3))

        return n.shard_map(local, one, (P(), P(), P("i"), P("i")), P())(a, b, x, y)

    def training_alone(a: Any, b: Any) -> Any:
        def step(p: Any, _: Any) -> Any:
            value, g = n.value_and_grad(lambda p: alone(*p) / 8)(p)
            return (p[0] - 0.01 * g[0], p[1] - 0.01 * g[1]), value

        return n.scan(step, (a, b), n.arange(3))

    def some_axes(a: Any, b: Any) -> Any:
        f = n.shard_map(
            n.grad(lambda a, b: error(n.psum(n.tanh(x @ a) @ b, "model"), y), argnums=(0, 1)),
            two,
            (P(None, "model"), P("model", None)),
            (P(None, "model"), P("model", None)),
            axis_names={"model"},
        )
        return n.jit(f)(a, b)

    gradients = n.grad(alone, argnums=(0, 1))
    squares = [lambda f=f: n.grad(lambda a: sum((g**2).sum() for g in f(a, w2)))(w1)
               for f in (data, gradients)]  # fmt: skip
    return {
        "megatron": megatron,
        "megatron unchecked": lambda: megatron(check_vma=False),
        "megatron alone": lambda: gradients(w1, w2),
        "two axes": lambda: two_axes(w1, w2),
        "two axes alone": lambda: n.value_and_grad(alone, argnums=(0, 1))(w1, w2),
        "data": lambda: data(w1, w2),
        "data alone": lambda: gradients(w1, w2),
        "training": lambda: training(w1, w2),
        "training alone": lambda: training_alone(w1, w2),
        "some axes": lambda: some_axes(w1, w2),
        "some axes alone": lambda: gradients(w1, w2),
        "gradient outside and inside": squares[0],
        "gradient outside and inside alone": squares[1],
        "tangent": lambda: n.jvp(lambda a: data(a, w2), (w1,), (w1 * 2,))[1],
        "tangent alone": lambda: n.jvp(lambda a: gradients(a, w2), (w1,), (w1 * 2,))[1],
        "vmap": lambda: n.vmap(data)(n.stack([w1, w1 * 2]), n.stack([w2, w2 + 1])),
        "vmap alone": lambda: n.vmap(gradients)(n.stack([w1, w1 * 2]), n.stack([w2, w2 + 1])),
    }


def mixtures(n: Any) -> dict[str, Callable[[], Any]]:
    """Ring attention, and a mixture of experts."""
    P, mesh = n.P, n.mesh((8,), ("i",))
    q, k, v = (n.tanh(iota(n, 16, 4) * s - 0.5) for s in (1, 2, 3))

    def weighted(q: Any, k: Any, v: Any) -> Any:
        w = n.exp(q @ k.T)
        return w @ v, w.sum(-1)

    def attention(q: Any, k: Any, v: Any) -> Any:
        top, bottom = weighted(q, k, v)
        return ((top / bottom.reshape(-1, 1)) ** 2).sum()

    def ring(q: Any, k: Any, v: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            k, v, top, bottom = carry
            t, b = weighted(q, k, v)
            k, v = (n.ppermute(u, "i", RING) for u in (k, v))
            return (k, v, top + t, bottom + b), None

        start = n.zeros_like(q), n.zeros_like(q[:, 0])
        _, _, top, bottom = n.scan(step, (k, v, *start), n.arange(8))[0]
        return n.psum(((top / bottom.reshape(-1, 1)) ** 2).sum(), "i")

    def inside(f: Any) -> Any:
        specs = (P("i"), P("i"), P("i"))
        return n.shard_map(n.grad(f, argnums=(0, 1, 2)), mesh, specs, specs)(q, k, v)

    tokens, experts = n.tanh(iota(n, 64, 4) - 0.3), n.tanh(iota(n, 8, 4, 4) - 0.5)
    gate = n.tanh(iota(n, 4) - 0.2)

    def moe(x: Any, w: Any, g: Any) -> Any:
        """Each device sends one of its tokens to each expert; all devices share the gate."""
        sent = n.all_to_all(n.tanh(x * g), "i", 0, 0, tiled=True)
        back = n.all_to_all(n.tanh(sent @ w[0]), "i", 0, 0, tiled=True)
        return (back**2 * x).sum()

    def moe_alone(x: Any, w: Any, g: Any) -> Any:
        out = [n.tanh(n.tanh(x.reshape(8, 8, 4)[:, e] * g) @ w[e]) for e in range(8)]
        return (n.stack(out, 1).reshape(64, 4) ** 2 * x).sum()

    def experts_inside() -> Any:
        specs = (P("i"), P("i"), P())
        f = n.grad(moe, argnums=(0, 1, 2))
        return n.shard_map(f, mesh, specs, specs)(tokens, experts, gate)

    return {
        "ring": lambda: inside(ring),
        "ring, checkpointed": lambda: inside(n.checkpoint(ring)),
        "ring alone": lambda: n.grad(attention, argnums=(0, 1, 2))(q, k, v),
        "experts": experts_inside,
        "experts alone": lambda: n.grad(moe_alone, argnums=(0, 1, 2))(tokens, experts, gate),
    }


def small(n: Any) -> dict[str, Callable[[], Any]]:
    """One question each. `w` does not vary, `v` does."""
    P, mesh = n.P, n.mesh((8,), ("i",))
    w, v = iota(n, 2) + 1, iota(n, 16) + 0.5
    found: dict[str, Callable[[], Any]] = {}

    def add(name: str, f: Any, out: Any = None, **options: Any) -> None:
        found[name] = lambda: n.shard_map(f, mesh, (P(), P("i")), out or P(), **options)(w, v)

    def varying(w: Any, v: Any) -> Any:
        return (w * w * v).sum()

    def shared(w: Any, v: Any) -> Any:
        """Both what varies and what does not depends on `w`."""
        return n.psum(varying(w, v), "i") * w.sum() + (w**3).sum()

    for f in (varying, shared):
        add(f"{f.__name__} by w", n.grad(f))
        add(f"{f.__name__} by v", n.grad(f, argnums=1), P("i"))
        add(f"{f.__name__} unchecked", n.grad(f, argnums=(0, 1)), P("i"), check_vma=False)
        add(f"{f.__name__} twice", n.grad(lambda w, v, f=f: n.grad(f)(w, v).sum()))
        add(
            f"{f.__name__} along",
            lambda w, v, f=f: n.jvp(n.grad(f), (w, v), (w * 2, v * 3))[1],
            P("i"),
        )
        add(f"{f.__name__} Jacobian", n.jacrev(lambda w, v, f=f: n.stack([f(w, v)] * 2)))
        add(f"{f.__name__} Hessian", n.hessian(f))
        add(f"{f.__name__} in jit", n.jit(n.grad(f)))
        add(f"{f.__name__} in checkpoint", n.grad(n.checkpoint(f)))
        add(
            f"{f.__name__} in vmap",
            lambda w, v, f=f: n.vmap(n.grad(f), (0, None))(n.stack([w, w + 1]), v),
        )
        add(
            f"{f.__name__} around vmap",
            n.grad(lambda w, v, f=f: n.vmap(f, (None, 0))(w, n.stack([v, v + 1])).sum()),
        )

    for kind in ("psum", "pmean"):
        reduce = getattr(n, kind)
        add(f"{kind} by v", n.grad(lambda w, v, r=reduce: r((v * w).sum(), "i"), 1), P("i"))
        add(f"{kind} of what does not vary", n.grad(lambda w, v, r=reduce: r(w.sum(), "i")))
    add("made varying", n.grad(lambda w, v: (n.pvary(w, "i") ** 2).sum()))
    add("by what varies", lambda w, v: n.grad(lambda u: (u * u * w).sum())(n.pvary(w, "i")), P("i"))
    add("by zeros", lambda w, v: n.grad(lambda z: (v * (v + z)).sum())(n.zeros_like(v)), P("i"))
    add("all_gather", n.grad(lambda w, v: (n.all_gather(v, "i") ** 2).sum(), 1), P("i"))
    add(
        "all_gather_invariant",
        n.grad(lambda w, v: (n.all_gather_invariant(v, "i") ** 2 * w).sum(), (0, 1)),
        (P(), P("i")),
    )
    add("place", n.grad(lambda w, v: (w * (n.axis_index("i") + 1)).sum()))
    add("psum_scatter", n.grad(
        lambda w, v: (n.psum_scatter(n.concatenate([w * w] * 4, 0), "i", tiled=True) * v[0]).sum()
    ))  # fmt: skip
    add("pullback", lambda w, v: n.vjp(lambda w: n.psum(w * v, "i"), w)[1](w)[0])
    add("pullback of both", lambda w, v: n.vjp(lambda w, u: w * u, w, v)[1](v), (P(), P("i")))
    add("branches", n.grad(lambda w, v: n.cond(
        w.sum() > 2, lambda w, v: n.psum(w * v, "i"), lambda w, v: w, w, v).sum()
    ))  # fmt: skip

    def inner(c: Any, v: Any) -> Any:
        return n.scan(lambda c, a: (n.tanh(n.psum(c * a * v, "i") + c), None), c, n.arange(3))[0]

    def nested(w: Any, v: Any) -> Any:
        return n.scan(lambda c, a: (inner(c, v) * a, None), w, n.arange(2) + 1)[0].sum()

    add("nested scans", n.grad(nested, (0, 1)), (P(), P("i")))

    def custom(bwd: Any) -> Any:
        @n.custom_vjp
        def f(w: Any, v: Any) -> Any:
            return n.psum((w * v).sum(), "i")

        f.defvjp(lambda w, v: (f(w, v), (w, v)), bwd)
        return f

    rule = custom(lambda r, ct: (n.psum(ct * r[1], "i") * 3, ct * r[0] * 5))
    add("rule", n.grad(lambda w, v: rule(w, v) ** 2, (0, 1)), (P(), P("i")))
    add("rule of a sum that varies", n.grad(lambda w, v: rule(w, v) * v[0], (0, 1)), (P(), P("i")))
    add("rule in a scan", n.grad(lambda w, v: n.scan(
        lambda c, a: (c * 0.1 + rule(w * a, v), None), w.sum(), n.arange(3)
    )[0], (0, 1)), (P(), P("i")))  # fmt: skip
    add("rule twice", n.grad(lambda w, v: n.grad(lambda w: rule(w, v) ** 2)(w).sum()))
    found["rule from outside"] = lambda: n.grad(
        lambda w, v: n.shard_map(rule, mesh, (P(), P("i")), P())(w, v) ** 2, (0, 1)
    )(w, v)
    return found


def typed_programs(n: Any) -> dict[str, Callable[[], Any]]:
    """All of them by name."""
    found = {}
    for group in (networks, mixtures, small):
        found |= {f"inside {group.__name__}: {k}": f for k, f in group(n).items()}
    return found
