"""Record what JAX's `shard_map` computes, for `test_shard_map.py`.

Run with an interpreter that has jax 0.7.1 (xfunc itself needs none)::

    pip install jax==0.7.1 && python -m tests.record.shard_map

It writes ``tests/data/shard_map.npz``: the leaves of the result of each program in
`shard_map_programs.py` and `varying_type_programs.py`; and ``tests/data/named_axes.npz``: of those
in `named_axis_programs.py`, for `test_named_axes.py`.
"""

import os
from pathlib import Path
from types import SimpleNamespace

TRANSFORMS = "grad value_and_grad jvp vjp vmap jit checkpoint custom_vjp jacrev hessian"
TESTS = Path(__file__).parents[1]


def main() -> None:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
    import numpy as np

    from tests.support.shard_map_programs import programs
    from tests.support.varying_type_programs import typed_programs
    from tests.vectorize.named_axis_programs import named_programs

    jax.config.update("jax_enable_x64", True)

    def shard_map(f, mesh, in_specs, out_specs, **options):
        options |= {"mesh": mesh, "in_specs": in_specs, "out_specs": out_specs}
        return jax.jit(jax.shard_map(f, **options))  # without jit it cannot do all

    n = SimpleNamespace(
        **{k: v for k, v in vars(jax.lax).items() if k[0] in "paz"},
        **{k: getattr(jnp, k) for k in "where tanh exp concatenate stack asarray".split()},
        **{k: getattr(jax, k) for k in TRANSFORMS.split()},
        zeros_like=jnp.zeros_like,
        scan=jax.lax.scan,
        cond=jax.lax.cond,
        shard_map=shard_map,
        P=jax.sharding.PartitionSpec,
        mesh=jax.make_mesh,
        arange=lambda k: jnp.arange(k, dtype=jnp.float64),
        take=lambda x, i: jnp.take(x, jnp.asarray(i, jnp.int64), axis=0),
    )
    every = {
        "shard_map": programs(n) | typed_programs(n),
        "named_axes": named_programs(n),
    }
    for file, group in every.items():
        found = {}
        for name, program in group.items():
            for k, leaf in enumerate(jax.tree.leaves(program())):
                found[f"{name}/{k}"] = np.asarray(leaf)
        np.savez_compressed(TESTS / "data" / f"{file}.npz", **found)
        print(f"{len(found)} arrays recorded from jax {jax.__version__}")


if __name__ == "__main__":
    main()
