"""Record what `jax.random` draws from further distributions, for `test_distributions.py`.

Run with an interpreter that has jax 0.7.1::

    pip install jax==0.7.1 && python -m tests.record.distributions
"""

import math
from pathlib import Path
from typing import Any

ARRAYS: dict[str, Any] = {
    "row": [0.5, 1.0, 4.0],
    "cov": [[2.0, 0.5, 0.0], [0.5, 1.0, 0.25], [0.0, 0.25, 3.0]],
    "weights": [0.1, 0.4, 0.2, 0.3],
    "odd": [-0.5, 0.0, 1.0, 2.7, math.nan, math.inf],
}

CALLS = [
    *(
        f"{name}(key({seed}), {shape}, f32)"
        for name in ("exponential", "laplace", "logistic", "cauchy", "maxwell")
        for seed, shape in ((0, "()"), (5, "(100,)"), (-3, "(2, 0)"))
    ),
    "rademacher(key(3), (50,))",
    "rademacher(key(3), (2, 3), f32)",
    "rayleigh(key(1), 2.5, (40,), f32)",
    "pareto(key(1), row, None, f32)",
    "lognormal(key(1), 0.5, (40,), f32)",
    "weibull_min(key(1), 2.0, 1.5, (40,), f32)",
    "multivariate_normal(key(1), row, cov, None, f32)",
    "multivariate_normal(key(1), row, cov, (5, 2), f32)",
    *(
        f"{name}(key(2), {a}, (3, 30), f32)"
        for name in ("gamma", "loggamma")
        for a in ("0.01", "0.7", "1.0", "3.5", "100.0")
    ),
    "gamma(key(2), row, None, f32)",
    "gamma(key(2), 2.0, (0,), f32)",
    "chisquare(key(4), 3.0, (20,), f32)",
    "t(key(4), 3.0, (20,), f32)",
    "beta(key(4), 0.5, 2.0, (20,), f32)",
    "dirichlet(key(4), row, (7,), f32)",
    "dirichlet(key(4), row, None, f32)",
    "choice(key(6), 10)",
    "choice(key(6), 10, (3, 4))",
    "choice(key(6), 10, (10,), False)",
    "choice(key(6), table, (4,))",
    "choice(key(6), table, (2, 2), False, None, 1)",
    "choice(key(6), 4, (20,), True, weights)",
    "choice(key(6), 4, (3,), False, weights)",
    "choice(key(6), table, (2,), False, weights, 1, 'high')",
    "vmap(lambda k: gamma(k, 2.0, (3,), f32))(split(key(8), 4))",
    "vmap(lambda k: choice(k, 5, (3,)))(split(key(8), 4))",
    "poisson(key(8), 0.7, (50,))",
    "poisson(key(8), row * 10, (20, 3), i8)",
    "poisson(key(8), 10.0, (50,))",
    "poisson(key(8), 60.0, (100,), i8)",
    "poisson(key(8), odd, None)",
    "poisson(key(8), 3.0, (0,))",
    "vmap(lambda k, m: poisson(k, m, (2,)))(split(key(8), 3), row * 10)",
    "geometric(key(9), 0.3, (50,))",
    "geometric(key(9), row / 8, (9, 3), i8)",
    "geometric(key(9), odd, (9, 6))",
    "vmap(lambda k: geometric(k, 0.3, (3,)))(split(key(8), 4))",
]

# Evaluated in float32 and, with ``jax_enable_x64``, in float64: `real` is either.
BOTH = [
    "grad(lambda a: (gamma(key(2), a, (10, 3), real) ** 2).sum())(row)",
    "grad(lambda a: (dirichlet(key(4), a, (10,), real) ** 2).sum())(row)",
    "rademacher(key(3), (20,), real)",
    "ball(key(1), 3, 3.0, (20,), real)",
    "orthogonal(key(3), 2, (2,), real, 4)",
    "triangular(key(4), 0.0, 0.25, 1.0, (40,), real)",
    "triangular(key(4), -row, row * 0, row, None, real)",
    "wald(key(5), row, (40, 3), real)",
    "double_sided_maxwell(key(6), row, 2.0, (2,), real)",
    "binomial(key(10), row * 20, 0.8, (9, 3), real)",
    "binomial(key(10), 5.0, odd / 2, (2, 6), real)",
    "multinomial(key(11), row * 100, cov / 3.5, dtype=real)",
]
CALLS += [
    c.replace("real", "f32")
    for c in (
        "grad(lambda a: (gamma(key(2), a, (10, 3), real) ** 2).sum())(row * 30)",
        "grad(lambda a: (loggamma(key(2), a, (10, 3), real) ** 2).sum())(row / 100)",
        "grad(lambda a: (beta(key(4), a, 2.0 * a, (10, 3), real) ** 2).sum())(row)",
        "grad(lambda a: t(key(4), a, (3,), real).sum())(row)",
        "grad(lambda a: f(key(4), a, 3.0, (3,), real).sum())(row * 8)",
        "grad(lambda a: chisquare(key(4), a, (3,), real).sum())(row)",
        "grad(lambda p: generalized_normal(key(4), p, (3,), real).sum())(row[2])",
        "vmap(grad(lambda a, k: gamma(k, a, (), real), 0))(row, split(key(8), 3))",
        "grad(lambda a: vmap(lambda k: gamma(k, a, (2,), real))(split(key(8), 3)).sum())(row[2])",
        "jvp(lambda a: gamma(key(2), a, (3,), real), (row,), (row,))[1]",
        "jvp(lambda b: jvp(lambda a: gamma(key(2), a, (3,), real), (b,), (b,))[1], "
        "(row,), (row,))[1]",
        "ball(key(1), 2, 1.0, (), real)",
        "vmap(lambda k: ball(k, 3, dtype=real))(split(key(8), 4))",
        "generalized_normal(key(2), 0.5, (3, 4), real)",
        "orthogonal(key(3), 4, (2,), real, 2)",
        "orthogonal(key(3), 3, (0,), real)",
        "vmap(lambda k, m: triangular(k, 0.0, m, 5.0, (2,), real))(split(key(8), 3), row)",
        "wald(key(5), row, None, real)",
        "vmap(lambda m: wald(key(5), m, (4,), real))(row)",
        "double_sided_maxwell(key(6), row, 2.0, (), real)",
        "double_sided_maxwell(key(6), 1.0, 2.0, (30,), real)",
        "f(key(7), row * 4, 5.0, None, real)",
        "binomial(key(10), 1000.0, 0.3, (100,), real)",
        "binomial(key(10), odd, 0.4, (2, 6), real)",
        "binomial(key(10), arange(3) * 50, row / 8, None, real)",
        "vmap(lambda m: binomial(key(3), m * 30, 0.4, (2,), real))(row)",
        "vmap(lambda k: multinomial(k, 20.0, row / 5.5, dtype=real))(split(key(8), 4))",
    )
]
WIDE_CALLS = [
    "gamma(key(2), row, (20, 3), f64)",
    "dirichlet(key(4), row, (7,), f64)",
    "f(key(7), 3.0, 5.0, (20,), f64)",
    "multinomial(key(11), 20.0, row / 5.5, shape=(6, 3), dtype=f64)",
]


def main() -> None:
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
    import numpy as np

    names = {n: getattr(jax.random, n) for n in dir(jax.random) if not n.startswith("_")}
    names |= {
        "vmap": jax.vmap,
        "arange": jnp.arange,
        "i8": jnp.int8,
        "f32": jnp.float32,
        "f64": jnp.float64,
    }
    names |= {"grad": jax.grad, "jvp": jax.jvp, "sin": jnp.sin}
    names |= {"table": jnp.arange(12).reshape(3, 4)}
    found: Any = {}
    for real, calls in ((jnp.float32, CALLS + BOTH), (jnp.float64, BOTH + WIDE_CALLS)):
        jax.config.update("jax_enable_x64", real is jnp.float64)
        arrays = {k: jnp.array(v, real) for k, v in ARRAYS.items()}
        for call in calls:
            out = eval(call, names | arrays | {"real": real})
            found[call.replace("real", f"f{jnp.finfo(real).bits}")] = np.asarray(out)
    file = Path(__file__).parents[1] / "data" / "distributions.npz"
    np.savez_compressed(file, **found)
    print(f"{len(found)} arrays recorded from jax {jax.__version__} in {file}")


if __name__ == "__main__":
    main()
