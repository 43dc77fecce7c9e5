"""`torch.utils.checkpoint.checkpoint` in traced code is `checkpoint`.

NOTE [how torch's checkpoint is reached]: modules import the function by name, so replacing it in
``torch.utils.checkpoint`` would miss them. torch's function is a wrapper that calls an attribute of
the wrapped function; that attribute is replaced.
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
_IGNORED = ("use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop")
_plain: Any = inspect.unwrap(vars(torch.utils.checkpoint)["checkpoint"])


def _checkpoint(
    function: Callable[..., object],
    *args: object,
    context_fn: Callable[..., object] = torch.utils.checkpoint.noop_context_fn,
    **kwargs: Any,
) -> object:
    trace = tracing.current()
    # Transforms of torch.func, which `disable_jit` uses, refuse torch's own checkpoint.
    is_transformed = is_eager() and functorch.is_transformed()
    if not is_transformed and (trace is None or is_eager()):
        return _original(function, *args, context_fn=context_fn, **kwargs)
    if context_fn is not torch.utils.checkpoint.noop_context_fn:
        fail(
            UnsupportedOpError,
            "torch.utils.checkpoint.checkpoint was given a context_fn, which runs at each call",
            "choose what is kept by xf.checkpoint(function, policy=...).",
        )
    for name in _IGNORED:
        kwargs.pop(name, None)
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


def _original(*args: object, **kwargs: object) -> object:
    """torch's own function, as torch would call it."""
    import torch._dynamo

    disable: Any = vars(torch._dynamo)["disable"]
    return disable(_plain, True, wrapping=False)(*args, **kwargs)


def install() -> None:
    """See NOTE [how torch's checkpoint is reached]."""
    vars(_plain)[_ATTRIBUTE] = _checkpoint
