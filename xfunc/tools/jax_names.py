"""Names of JAX and torch that xfunc has under another, or does not need: the errors say which.

`TABLE` has the public names of JAX that a public module of xfunc lacks, with a hint for each.
`TORCH_TABLE` has what torch calls what `xfunc` has.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import NoReturn

from xfunc.errors import format_error

_PAGE = "the page 'Coming from JAX' has a table of names"
_TORCH = f"arrays are torch tensors, and {{}} is torch: {{}}; {_PAGE}."
_TREE = "use xf.tree.{}."
_SETTING = "there is no such setting: delete the line."
_REFS = "change tensors that the function made in place (y[i] = v), or use xf.at(x)[i].set(v)."
_ALWAYS_WIDE = "float64 and int64 are always on: delete the line, or choose dtypes by name."
_TRANSFERS = (
    "there is no guard: CPU tensors given to transformed functions are moved, and results stay on "
    "the device until they are read."
)
_READ = "use xf.errors.ConcretizationError: a traced value was read."
_MESH = "pass the mesh as an argument."
_NO_AXIS_TYPES = "axes have no types: XLA shards what shard_map does not."
_ONE_KEY_TYPE = "all keys are of threefry: delete what depends on the implementation."
_PATHS = "paths are strings, such as ['layers'][0].wq: use xf.tree.leaves_with_path."
_MODULES = {
    "ad_checkpoint": "use xf.checkpoint, xf.checkpoint_name and xf.checkpoint_policies.",
    "api_util": f"it is internal to JAX; {_PAGE}.",
    "custom_batching": "use xf.custom_vmap and xf.sequential_vmap.",
    "custom_derivatives": "use xf.custom_jvp, xf.custom_vjp and xf.linearize.",
    "dlpack": "use torch.from_dlpack(x) and torch.utils.dlpack.to_dlpack(x).",
    "dtypes": "dtypes are torch's: torch.float32, torch.promote_types, torch.finfo.",
    "experimental": "what it has and xfunc too is in xf itself: xf.io_callback, xf.shard_map, "
    f"xf.shard_alike; {_PAGE}.",
    "extend": f"it is for those who extend JAX; {_PAGE}.",
    "ffi": "call a JAX function that makes the call, with xf.call_jax.",
    "flatten_util": "use xf.ravel_pytree.",
    "image": _TORCH.format("jax.image", "torch.nn.functional.interpolate for resize"),
    "interpreters": f"it is internal to JAX; {_PAGE}.",
    "lax": "its transforms are in xf itself (xf.scan for lax.scan; cond, switch, while_loop, "
    "fori_loop, map, psum, stop_gradient, ...), its arithmetic is torch's (torch.exp for "
    f"lax.exp); {_PAGE}.",
    "lib": f"it is internal to JAX; {_PAGE}.",
    "memory": "use xf.checkpoint_policies.save_and_offload_only_these_names to keep values in the "
    "host's memory.",
    "monitoring": "use f.cache_info() and f.explain() of a jitted function.",
    "nn": _TORCH.format("jax.nn", "torch.softmax, torch.nn.functional.gelu, torch.relu"),
    "numpy": _TORCH.format("jax.numpy", "torch.where, torch.einsum, torch.cat for concatenate"),
    "scipy": _TORCH.format("jax.scipy", "torch.special.erf, torch.logsumexp, torch.linalg"),
    "tree_util": "use xf.tree: tree_map is xf.tree.map, register_pytree_node is xf.tree.register.",
    "typing": "use torch.Tensor for arrays in annotations.",
}

TABLE: dict[str, dict[str, str]] = {
    "xfunc": {
        **_MODULES,
        "Array": "arrays are torch.Tensor.",
        "Device": "devices are numbers: xf.devices() lists them.",
        **dict.fromkeys(("Ref", "empty_ref", "free_ref", "freeze", "new_ref", "ref"), _REFS),
        "CompilerEffortLevel": "use xf.jit's compiler_options.",
        "Inline": "functions are called; XLA inlines them: delete the argument.",
        "Shard": "use xf.sharding.addressable_shards(x).",
        "check_tracer_leaks": "leaks always raise xf.errors.LeakError: delete the line.",
        "checking_leaks": "leaks always raise xf.errors.LeakError: delete the line.",
        "copy_to_host_async": "use xf.device_get(x), or x.cpu().",
        "debug_infs": "use xf.debug.infs: with xf.debug.infs(): ...",
        "debug_key_reuse": "there is no check for keys that are used twice: delete the line.",
        "debug_nans": "use xf.debug.nans: with xf.debug.nans(): ...",
        "default_device": "use xf.device_put(x, device), or xf.config.set_platform at first.",
        "default_matmul_precision": "use torch.set_float32_matmul_precision.",
        "default_prng_impl": _ONE_KEY_TYPE,
        "ds": "use xf.dynamic_slice, or x.narrow(dim, start, size).",
        "device_put_replicated": "use xf.device_put(x, xf.NamedSharding(mesh, xf.P())).",
        "device_put_sharded": "use xf.device_put with a sharding.",
        "effects_barrier": "use xf.block_until_ready(()).",
        "enable_custom_prng": _ONE_KEY_TYPE,
        "enable_x64": _ALWAYS_WIDE,
        "ensure_compile_time_eval": "compute constants with NumPy, which runs while "
        "tracing, or outside of the function.",
        "explain_cache_misses": "use f.explain() of a jitted function.",
        "float0": "return integer outputs with has_aux=True: they have no tangents.",
        **dict.fromkeys(("get_abstract_mesh", "get_mesh"), _MESH),
        "host_count": "use xf.process_count().",
        "host_id": "use xf.process_index().",
        "host_ids": "use range(xf.process_count()).",
        "live_arrays": "use xf.memory_stats().",
        "log_compiles": "logging.getLogger('xfunc').setLevel('INFO') logs each trace, with its "
        "reason, and each compilation; f.explain() tells the last reason for one function.",
        "make_array_from_callback": "use xf.make_array_from_process_local_data(sharding, part, "
        "shape), where part is what is at xf.sharding.process_local_indices(sharding, shape).",
        "make_array_from_single_device_arrays": "use xf.make_array_from_process_local_data("
        "sharding, torch.cat(arrays), shape).",
        "make_jaxpr": "use print(xf.jit(f).trace(x)), or xf.make_hlo(f)(x) for HLO.",
        "named_call": "use xf.named_scope, a decorator too.",
        "numpy_dtype_promotion": "dtypes are promoted as torch does: delete the line.",
        "numpy_rank_promotion": "shapes broadcast as in torch: delete the line.",
        "pmap": "use xf.jit with arrays sharded by xf.device_put, or xf.shard_map.",
        "print_environment_info": "print torch.__version__, xf.__version__ and xf.devices().",
        "process_indices": "use range(xf.process_count()).",
        "reshard": "use xf.with_sharding_constraint in a traced function, or xf.device_put.",
        "set_mesh": "use xf.use_mesh: with xf.use_mesh(mesh): ...",
        "use_abstract_mesh": "use xf.use_mesh: with xf.use_mesh(mesh): ...",
        "smap": "use xf.shard_map.",
        "version": "use xf.__version__.",
        **dict.fromkeys(
            (
                "transfer_guard",
                "transfer_guard_device_to_device",
                "transfer_guard_device_to_host",
                "transfer_guard_host_to_device",
            ),
            _TRANSFERS,
        ),
        **dict.fromkeys(
            (
                "ad",
                "allow_f16_reductions",
                "array_garbage_collection_guard",
                "auto_pcast",
                "enable_checks",
                "jax2tf_associative_scan_reductions",
                "legacy_prng_key",
                "make_user_context",
                "no_execution",
                "no_tracing",
                "remove_size_one_mesh_axis_from_type",
                "softmax_custom_jvp",
                "thread_guard",
                "threefry_partitionable",
            ),
            _SETTING,
        ),
        **{
            f"tree_{name}": _TREE.format(name)
            for name in (
                "all",
                "flatten",
                "leaves",
                "map",
                "map_with_path",
                "leaves_with_path",
                "reduce",
                "structure",
                "transpose",
                "unflatten",
            )
        },
    },
    "xfunc.config": {
        "update": "settings have names of their own: xf.config.set_platform, set_cpu_devices, "
        "set_backend, set_compilation_cache_dir, use_shardy_partitioner; NaNs are found by "
        "xf.debug.nans, and float64 is always on.",
        "jax_enable_x64": _ALWAYS_WIDE,
        "jax_debug_nans": "use xf.debug.nans.",
        "jax_disable_jit": "use xf.disable_jit.",
        "jax_num_cpu_devices": "use xf.config.set_cpu_devices(n).",
        "jax_platforms": "use xf.config.set_platform.",
        "jax_platform_name": "use xf.config.set_platform.",
        "jax_compilation_cache_dir": "use xf.config.set_compilation_cache_dir(folder).",
        "jax_default_matmul_precision": "use torch.set_float32_matmul_precision.",
        "jax_use_shardy_partitioner": "use xf.config.use_shardy_partitioner.",
        "jax_traceback_filtering": "use xf.config.hide_library_frames.",
    },
    "xfunc.debug": {
        "breakpoint": "use breakpoint() of Python under xf.disable_jit(), where values have data.",
        "inspect_array_sharding": "use xf.sharding_of(x), or print the compiled program.",
        "log": "use xf.debug.callback(logging.info, text, x).",
        "visualize_array_sharding": "use xf.visualize_sharding(x).",
        "visualize_sharding": "use xf.visualize_sharding(x).",
    },
    "xfunc.errors": {
        "ConcretizationTypeError": _READ,
        "TracerArrayConversionError": _READ,
        "TracerBoolConversionError": _READ,
        "TracerIntegerConversionError": _READ,
        "NonConcreteBooleanIndexError": "use xf.errors.UnsupportedOpError.",
        "UnexpectedTracerError": "use xf.errors.LeakError.",
        "InconclusiveDimensionOperation": "use xf.errors.ShapeError.",
        "JaxRuntimeError": "use xf.errors.CompileError and xf.errors.ExecutionError.",
        "JAXIndexError": "use IndexError.",
        "JAXTypeError": "use TypeError.",
        "JaxprTypeError": "use TypeError.",
        "KeyReuseError": "there is no check for keys that are used twice.",
    },
    "xfunc.export": {
        "export": "use xf.export.serialize(f.lower(*args)), or xf.export.save for a file.",
        "symbolic_shape": "use xf.Dim in the shapes of xf.ShapeDtypeStruct.",
        "symbolic_args_specs": "use xf.Dim in the shapes of xf.ShapeDtypeStruct.",
        "SymbolicScope": "use xf.Dim.",
        "is_symbolic_dim": "use isinstance(n, xf.Dim).",
        "symbolic_dim_bounds": "use the bounds that its Dims were declared with.",
    },
    "xfunc.ops": {f"segment_{k}": f"use xf.segment_{k}." for k in ("max", "min", "prod", "sum")},
    "xfunc.profiler": {
        "ProfileSession": "use with xf.profiler.trace(folder): ...",
        "StepTraceAnnotation": "use xf.profiler.annotate(name, step_num=n).",
        "TraceAnnotation": "use xf.profiler.annotate(name).",
        "annotate_function": "use xf.profiler.annotate(name) around the call.",
        "export_profile_data": "use with xf.profiler.trace(folder): ...",
        "device_memory_profile": "use xf.memory_stats(), or xf.memory_report(f, *args).",
        "save_device_memory_profile": "use xf.memory_stats(), or xf.memory_report(f, *args).",
        "start_trace": "use with xf.profiler.trace(folder): ...",
        "stop_trace": "use with xf.profiler.trace(folder): ...",
        "start_server": "use with xf.profiler.trace(folder): ... around the steps of interest.",
        "stop_server": "use with xf.profiler.trace(folder): ... around the steps of interest.",
    },
    "xfunc.random": {
        "Key": "use torch.Tensor for keys in annotations.",
        "key_dtype": _ONE_KEY_TYPE,
        "key_impl": _ONE_KEY_TYPE,
    },
    "xfunc.sharding": {
        "AxisType": _NO_AXIS_TYPES,
        "PmapSharding": "use xf.NamedSharding.",
        "Sharding": "use xf.NamedSharding.",
        "SingleDeviceSharding": "pass the number of a device to xf.device_put.",
        "auto_axes": _NO_AXIS_TYPES,
        "explicit_axes": _NO_AXIS_TYPES,
        "UnreducedKind": _NO_AXIS_TYPES,
        **dict.fromkeys(("get_abstract_mesh", "get_mesh"), _MESH),
        "no_collectives": _NO_AXIS_TYPES,
        "make_single_device_sharding": "pass the number of a device to xf.device_put.",
        "reshard": "use xf.with_sharding_constraint in a traced function, or xf.device_put.",
        "set_mesh": "use xf.use_mesh.",
        "use_abstract_mesh": "use xf.use_mesh.",
    },
    "xfunc.tree": {
        **dict.fromkeys(("DictKey", "GetAttrKey", "SequenceKey", "keystr"), _PATHS),
        "Partial": "use optree.functools.partial, whose arguments are children.",
        "register_pytree_node": "use xf.tree.register.",
        "register_pytree_node_class": "use xf.tree.register(C, C.tree_flatten, C.tree_unflatten).",
        "register_pytree_with_keys": "use xf.tree.register(..., names=...).",
        "register_pytree_with_keys_class": "use xf.tree.register(..., names=...).",
        "register_static": "use xf.tree.register(C, lambda x: ((), x), lambda x, _: x).",
        "broadcast": "use xf.tree.map(lambda x, t: xf.tree.map(lambda _: x, t), prefix, tree).",
        "flatten_with_path": _PATHS,
        "reduce_associative": "use xf.tree.reduce.",
        "static": "name the fields in xf.tree.register_dataclass(meta_fields=...).",
    },
}

TORCH_TABLE = {
    "compile": "use xf.jit.",
    "func": "its transforms are in xf itself: xf.grad, xf.vmap, xf.jvp, xf.vjp, xf.jacrev, ...",
    "functional_call": "use xf.functional(module), or torch.func.functional_call in a function.",
    "functionalize": "delete it: functions may change the tensors that they made.",
    "grad_and_value": "use xf.value_and_grad, which returns the value first.",
    "manual_seed": "make a key, xf.random.key(seed), and draw with xf.random.",
    "no_grad": "use torch.no_grad(), or xf.stop_gradient(x).",
    "stack_module_state": "stack parameters with xf.tree.map(lambda *xs: torch.stack(xs), *trees).",
}


def install() -> None:
    """Let each module of the table raise its hints."""
    for name in TABLE:
        vars(importlib.import_module(name))["__getattr__"] = functools.partial(_missing, name)


def _missing(module: str, name: str) -> NoReturn:
    short = module.replace("xfunc", "xf", 1)
    if (hint := TABLE[module].get(name)) is not None:
        raise AttributeError(format_error(f"{short} has no {name}, which is JAX's name", hint))
    if module == "xfunc" and (hint := TORCH_TABLE.get(name)) is not None:
        raise AttributeError(format_error(f"{short} has no {name}, which is torch's name", hint))
    problem = f"module {module!r} has no attribute {name!r}"
    raise AttributeError(problem, name=name, obj=sys.modules[module])
