"""The private names of torch that xfunc uses, by what for: any release of torch may change them.

A test finds all in our source and compares, and another says which of them the torch that is
installed lacks. An attribute of values is listed under a class or value that has it. The names
of operations (``aten::_softmax``) are part of torch's format of programs, and are not listed.
"""

from __future__ import annotations

from collections.abc import Mapping

NAMES: Mapping[str, tuple[str, ...]] = {
    "calls without the functions of classes and modes": (
        "torch._C.DisableTorchFunction",
        "torch._C.DisableTorchFunctionSubclass",
        "torch._C._disabled_torch_function_impl",
        "torch._C._is_torch_function_mode_enabled",
        "torch._C._len_torch_dispatch_stack",
        "torch._C._len_torch_function_stack",
        "torch._C._get_dispatch_mode",
        "torch._C._TorchDispatchModeKey",
        "torch.utils._mode_utils.no_dispatch",
        "torch.utils._python_dispatch.TorchDispatchMode",
    ),
    "the dispatcher and its keys": (
        "torch._C.DispatchKey",
        "torch._C.DispatchKeySet",
        "torch._C._AutoDispatchBelowAutograd",
        "torch._C._SetExcludeDispatchKeyGuard",
        "torch._C._dispatch_get_all_op_names",
        "torch._C._dispatch_has_computed_kernel_for_dispatch_key",
        "torch._C._dispatch_has_kernel_for_dispatch_key",
        "torch._C._dispatch_keys",
        "torch._C._dispatch_tls_is_dispatch_key_excluded",
        "torch._C._dispatch_tls_set_dispatch_key_excluded",
        "torch._C._get_schema",
        "torch._ops.OpOverload",
        "torch.ops.aten.add.Tensor._schema",
        "torch._ops.OpOverloadPacket",
        "torch.ops.aten.add._qualified_op_name",
        "torch._decomp.decomposition_table",
        "torch._decomp.decompositions_for_jvp.decomposition_table_for_jvp",
        "torch._prims_common.canonicalize_dims",
        "torch._prims_common.validate_no_repeating_dims",
    ),
    "views and in-place writes as plain operations": (
        "torch._from_functional_tensor",
        "torch._is_functional_tensor",
        "torch._sync",
        "torch._to_functional_tensor",
    ),
    "the levels of torch.func": (
        "torch._C._DisableFuncTorch",
        "torch._C._are_functorch_transforms_active",
        "torch._C._functorch.TransformType",
        "torch._C._functorch._add_batch_dim",
        "torch._C._functorch._grad_decrement_nesting",
        "torch._C._functorch._grad_increment_nesting",
        "torch._C._functorch._unwrap_for_grad",
        "torch._C._functorch._wrap_for_grad",
        "torch._C._functorch.get_interpreter_stack",
        "torch._C._functorch.get_unwrapped",
        "torch._C._functorch.is_batchedtensor",
        "torch._C._functorch.is_functorch_wrapped_tensor",
        "torch._C._functorch.is_gradtrackingtensor",
        "torch._C._functorch.maybe_get_bdim",
        "torch._C._functorch.maybe_get_level",
        "torch._C._functorch.peek_interpreter_stack",
        "torch._C._functorch.unwrap_if_dead",
        "torch._functorch.eager_transforms.JVP_NESTING",
        "torch._functorch.eager_transforms._unwrap_for_grad",
        "torch._functorch.eager_transforms._wrap_for_grad",
        "torch._functorch.eager_transforms._wrap_functional_tensor",
        "torch._functorch.eager_transforms.enable_inplace_requires_grad",
        "torch._functorch.eager_transforms.jvp_increment_nesting",
        "torch._functorch.eager_transforms.lazy_dynamo_disallow",
        "torch._functorch.pyfunctorch.retrieve_current_functorch_interpreter",
        "torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack",
        "torch._functorch.utils.unwrap_dead_wrappers",
        "torch._functorch.vmap._add_batch_dim",
    ),
    "derivatives": (
        "torch._C._any_requires_grad",
        "torch._C._current_autograd_node",
        "torch._C._current_graph_task_id",
        "torch._C._set_multithreading_enabled",
        "torch._C._autograd._pop_saved_tensors_default_hooks",
        "torch._C._autograd._push_saved_tensors_default_hooks",
        "torch._C._autograd._top_saved_tensors_default_hooks",
        "torch._functorch.autograd_function.custom_function_call",
        "torch._functorch.autograd_function.enable_single_level_autograd_function",
        "torch._functorch.autograd_function.generate_single_level_function",
        "torch.autograd.forward_ad._current_level",
        "torch.autograd.forward_ad._set_fwd_grad_enabled",
        "torch.autograd.Function._backward_cls._forward_cls",
        "torch.autograd.function._SingleLevelFunction",
        "torch.autograd.graph._engine_run_backward",
    ),
    "what tensors are, and who holds them": (
        "torch._C.TensorBase",
        "torch._C._is_alias_of",
        "torch._C._swap_tensor_impl",
        "torch._efficientzerotensor",
        "torch.Tensor._fix_weakref",
        "torch.Tensor._is_view",
        "torch.Tensor._is_zerotensor",
        "torch.Tensor._make_wrapper_subclass",
        "torch.Tensor._use_count",
        "torch.Tensor._version",
        "torch.UntypedStorage._cdata",
    ),
    "switches of the process and of threads": (
        "torch._C._get_deterministic_algorithms",
        "torch._C._is_any_autocast_enabled",
        "torch._C._is_tracing",
        "torch.distributions.Distribution._validate_args",
    ),
    "torch.compile, which must leave our functions alone": (
        "torch._C._dynamo.eval_frame._FrameAction",
        "torch._C._dynamo.eval_frame._FrameExecStrategy",
        "torch._C._dynamo.eval_frame.set_code_exec_strategy",
        "torch._dynamo.disable",
    ),
    "torch.fx, which must not trace our values": (
        "torch.fx.experimental.proxy_tensor._MakefxTracer.trace",
    ),
    "functions that modules of torch call": (
        "torch._check",
        "torch._check_tensor_all_with",
        "torch._grouped_mm",
        "torch._pack_padded_sequence",
        "torch._sample_dirichlet",
        "torch.distributions.dirichlet._Dirichlet",
        "torch.nn.init._calculate_correct_fan",
        "torch.nn.modules.transformer._detect_is_causal_mask",
        "torch.utils._device._device_constructors",
        "torch.utils._pytree.NodeDef",
        "torch.utils._pytree.SUPPORTED_NODES",
        "torch.utils._pytree.tree_leaves",
        "torch.utils._pytree.tree_map",
    ),
    "checkpoints": (
        "torch.distributed._shard._utils.narrow_tensor_by_index",
        "torch.distributed.checkpoint.filesystem._StorageInfo",
    ),
    "modules that are recognised by name": ("torch._tensor.Tensor",),
}
"""Those of every release that is supported."""

SOME: Mapping[str, str] = {
    "torch._C._set_storage_data_ptr_access_error_msg": (
        "in builds with CUDA; else `_set_throw_on_mutable_data_ptr`, and reads of `x.data` are "
        "refused by `xfunc.core.torch_versions`"
    ),
    "torch.autograd.function._bind_default_args": (
        "from torch 2.14 on, whose `apply` of functions is written in C: see "
        "`functorch.intercept_operands`"
    ),
    "torch.autograd.function._call_custom_function_call": "likewise",
    "torch._dynamo.OptimizedModule._orig_mod": "that of a module; only recognised",
    "torch._dynamo.disable._torchdynamo_disable": "that of a function; torch.compile reads it",
    "torch.utils.checkpoint._checkpoint_impl": (
        "from torch 2.15 on, where `checkpoint` makes decorators, too: see "
        "`xfunc.tools.torch_checkpoint`"
    ),
    "torch._C._set_throw_on_mutable_data_ptr": "see `_set_storage_data_ptr_access_error_msg`",
}
"""Those that only some releases or builds have, and what is done without them."""
