"""xfunc: JAX-style functional transforms over torch.

What is public is in `__all__`: functions, and the modules in this folder and in `optim`, `random`,
`sharding`, `aot` and `stages`. The other folders are internal.
"""

import types as _types

from xfunc.core.garbage import uncollected as _uncollected

with _uncollected():
    from xfunc import (
        aot,
        checkpoint_policies,
        config,
        debug,
        distributed,
        errors,
        export,
        optim,
        profiler,
        random,
        sharding,
        stages,
        tree,
    )
    from xfunc.backends.devices import (
        block_until_ready,
        default_backend,
        device_count,
        device_get,
        devices,
        local_device_count,
        local_devices,
        memory_stats,
        process_count,
        process_index,
    )
    from xfunc.cache.programs import clear_caches, trace_count
    from xfunc.core.avals import ShapeDtypeStruct
    from xfunc.program.jax_call import call_jax
    from xfunc.sharding import (
        AbstractMesh,
        Mesh,
        NamedSharding,
        P,
        PartitionSpec,
        all_gather,
        all_gather_invariant,
        all_to_all,
        axis_index,
        axis_size,
        device_put,
        make_array_from_process_local_data,
        make_mesh,
        pcast,
        pmax,
        pmean,
        pmin,
        ppermute,
        psum,
        psum_scatter,
        pvary,
        shard_alike,
        shard_as,
        shard_map,
        sharding_of,
        typeof,
        use_mesh,
        visualize_sharding,
        with_sharding_constraint,
    )
    from xfunc.symbolic.bucket_search import buckets
    from xfunc.symbolic.dim import Dim
    from xfunc.tools import ctc as _ctc
    from xfunc.tools import jax_names as _jax_names
    from xfunc.tools import recurrent as _recurrent
    from xfunc.tools import torch_checkpoint as _torch_checkpoint
    from xfunc.tools.memory_report import memory_report
    from xfunc.tools.modules import functional
    from xfunc.torchlib.eager import disable_jit
    from xfunc.torchlib.functorch import never_compile as _never_compile
    from xfunc.trace.scopes import named_scope
    from xfunc.transforms import (
        associative_scan,
        at,
        checkpoint,
        checkpoint_name,
        closure_convert,
        cond,
        custom_gradient,
        custom_jvp,
        custom_linear_solve,
        custom_root,
        custom_vjp,
        custom_vmap,
        dynamic_slice,
        dynamic_update_slice,
        eval_shape,
        fori_loop,
        fwd_and_bwd,
        grad,
        hessian,
        io_callback,
        jacfwd,
        jacobian,
        jacrev,
        jit,
        jvp,
        linear_transpose,
        linearize,
        make_hlo,
        map,
        optimization_barrier,
        pure_callback,
        ragged_dot,
        ravel_pytree,
        reduce_precision,
        remat,
        scan,
        segment_max,
        segment_min,
        segment_prod,
        segment_sum,
        sequential_vmap,
        stop_gradient,
        switch,
        value_and_grad,
        vectorize,
        vjp,
        vmap,
        while_loop,
    )

_jax_names.install()
_ctc.install()
_recurrent.install()
_torch_checkpoint.install()

__version__ = "0.1.0"

__all__ = [
    "AbstractMesh",
    "Dim",
    "Mesh",
    "NamedSharding",
    "P",
    "PartitionSpec",
    "ShapeDtypeStruct",
    "__version__",
    "all_gather",
    "all_gather_invariant",
    "all_to_all",
    "aot",
    "associative_scan",
    "at",
    "axis_index",
    "axis_size",
    "block_until_ready",
    "buckets",
    "call_jax",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "clear_caches",
    "closure_convert",
    "cond",
    "config",
    "custom_gradient",
    "custom_jvp",
    "custom_linear_solve",
    "custom_root",
    "custom_vjp",
    "custom_vmap",
    "debug",
    "default_backend",
    "device_count",
    "device_get",
    "device_put",
    "devices",
    "disable_jit",
    "distributed",
    "dynamic_slice",
    "dynamic_update_slice",
    "errors",
    "eval_shape",
    "export",
    "fori_loop",
    "functional",
    "fwd_and_bwd",
    "grad",
    "hessian",
    "io_callback",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jit",
    "jvp",
    "linear_transpose",
    "linearize",
    "local_device_count",
    "local_devices",
    "make_array_from_process_local_data",
    "make_hlo",
    "make_mesh",
    "map",
    "memory_report",
    "memory_stats",
    "named_scope",
    "optim",
    "optimization_barrier",
    "pcast",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "process_count",
    "process_index",
    "profiler",
    "psum",
    "psum_scatter",
    "pure_callback",
    "pvary",
    "ragged_dot",
    "random",
    "ravel_pytree",
    "reduce_precision",
    "remat",
    "scan",
    "segment_max",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "sequential_vmap",
    "shard_alike",
    "shard_as",
    "shard_map",
    "sharding",
    "sharding_of",
    "stages",
    "stop_gradient",
    "switch",
    "trace_count",
    "tree",
    "typeof",
    "use_mesh",
    "value_and_grad",
    "vectorize",
    "visualize_sharding",
    "vjp",
    "vmap",
    "while_loop",
    "with_sharding_constraint",
]

for _name in __all__:  # They compile by themselves: torch.compile leaves calls of them to Python.
    if isinstance(_function := globals().get(_name), _types.FunctionType):
        _never_compile(_function)
    elif isinstance(_function, _types.ModuleType) and hasattr(_function, "__all__"):
        vars(_function)["__dir__"] = _function.__all__.copy


def __dir__() -> list[str]:
    return __all__
