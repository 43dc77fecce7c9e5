"""Record what `jax.random` draws, for `test_random.py`.

Run with an interpreter that has jax 0.7.1 (xfunc itself needs none)::

    pip install jax==0.7.1 && python -m tests.record.random_draws

It writes ``tests/data/random_vectors.npz``: each array under the call that made it. The call is a
Python expression in the names of `jax.random`, `xfunc.random` and of dtypes, which the test
evaluates. bfloat16 is kept as its bits, in uint16.
"""

from pathlib import Path

SEEDS = (0, 1, -1, 123456789, 2**31, 2**32 - 1, 2**32 + 5, -(2**63), 2**63 - 1)

# Evaluated with 32-bit types, the default of JAX.
CALLS = [
    *(f"key({s})" for s in SEEDS),
    "split(key(0))",
    "split(key(-7), 5)",
    "split(key(3), (2, 3))",
    "split(key(3), 0)",
    "fold_in(key(0), 0)",
    "fold_in(key(9), 12345)",
    f"fold_in(key(-9), {2**32 - 1})",
    *(f"bits(key(1), {s}, {d})" for s in ("()", "(7,)", "(3, 5)") for d in ("u8", "u16", "u32")),
    *(
        f"uniform(key({k}), {s}, {d})"
        for k, s in ((0, "()"), (1, "(7,)"), (-2, "(3, 1, 5)"), (3, "(0, 4)"), (42, "(1000,)"))
        for d in ("f32", "bf16", "f16")
    ),
    "uniform(key(5), (3, 4), f32, -2.5, 7.25)",
    "uniform(key(5), (9,), bf16, 1.0, 3.0)",
    "uniform(key(5), (9,), f16, -1.0, 3.0)",
    *(
        f"normal(key({k}), {s}, {d})"
        for k, s in ((0, "()"), (1, "(13,)"), (2, "(3, 0)"), (42, "(1000,)"))
        for d in ("f32", "bf16", "f16")
    ),
    *(
        f"truncated_normal(key(4), {a}, {b}, (50,), {d})"
        for a, b in ((-2.0, 2.0), (0.0, 0.1), (-0.5, 3.0))
        for d in ("f32", "bf16", "f16")
    ),
    "bernoulli(key(0))",
    "bernoulli(key(1), 0.3, (101,))",
    "bernoulli(key(1), 0.3, (5, 7), 'high')",
    "randint(key(0), (), 0, 10)",
    "randint(key(1), (33,), -5, 1000)",
    "randint(key(2), (17,), 5, 5)",
    f"randint(key(3), (17,), {-(2**31)}, {2**31 - 1})",
    "randint(key(3), (17,), 0, 70000)",
    "randint(key(4), (21,), -100, 100, i8)",
    "randint(key(4), (21,), 0, 255, u8)",
    "randint(key(4), (21,), -1000, 1000, i16)",
    "permutation(key(0), 1)",
    "permutation(key(1), 10)",
    "permutation(key(1), 3000)",
    "permutation(key(2), arange(12).reshape(4, 3))",
    "permutation(key(2), arange(12).reshape(4, 3), 1)",
    "permutation(key(2), arange(12).reshape(4, 3), 1, independent=True)",
    *(f"gumbel(key(6), (20,), {d}, '{m}')" for d in ("f32", "f16") for m in ("low", "high")),
    "categorical(key(7), logits(4, 6))",
    "categorical(key(7), logits(4, 6), 0)",
    "categorical(key(7), logits(4, 6), -1, (5, 4))",
    "categorical(key(7), logits(4, 6), 0, (2, 3, 6))",
    "categorical(key(7), logits(4, 6), -1, (3, 4), False)",
    "categorical(key(7), logits(6), mode='high')",
    *(
        f"vmap(lambda k: {f})(split(key(8), 5))"
        for f in (
            "uniform(k, (3,), f32)",
            "normal(k, (2, 3), f32)",
            "bits(k, (4,), u32)",
            "randint(k, (3,), 0, 100)",
            "split(k, 3)",
            "fold_in(k, 6)",
            "permutation(k, 6)",
            "bernoulli(k, 0.5, (4,))",
            "categorical(k, logits(3))",
        )
    ),
    "vmap(lambda i: fold_in(key(8), i))(arange(6))",
]

# Evaluated with ``jax_enable_x64``.
WIDE_CALLS = [
    *(f"bits(key(1), {s}, u64)" for s in ("()", "(7,)", "(3, 5)")),
    *(f"uniform(key({k}), {s}, f64)" for k, s in ((0, "()"), (1, "(7,)"), (3, "(0, 4)"))),
    "uniform(key(5), (3, 4), f64, -2.1, 7.3)",
    "normal(key(1), (101,), f64)",
    "truncated_normal(key(4), -1.5, 2.0, (50,), f64)",
    "gumbel(key(6), (20,), f64)",
    "gumbel(key(6), (20,), f64, 'high')",
    "randint(key(1), (33,), -5, 1000, i64)",
    f"randint(key(2), (33,), {-(2**63)}, {2**63 - 1}, i64)",
    f"randint(key(2), (33,), {-(2**40)}, {2**40}, i64)",
    f"randint(key(3), (17,), {-(2**31)}, {2**31}, i32)",
    "randint(key(4), (21,), -128, 128, i8)",
]


def main() -> None:
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
    import numpy as np

    def logits(*shape: int):
        return jnp.sin(jnp.arange(np.prod(shape), dtype=jnp.float32)).reshape(shape)

    def key(seed: int):
        return jax.random.key(seed)

    names = {n: getattr(jax.random, n) for n in dir(jax.random) if not n.startswith("_")}
    names |= {"key": key, "logits": logits, "arange": jnp.arange, "vmap": jax.vmap}
    names |= {f"u{n}": getattr(jnp, f"uint{n}") for n in (8, 16, 32, 64)}
    names |= {f"i{n}": getattr(jnp, f"int{n}") for n in (8, 16, 32, 64)}
    names |= {f"f{n}": getattr(jnp, f"float{n}") for n in (16, 32, 64)} | {"bf16": jnp.bfloat16}
    found = {}
    for wide, calls in ((False, CALLS), (True, WIDE_CALLS)):
        jax.config.update("jax_enable_x64", wide)
        for call in calls:
            out = eval(call, names)
            if jnp.issubdtype(out.dtype, jax.dtypes.prng_key):
                out = jax.random.key_data(out)
            array = np.asarray(out)
            found[call] = array.view(np.uint16) if out.dtype == jnp.bfloat16 else array
    file = Path(__file__).parents[1] / "data" / "random_vectors.npz"
    file.parent.mkdir(exist_ok=True)
    np.savez_compressed(file, **found)
    print(f"{len(found)} arrays recorded from jax {jax.__version__} in {file}")


if __name__ == "__main__":
    main()
