"""The private names of JAX and jaxlib that xfunc uses, by purpose: any release may change them.

Those of `xfunc.aot.worker` are among them, which runs with the JAX that compiles for TPUs. A test
finds all in our source and compares, and another says which the JAX that is installed lacks. How
programs come to JAX without any: see NOTE [the way into JAX] in `xfunc.backends.pjrt.executable`.
"""

from __future__ import annotations

from collections.abc import Mapping

NAMES: Mapping[str, tuple[str, ...]] = {
    "whether the devices have started": (
        "jax._src.xla_bridge._backends",
        "jax._src.xla_bridge.backends_are_initialized",
    ),
    "what JAX has registered for the end of a process, which a fork must not do": (
        "jax._src.api.clean_up",
    ),
    "settings of a thread, in a block": (
        "jax._src.config.enable_x64",
        "jax._src.config.jax_platforms",
        "jax._src.config.update",
        "jax._src.config.use_shardy_partitioner",
    ),
    "reading XLA_FLAGS while they say what they should": (
        "jax._src.lib.xla_client.CompileOptions",
    ),
    "data of the host, in a few microseconds": ("jax._src.lib.xla_client.batched_device_put",),
    "the other processes": ("jax._src.clusters.ClusterEnv.auto_detect_unset_distributed_params",),
    "a session of the profiler that failed": (
        "jax._src.profiler._profile_state.reset",
        "jax._src.profiler.stop_trace",
    ),
    "placements that no mesh describes": (
        "jax._src.sharding_impls.GSPMDSharding",
        "jax.sharding.Sharding._to_xla_hlo_sharding",
    ),
    "programs for TPUs": (
        "jax._src.compiler.backend_compile_and_load",
        "jax._src.compiler.get_compile_options",
        "jax._src.interpreters.mlir.make_ir_context",
        "jax._src.lib.mlir.ir.ArrayAttr.get",
        "jax._src.lib.mlir.ir.BoolAttr.get",
        "jax._src.lib.mlir.ir.DictAttr.get",
        "jax._src.lib.mlir.ir.Module.parse",
        "jax._src.lib.xla_client.DeviceList",
        "jax._src.lib.xla_client.XlaComputation",
        "jax._src.lib.xla_client._xla.mlir.xla_computation_to_mlir_module",
    ),
}
"""Those of every release that is supported."""

SOME: Mapping[str, str] = {
    "jax._src.interpreters.pxla._dce_jaxpr": "keeps compiled programs, in JAX 0.12",
    "jaxlib._hlo.HloModule": "in newer releases; else in one of the next two",
    "jaxlib._jax.HloModule": "before",
    "jaxlib.xla_client._xla.HloModule": "earlier still",
    "jax.export.Exported._in_named_shardings": "from 2026 on; before, nothing is to be set",
    "jax.export.Exported._out_named_shardings": "see `_in_named_shardings`",
}
"""The names that only some releases have, and their replacements."""
