"""Programs with `shard_map`, after those in JAX's documentation, for whoever has its functions.

`tests/record/shard_map.py` runs them with jax, `test_shard_map.py` with xfunc. `n` has functions:
``shard_map P mesh psum ... grad jvp vmap scan where tanh arange concatenate`` and so on, under
JAX's names; arrays are float64 and know ``@ + * sum mean reshape T``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

DIGITS = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 1, 2)


def iota(n: Any, *shape: int) -> Any:
    size = 1
    for k in shape:
        size *= k
    return n.arange(size).reshape(*shape) / size


def blockwise(n: Any) -> dict[str, Callable[[], Any]]:
    """Specs, and what devices see and return."""
    P, mesh = n.P, n.mesh((4, 2), ("i", "j"))
    x = iota(n, 12, 12)
    one = n.arange(1).reshape(1, 1) + 3

    def tile(spec: Any) -> Any:
        return n.shard_map(lambda: one, mesh, (), spec, check_vma=False)()

    def matmul(a: Any, b: Any) -> Any:
        def block(u: Any, v: Any) -> Any:
            return n.psum(u @ v, "j")

        return n.shard_map(block, mesh, (P("i", "j"), P("j", None)), P("i", None))(a, b)

    def scattered(a: Any, b: Any) -> Any:
        def block(u: Any, v: Any) -> Any:
            return n.psum_scatter(u @ v, "j", scatter_dimension=1, tiled=True)

        return n.shard_map(block, mesh, (P("i", "j"), P("j", None)), P("i", "j"))(a, b)

    def map_of(spec: Any, f: Any, out: Any) -> Any:
        return n.shard_map(f, mesh, spec, out)(x)

    a, b = iota(n, 8, 16), iota(n, 16, 4)
    return {
        "blocks": lambda: map_of(P("i", "j"), lambda u: u * u.sum(), P("i", "j")),
        "rows": lambda: map_of(P("i", None), lambda u: u * u.sum(), P("i")),
        "both axes": lambda: map_of(P(None, ("i",)), lambda u: u - u.mean(), P(None, "i")),
        "tuple": lambda: n.shard_map(
            lambda u: u * u.sum(), mesh, P(("i", "j")), P(("i", "j"))
        )(iota(n, 16)),
        "tuple the other way": lambda: n.shard_map(
            lambda u: u * 2.0, mesh, P(("j", "i")), P(("i", "j"))
        )(iota(n, 16)),
        "transposed": lambda: map_of(P("j", None), lambda u: u.T * 2, P(None, "j")),
        "tiled by two": lambda: tile(P("i", "j")),
        "tiled by one": lambda: tile(P("i", None)),
        "not tiled": lambda: tile(P(None, None)),
        "matmul psum": lambda: matmul(a, b),
        "matmul psum_scatter": lambda: scattered(a, b),
        "gradient of matmul": lambda: n.grad(lambda u: (matmul(u, b) ** 2).sum())(a),
        "gradient of scattered": lambda: n.grad(lambda v: (scattered(a, v) ** 2).sum())(b),
        "index": lambda: n.shard_map(
            lambda: (n.axis_index("i") * 10 + n.axis_index("j")).reshape(1, 1) * 1.0,
            mesh, (), P("i", "j"),
        )(),
        "index of a tuple": lambda: n.shard_map(
            lambda: n.axis_index(("j", "i")).reshape(1, 1) * 1.0, mesh, (), P("i", "j")
        )(),
    }  # fmt: skip


def collectives(n: Any) -> dict[str, Callable[[], Any]]:
    """One collective each, on a mesh of one axis."""
    P, mesh = n.P, n.mesh((8,), ("i",))
    x = n.asarray(DIGITS) * 1.0

    def run(f: Any, out: Any, v: Any = x, **options: Any) -> Any:
        return n.shard_map(f, mesh, P("i"), out, **options)(v)

    def ring_scatter(v: Any) -> Any:
        """A sum that is scattered, by sending partial sums around."""
        size = n.axis_size("i")
        v = v.reshape(size, -1)
        k = n.axis_index("i")
        total = n.take(v, (k + size - 1) % size)
        for step in range(1, size):
            total = n.ppermute(total, "i", [(j, (j + 1) % size) for j in range(size)])
            total = total + n.take(v, (k + size - 1 - step) % size)
        return total

    wide = iota(n, 64)
    shift = [(j, (j + 1) % 8) for j in range(8)]
    return {
        "psum": lambda: run(lambda v: n.psum(v, "i"), P(None)),
        "psum of a constant": lambda: run(lambda v: v * n.psum(1, "i"), P("i")),
        "pmean": lambda: run(lambda v: n.pmean(v, "i"), P()),
        "pmax": lambda: run(lambda v: n.pmax(v, "i"), P()),
        "pmin": lambda: run(lambda v: n.pmin(v, "i"), P()),
        "all_gather": lambda: run(lambda v: n.all_gather(v, "i", tiled=True), P("i")),
        "all_gather stacked": lambda: run(lambda v: n.all_gather(v, "i"), P("i")),
        "all_gather axis 1": lambda: run(
            lambda v: n.all_gather(v, "i", axis=1), P(), check_vma=False
        ),
        "psum_scatter": lambda: run(lambda v: n.psum_scatter(v, "i", tiled=True), P("i"), wide),
        "psum_scatter rows": lambda: run(
            lambda v: n.psum_scatter(v.reshape(8, 1), "i"), P("i"), wide
        ),
        "psum_scatter by hand": lambda: run(ring_scatter, P("i"), wide),
        "ppermute": lambda: run(lambda v: n.ppermute(v, "i", shift), P("i")),
        "ppermute of some": lambda: run(lambda v: n.ppermute(v, "i", [(0, 1), (5, 0)]), P("i")),
        "all_to_all": lambda: run(
            lambda v: n.all_to_all(v, "i", split_axis=0, concat_axis=0, tiled=True), P("i"), wide
        ),
        "all_to_all stacked": lambda: run(
            lambda v: n.all_to_all(v.reshape(8, 1), "i", split_axis=0, concat_axis=1), P("i"), wide
        ),
        "gradient of all_gather": lambda: n.grad(
            lambda v: (run(lambda u: n.all_gather(u, "i", tiled=True) * u.sum(), P("i"), v)).sum()
        )(x),
        "gradient of a mean": lambda: n.grad(
            lambda v: run(lambda u: n.pmean((u * u).sum(), "i"), P(), v)
        )(x),
        "gradient of ppermute": lambda: n.grad(
            lambda v: (run(lambda u: n.ppermute(u, "i", [(0, 1), (5, 0)]) * u, P("i"), v)).sum()
        )(x),
        "gradient of all_to_all": lambda: n.grad(
            lambda v: (
                run(lambda u: n.all_to_all(u, "i", 0, 0, tiled=True) * u, P("i"), v) ** 2
            ).sum()
        )(wide),
        "jvp of psum_scatter": lambda: n.jvp(
            lambda v: run(lambda u: n.psum_scatter(u * u, "i", tiled=True), P("i"), v),
            (wide,), (wide + 1,),
        )[1],
        "vmap": lambda: n.vmap(lambda v: run(lambda u: n.psum(u, "i") * u, P("i"), v))(
            wide.reshape(4, 16)
        ),
    }  # fmt: skip


def matmuls(n: Any) -> dict[str, Callable[[], Any]]:
    """Products whose operands are divided, communicating all at once or step by step."""
    P, mesh = n.P, n.mesh((8,), ("i",))
    a, b = iota(n, 16, 8), iota(n, 8, 16) + 1

    def gathered(u: Any, v: Any) -> Any:
        return n.all_gather(u, "i", tiled=True) @ v

    def overlapped(u: Any, v: Any) -> Any:
        size, k = n.axis_size("i"), n.axis_index("i")
        rows = u.shape[0]
        parts = []
        for _ in range(size):
            parts.append(u @ v)
            u = n.ppermute(u, "i", [(j, (j + 1) % size) for j in range(size)])
        stack = n.stack(parts)  # of part k, k - 1, ...
        order = (k - n.arange(size)) % size
        return n.take(stack, order).reshape(size * rows, -1)

    def scattered(u: Any, v: Any) -> Any:
        return n.psum_scatter(u @ v, "i", tiled=True)

    def columns(f: Any) -> Any:
        return n.shard_map(f, mesh, (P("i", None), P(None, "i")), P(None, "i"))

    def contracted(f: Any) -> Any:
        return n.shard_map(f, mesh, (P(None, "i"), P("i", None)), P("i", None))

    def rate(f: Any) -> Any:
        return n.grad(lambda u: (n.tanh(f(u, b)) ** 2).sum())(a)

    return {
        "gathered": lambda: columns(gathered)(a, b),
        "overlapped": lambda: columns(overlapped)(a, b),
        "scattered": lambda: contracted(scattered)(a, b),
        "gradient of gathered": lambda: rate(columns(gathered)),
        "gradient of overlapped": lambda: rate(columns(overlapped)),
        "gradient of scattered": lambda: rate(contracted(scattered)),
    }


def networks(n: Any) -> dict[str, Callable[[], Any]]:
    """The loss and gradients of a network, its data and weights divided in several ways."""
    P = n.P
    one, two = n.mesh((8,), ("data",)), n.mesh((4, 2), ("data", "model"))
    sizes = [8, 16, 16, 8]
    params = [
        {"w": n.tanh(iota(n, i, o) - 0.5) / 2, "b": iota(n, o) / 3}
        for i, o in itertools.pairwise(sizes)
    ]
    batch = {"x": n.tanh(iota(n, 16, 8) - 0.3), "y": iota(n, 16, 8)}

    def predict(ps: Any, x: Any) -> Any:
        for p in ps:
            x = n.tanh(x @ p["w"] + p["b"])
        return x

    def error(out: Any, y: Any) -> Any:
        return ((out - y) ** 2).sum(-1).mean()

    def alone(ps: Any) -> Any:
        return error(predict(ps, batch["x"]), batch["y"])

    def data(ps: Any) -> Any:
        def loss(local: Any) -> Any:  # closes over the weights
            return n.pmean(error(predict(ps, local["x"]), local["y"]), "data")

        return n.shard_map(loss, one, P("data"), P())(batch)

    def fsdp(ps: Any) -> Any:
        def loss(local_ps: Any, local: Any) -> Any:
            x = local["x"]
            for p in local_ps:
                w = n.all_gather(p["w"], "data", tiled=True)
                x = n.tanh(x @ w + n.all_gather(p["b"], "data", tiled=True))
            return n.pmean(error(x, local["y"]), "data")

        return n.shard_map(loss, one, (P("data"), P("data")), P())(ps, batch)

    def tensor(ps: Any) -> Any:
        def loss(local_ps: Any, local: Any) -> Any:
            x = local["x"]  # [batch, features / model]
            for p in local_ps:
                x = n.psum_scatter(x @ p["w"], "model", scatter_dimension=1, tiled=True)
                x = n.tanh(x + p["b"])
            return n.psum(error(x, local["y"]), "model")

        specs = [{"w": P("model", None), "b": P("model")} for _ in ps]
        inside = n.shard_map(loss, two, (specs, P(None, "model")), P())
        return inside(ps, batch)

    def both(ps: Any) -> Any:
        def loss(local_ps: Any, local: Any) -> Any:
            x = local["x"]
            for p in local_ps:
                w = n.all_gather(p["w"], "data", tiled=True)
                b = n.all_gather(p["b"], "data", tiled=True)
                x = n.psum_scatter(x @ w, "model", scatter_dimension=1, tiled=True)
                x = n.tanh(x + b)
            return n.pmean(n.psum(error(x, local["y"]), "model"), "data")

        divided = P(("model", "data"))
        return n.shard_map(loss, two, (divided, P("data", "model")), P())(ps, batch)

    def pipeline(ps: Any) -> Any:
        """The middle layers, one for each device, and parts of the batch going through them."""
        weights = n.stack([n.tanh(iota(n, 8, 8) * (k + 1) / 8) / 3 for k in range(8)])
        first = n.concatenate([ps[0]["w"][:, :8]], 0)

        def stage(w: Any, x: Any) -> Any:
            size, k = n.axis_size("data"), n.axis_index("data")
            rows = x.shape[0] // size
            state, outs = x[:rows] * 0 + w[0, :1] * 0, []
            for step in range(2 * size - 1):
                fed = x[rows * min(step, size - 1) : rows * (min(step, size - 1) + 1)]
                state = n.tanh(n.where(k == 0, fed, state) @ w[0])
                outs.append(state)
                state = n.ppermute(state, "data", [(i, (i + 1) % size) for i in range(size)])
            out = n.concatenate(outs[size - 1 :], 0)
            return n.psum(n.where(k == size - 1, out, out * 0), "data")

        run = n.shard_map(stage, one, (P("data"), P()), P())
        return error(run(weights * ps[0]["b"][:8], batch["x"] @ first), batch["y"])

    found: dict[str, Callable[[], Any]] = {}
    for f in (alone, data, fsdp, tensor, both, pipeline):
        found[f.__name__] = lambda f=f: f(params)
        found[f"gradient of {f.__name__}"] = lambda f=f: n.grad(f)(params)
    return found


def examples(n: Any) -> dict[str, Callable[[], Any]]:
    """Where an axis of the mesh divides the examples of a vmap."""
    P, mesh = n.P, n.mesh((4, 2), ("i", "j"))
    w, xs = iota(n, 4, 4), iota(n, 8, 4, 4)

    def of_one(w: Any, x: Any) -> Any:
        return n.psum(n.tanh(x @ w).sum(), "i")

    def tall(w: Any, x: Any) -> Any:
        return n.tanh(x @ w)

    def over(f: Any, out: Any, in_axes: Any = (None, 0), out_axes: Any = 0) -> Any:
        mapped = n.shard_map(f, mesh, (P(), P("i")), out)
        return n.vmap(mapped, in_axes=in_axes, out_axes=out_axes, spmd_axis_name="j")

    loss = over(of_one, P())
    return {
        "value": lambda: loss(w, xs),
        "divided": lambda: over(tall, P("i"))(w, xs),
        "axes": lambda: over(tall, P("i"), (None, 1), 2)(w, xs.reshape(4, 8, 4)),
        "gradients": lambda: n.grad(lambda w, xs: loss(w, xs).sum(), (0, 1))(w, xs),
        "tangents": lambda: n.jvp(loss, (w, xs), (w * 2, xs)),
        "all axes": lambda: n.vmap(
            n.shard_map(tall, mesh, (P(), P()), P()), in_axes=(None, 0), spmd_axis_name=("i", "j")
        )(w, xs),
    }


def programs(n: Any) -> dict[str, Callable[[], Any]]:
    """All of them by name."""
    found = {}
    for group in (blockwise, collectives, matmuls, networks, examples):
        found |= {f"{group.__name__}: {k}": f for k, f in group(n).items()}
    return found
