"""`torch.utils.checkpoint.checkpoint` in traced code is `checkpoint`.

NOTE [how torch's checkpoint is reached]: modules import the function by name, so replacing it in
``torch.utils.checkpoint`` would miss them. torch's function is a wrapper that calls an attribute of
the wrapped function; that attribute is replaced. From torch 2.15 on, ``checkpoint`` without a
function gives a decorator, and what that decorates calls a function of the module, which is
replaced too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint

from xfunc import tree
from xfunc.errors import UnsupportedOpError, fail
from xfunc.random.implicit import implicit
from xfunc.torchlib import functorch
from xfunc.torchlib.eager import is_eager
from xfunc.trace import tracing
from xfunc.transforms.checkpoint import checkpoint

_ATTRIBUTE = "__dynamo_disable"
_module: Any = torch.utils.checkpoint
_plain: Any = inspect.unwrap(vars(_module)["checkpoint"])
_parameters = inspect.signature(_plain).parameters.values()
_OPTIONS = {p.name for p in _parameters if p.kind is p.KEYWORD_ONLY} | {"preserve_rng_state"}
_impl: Any = getattr(_module, "_checkpoint_impl", None)


def _checkpoint(function: Any = None, *args: Any, **kwargs: Any) -> object:
    if function is None and not args:
        return _plain(**kwargs)  # a decorator, or a TypeError
    options = {name: kwargs.pop(name) for name in _OPTIONS & kwargs.keys()}
    return _run(_original, function, args, kwargs, options)


def _checkpoint_decorated(function: Any, args: Any, kwargs: Any, **options: Any) -> object:
    return _run(_impl, function, args, kwargs, options)


def _run(
    original: Callable[..., object],
    function: Any,
    args: tuple[object, ...],
    kwargs: dict[str, Any],
    options: dict[str, Any],
) -> object:
    trace = tracing.current()
    # Transforms of torch.func, which `disable_jit` uses, refuse torch's own checkpoint.
    is_transformed = is_eager() and functorch.is_transformed()
    if not is_transformed and (trace is None or is_eager()):
        return original(function, args, kwargs, **options)
    no_contexts = _module.noop_context_fn
    if options.get("context_fn", no_contexts) is not no_contexts:
        fail(
            UnsupportedOpError,
            "torch.utils.checkpoint.checkpoint was given a context_fn, which runs at each call",
            "choose what is kept by xf.checkpoint(function, policy=...).",
        )
    if trace is None or is_transformed:
        return function(*args, **kwargs)
    given: Any = (args, kwargs)
    leaves, structure = tree.flatten(given)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    others = [None if i in places else leaf for i, leaf in enumerate(leaves)]

    def run(*tensors: torch.Tensor) -> object:
        filled: list[Any] = [*others]
        for i, tensor in zip(places, tensors, strict=True):
            filled[i] = tensor
        whole: Any = tree.unflatten(structure, filled)
        args, kwargs = whole
        return function(*args, **kwargs)

    def run_with_key(key: torch.Tensor, *tensors: torch.Tensor) -> object:
        with implicit(key):
            return run(*tensors)

    tensors: list[Any] = [leaves[i] for i in places]
    source = trace.implicit
    if isinstance(source, implicit) and source.trace is trace:
        return checkpoint(run_with_key)(source.next_key(), *tensors)
    return checkpoint(run)(*tensors)


def _original(function: Any, args: Any, kwargs: Any, **options: Any) -> object:
    """torch's own function, as torch would call it."""
    import torch._dynamo

    disable: Any = vars(torch._dynamo)["disable"]
    return disable(_plain, True, wrapping=False)(function, *args, **kwargs, **options)


def install() -> None:
    """See NOTE [how torch's checkpoint is reached]."""
    vars(_plain)[_ATTRIBUTE] = _checkpoint
    if _impl is not None:
        _module._checkpoint_impl = _checkpoint_decorated
