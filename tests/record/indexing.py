"""Record what `jax.numpy.ndarray.at` gives, for `test_at.py`.

Run with an interpreter that has jax 0.7.1::

    pip install jax==0.7.1 && python -m tests.record.indexing

It writes ``tests/data/indexing.npz``: each array under the expression that made it, in which ``x``
is ``arange(24).reshape(2, 3, 4) + 1`` as float32, ``n`` the same as int32, and ``i``, ``j``, ``k``
index arrays.
"""

from pathlib import Path

MODES = ("", ", mode='drop'", ", mode='fill'", ", mode='clip'")
INDICES = (
    "1", "-1", "0, 2", "0, :, 3", "...", "..., 0", "None", "None, 1", "1, None, 2", ":, None, 1:",
    "1:", ":, 1:3", ":, ::2", "::-1", ":, ::-2", "0, ::-1, 1::2", "..., 1:1", ":, 5:9",
    "i", "i[:, None], j[:2]", ":, j", ":, :, k", "i, :, 1", "0, j", "0, :, k", ":, 1, k",
    "i[:1], None, j",    "i, ..., k[0]", ":, j[:2, None], k", ":, j[:3], k[0]",
    "i[:2, None], ::-1, k[:, :1]",
    "i, 1:, k[1]",
    "s, s",
    "s, :, s",
)  # fmt: skip
CALLS = [
    *(f"x.at[{i}].{op}" for i in INDICES for op in ("get()", "set(-5.5)", "add(0.5)")),
    *(
        f"x.at[{i}].{op}({v})"
        for i in ("i", ":, j", ":, 1:3", "i, :, k[0]", "s, s", ":, ::-1")
        for op in ("mul", "multiply", "divide", "min", "max", "subtract", "apply", "power")
        for v in ("jnp.negative" if op == "apply" else "2.5",)
    ),
    *(
        f"{a}.at[{i}].{op}({v}{mode})".replace("(, ", "(")
        for a, i in (("x", "o"), ("n", "o"), ("x", ":, o"), ("x", "i[:1], o"),
                     ("x", "7"), ("x", "0, -9"))
        for op, v in (("get", ""), ("set", "2"), ("add", "2"), ("mul", "3"), ("min", "5"),
                      ("max", "15"), ("apply", "jnp.negative"))
        for mode in MODES
    ),
    "x.at[o].get(mode='fill', fill_value=3)",
    "x.at[:, o].get(mode='drop', fill_value=-3)",
    "n.astype('uint8').at[9].get(mode='fill')",
    "(n > 3).at[9].get(mode='fill')",
    "(n > 3).at[i].min(False)",
    "n.at[i].power(2)",
    "n.at[i].divide(2)",
    "n.at[:, j].add(jnp.arange(4))",
    "x.at[:, j].add(jnp.arange(20.0).reshape(5, 4))",
    "x.at[:, ::-1].set(jnp.arange(12.0).reshape(3, 4))",
    "x.at[i, :, k[0]].set(jnp.arange(9.0).reshape(3, 3))",
    "x.at[:, None, 1].mul(jnp.arange(8.0).reshape(2, 1, 4))",
    "x.at[n > 7].set(0.25)",
    "x.at[n > 7].add(1.5)",
    "x.at[n > 20].set(jnp.arange(4.0))",
    "x.at[(n > 7)[:, 0, 0]].multiply(jnp.arange(4.0))",
    "x.at[n > 20].get()",
    "x.at[0, (n > 7)[1, :, 0]].set(3.5)",
]  # fmt: skip


def main() -> None:
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
    import numpy as np

    n = jnp.arange(1, 25, dtype=jnp.int32).reshape(2, 3, 4)
    names = {
        "x": n.astype(jnp.float32), "n": n, "jnp": jnp,
        "i": jnp.array([1, 0, -1]), "j": jnp.array([2, 0, 2, -1, 1]),
        "k": jnp.array([[3, 0, 3], [1, -2, 0]]), "o": jnp.array([1, 9, -1, -8]),
        "s": jnp.array(1),
    }  # fmt: skip
    found = {}
    for call in CALLS:
        found[call] = np.asarray(eval(call, names))
    file = Path(__file__).parents[1] / "data" / "indexing.npz"
    np.savez_compressed(file, **found)
    print(f"{len(found)} arrays recorded from jax {jax.__version__} in {file}")


if __name__ == "__main__":
    main()
