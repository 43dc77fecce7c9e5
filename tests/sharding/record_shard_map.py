"""Record what JAX's `shard_map` computes, for `test_shard_map.py`.

Run with an interpreter that has jax 0.7.1 (xfunc itself needs none)::

    pip install jax==0.7.1 && python tests/sharding/record_shard_map.py

It writes ``tests/data/shard_map.npz``: the leaves of the result of each program in
`shard_map_programs.py`.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

TESTS = Path(__file__).parents[1]


def main() -> None:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    sys.path.insert(0, str(TESTS))
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
    import numpy as np
    from shard_map_programs import programs

    jax.config.update("jax_enable_x64", True)

    def shard_map(f, mesh, in_specs, out_specs, check_rep=True):
        specs = {"in_specs": in_specs, "out_specs": out_specs}
        return jax.shard_map(f, mesh=mesh, check_vma=check_rep, **specs)

    n = SimpleNamespace(
        **{k: v for k, v in vars(jax.lax).items() if k[0] in "paz"},
        **{k: getattr(jnp, k) for k in "where tanh concatenate stack asarray".split()},
        grad=jax.grad,
        jvp=jax.jvp,
        vmap=jax.vmap,
        shard_map=shard_map,
        P=jax.sharding.PartitionSpec,
        mesh=jax.make_mesh,
        arange=lambda k: jnp.arange(k, dtype=jnp.float64),
        take=lambda x, i: jnp.take(x, jnp.asarray(i, jnp.int64), axis=0),
    )
    found = {}
    for name, program in programs(n).items():
        for k, leaf in enumerate(jax.tree.leaves(program())):
            found[f"{name}/{k}"] = np.asarray(leaf)
    np.savez_compressed(TESTS / "data" / "shard_map.npz", **found)
    print(f"{len(found)} arrays recorded from jax {jax.__version__}")


if __name__ == "__main__":
    main()
