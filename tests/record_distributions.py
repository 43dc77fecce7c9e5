"""Record what `jax.random` draws from further distributions, for `test_distributions.py`.

Run with an interpreter that has jax 0.7.1::

    pip install jax==0.7.1 && python tests/record_distributions.py
"""

from pathlib import Path
from typing import Any

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
]


def main() -> None:
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
    import numpy as np

    names = {n: getattr(jax.random, n) for n in dir(jax.random) if not n.startswith("_")}
    names |= {
        "vmap": jax.vmap, "f32": jnp.float32, "row": jnp.array([0.5, 1.0, 4.0]),
        "cov": jnp.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.25], [0.0, 0.25, 3.0]]),
        "table": jnp.arange(12).reshape(3, 4), "weights": jnp.array([0.1, 0.4, 0.2, 0.3]),
    }  # fmt: skip
    found: Any = {call: np.asarray(eval(call, names)) for call in CALLS}
    file = Path(__file__).parent / "data" / "distributions.npz"
    np.savez_compressed(file, **found)
    print(f"{len(found)} arrays recorded from jax {jax.__version__} in {file}")


if __name__ == "__main__":
    main()
