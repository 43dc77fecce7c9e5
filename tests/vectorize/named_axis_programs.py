"""Programs with `vmap` over named axes, for whoever has JAX's functions, as attributes of `n`.

`tests/record/shard_map.py` runs them with jax, `test_named_axes.py` with xfunc.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# The first two end in an error. Of a branch that is taken for each example, JAX leaves out what the
# examples that take the other one contribute to a sum.
JAX_CANNOT = (
    "one_axis: gradient inside of all_to_all",
    "arrangements: gradient of rule",
    "arrangements: gradient of branch of each",
    "arrangements: gradient inside of branch of each",
)
ROUND = [(0, 1), (1, 2), (2, 3), (3, 0)]


def iota(n: Any, *shape: int) -> Any:
    size = 1
    for k in shape:
        size *= k
    return n.arange(size).reshape(*shape) / size


def one_axis(n: Any) -> dict[str, Callable[[], Any]]:
    """Each collective of what varies: its value, and derivatives from outside and inside."""
    x = n.tanh(iota(n, 4, 8) - 0.4) + 1
    collectives = {
        "psum": lambda a: n.psum(a, "k"),
        "pmean": lambda a: n.pmean(a, "k"),
        "all_gather": lambda a: n.all_gather(a, "k"),
        "all_gather along 1": lambda a: n.all_gather(a, "k", axis=1),
        "all_gather tiled": lambda a: n.all_gather(a, "k", tiled=True),
        "psum_scatter": lambda a: n.psum_scatter(a.reshape(4, 2), "k"),
        "psum_scatter tiled": lambda a: n.psum_scatter(a, "k", tiled=True),
        "ppermute": lambda a: n.ppermute(a, "k", ROUND),
        "all_to_all": lambda a: n.all_to_all(a.reshape(4, 2), "k", 0, 1),
        "all_to_all tiled": lambda a: n.all_to_all(a, "k", 0, 0, tiled=True),
        "place": lambda a: a * n.axis_index("k"),
        "size": lambda a: a * n.axis_size("k"),
        "of a number": lambda a: a * n.psum(2, "k"),
    }
    found: dict[str, Callable[[], Any]] = {}

    def add(name: str, f: Any) -> None:
        def squares(a: Any) -> Any:
            return (f(a) * f(a * a)).sum()

        def mapped(f: Any) -> Any:
            return n.vmap(f, axis_name="k")

        found[name] = lambda: mapped(f)(x)
        found[f"gradient of {name}"] = lambda: n.grad(lambda v: mapped(squares)(v).sum())(x)
        found[f"gradient inside of {name}"] = lambda: mapped(n.grad(squares))(x)
        found[f"jvp of {name}"] = lambda: n.jvp(mapped(squares), (x,), (x * x,))[1]
        found[f"jvp inside of {name}"] = lambda: mapped(
            lambda a: n.jvp(squares, (a,), (a * a,))[1]
        )(x)

    for name, f in collectives.items():
        add(name, f)
    for name in ("pmax", "pmin"):  # which JAX does not differentiate
        extremum = getattr(n, name)
        found[name] = lambda f=extremum: n.vmap(lambda a: f(a, "k") * a, axis_name="k")(x)
    return found


def arrangements(n: Any) -> dict[str, Callable[[], Any]]:
    """Two axes, other transforms around and inside, and what is the same for all examples."""
    x, w = n.tanh(iota(n, 4, 3) - 0.4) + 1, iota(n, 3) + 0.5

    def mapped(f: Any, *axes: Any, **options: Any) -> Any:
        return n.vmap(f, axes or 0, axis_name="k", **options)

    def both(f: Any) -> Any:
        inner = n.vmap(f, axis_name="j")
        return n.vmap(inner, axis_name="i")(x)

    def norm(a: Any) -> Any:
        centred = a - n.pmean(a, "k")
        return centred * (1 / (n.pmean(centred * centred, "k") + 0.1))

    def contrast(a: Any) -> Any:
        likeness = n.exp(n.all_gather(a, "k") @ a)
        return a * (likeness * n.axis_index("k")).sum() * (1 / likeness.sum())

    @n.custom_vjp
    def ruled(a: Any) -> Any:
        return n.psum(a * a, "k")

    ruled.defvjp(lambda a: (ruled(a), a), lambda a, ct: (n.psum(ct, "k") * a * 3,))

    def stepped(a: Any) -> Any:
        return n.scan(lambda c, _: (n.tanh(n.pmean(c, "k") + a * c), c.sum()), a, n.arange(3))

    def chosen(a: Any) -> Any:
        return n.cond(w.sum() > 0, lambda: n.psum(a * a, "k"), lambda: a)

    structures = {
        "norm": norm,
        "contrast": contrast,
        "scan": lambda a: stepped(a)[0] * stepped(a)[1].sum(),
        "branch": chosen,
        "branch of each": lambda a: n.cond(
            a.sum() > 2.5, lambda a: n.psum(a, "k") * a, lambda a: n.pmean(a, "k"), a
        ),
        "jit": n.jit(norm),
        "checkpoint": n.checkpoint(norm),
        "rule": ruled,
        "closure": lambda a: n.psum(a * w, "k") * n.psum(w, "k"),
    }
    found: dict[str, Callable[[], Any]] = {}
    for name, f in structures.items():
        found[name] = lambda f=f: mapped(f)(x)
        found[f"gradient of {name}"] = lambda f=f: n.grad(lambda v: (mapped(f)(v) ** 2).sum())(x)
        found[f"gradient inside of {name}"] = lambda f=f: mapped(
            n.grad(lambda a, f=f: (f(a) ** 2).sum())
        )(x)
    found |= {
        "second derivative": lambda: mapped(n.hessian(lambda a: (norm(a) ** 2).sum()))(x),
        "the same for all": lambda: mapped(lambda a: n.psum(a, "k"), out_axes=None)(x),
        "gathered for all": lambda: mapped(lambda a: n.all_gather(a, "k"), out_axes=None)(x),
        "not mapped": lambda: mapped(lambda a, w: n.psum(w, "k") * a, 0, None)(x, w),
        "gradient of what is not mapped": lambda: mapped(
            n.grad(lambda a, w: (n.psum(w * a, "k") ** 2).sum(), argnums=1), 0, None
        )(x, w),
        "gradient, not mapped": lambda: n.grad(
            lambda w: (mapped(lambda a, w: n.psum(w, "k") * n.pmean(w * a, "k"), 0, None)(x, w)
                       ** 2).sum()
        )(w),
        "nothing mapped": lambda: n.vmap(
            lambda: n.axis_index("k") * 1.0, axis_name="k", axis_size=5
        )(),
        "two axes": lambda: both(
            lambda a: n.psum(a, "i") + 2 * n.pmean(a, "j") + 3 * n.psum(a, ("i", "j"))
        ),
        "gradient inside of two axes": lambda: both(
            n.grad(lambda a: n.psum(n.psum(a * a, "i") * a, "j"))
        ),
        "gradient between two axes": lambda: n.vmap(
            n.grad(lambda r: n.vmap(lambda a: n.psum(a * n.psum(a, "j"), ("i", "j")),
                                    axis_name="j")(r).sum()),
            axis_name="i",
        )(x),
        "one name twice": lambda: n.vmap(
            lambda r: n.vmap(lambda a: n.psum(a, "k"), axis_name="k")(r) + n.psum(r, "k"),
            axis_name="k",
        )(x),
    }  # fmt: skip
    return found


def named_programs(n: Any) -> dict[str, Callable[[], Any]]:
    """All of them by name."""
    found = {}
    for group in (one_axis, arrangements):
        found |= {f"named {group.__name__}: {k}": f for k, f in group(n).items()}
    for name in JAX_CANNOT:
        del found[f"named {name}"]
    return found
