"""Settings of torch, torch_xla and Python that are changed in a block."""

from __future__ import annotations

import contextlib
import gc
import sys
import warnings
from collections.abc import Iterator

import torch
from torch.nn.modules import transformer

from xfunc.core.garbage import has_frozen

_BETWEEN_COLLECTIONS = 50_000  # new objects; Python's own number is 700


@contextlib.contextmanager
def young_garbage_only() -> Iterator[None]:
    """Restrict garbage collection to objects created from now on, and let it run less often.

    Half of all traces leave reference cycles behind. Collecting them takes 4 ms this way, but
    260 ms if all the objects of torch and other libraries are examined. Nearly all of what a trace
    makes lives until its end.
    """
    first, *others = gc.get_threshold()
    frozen = has_frozen()  # Someone else, who may not want them back.
    if first:  # else it is switched off
        gc.set_threshold(max(first, _BETWEEN_COLLECTIONS), *others)
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        gc.set_threshold(first, *others)


@contextlib.contextmanager
def derivatives_or_errors() -> Iterator[None]:
    """Make torch raise, instead of warn, when a backward pass meets an operation without a rule.

    torch would go on with zeros. Its own error mode for this is not implemented in torch 2.9.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", NO_RULE, UserWarning)
        # vmap runs an operation without a rule one example at a time. In a program that need
        # not be slower, and users could not avoid it.
        warnings.filterwarnings("ignore", "There is a performance drop because", UserWarning)
        yield


NO_RULE = r"(\S+): an autograd kernel was not registered to the Autograd key"
"""torch's message about an operation that it cannot differentiate."""


@contextlib.contextmanager
def reading_nothing() -> Iterator[None]:
    """Make modules skip code that inspects data.

    Where ``torch.compiler.is_compiling()``, many models skip checks of their inputs, and build an
    attention mask instead of looking whether one is needed. For speed on other devices, the fast
    path of torch's own transformer drops padding, and its layers check whether a mask is causal:
    that needs data-dependent shapes or reads data.
    """
    compiling, detect = torch.compiler.is_compiling, transformer._detect_is_causal_mask
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.compiler.is_compiling = _is_compiling
    transformer._detect_is_causal_mask = _is_said_to_be_causal
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.compiler.is_compiling = compiling
        transformer._detect_is_causal_mask = detect
        torch.backends.mha.set_fastpath_enabled(fast)


def _is_compiling() -> bool:
    """For ``torch.compiler.is_compiling``.

    Optimizers would expect dynamo, but for the function that computes a step: it asks whether it
    must know the device.
    """
    caller = sys._getframe(1)
    is_optimizer = caller.f_globals.get("__name__", "").startswith("torch.optim")
    return not is_optimizer or caller.f_code.co_name.startswith("_single_tensor_")


def _is_said_to_be_causal(mask: object, is_causal: bool | None = None, size: object = None) -> bool:
    return is_causal is True


@contextlib.contextmanager
def no_saved_tensors_hooks() -> Iterator[None]:
    """Disable the user's hooks on tensors saved by autograd (`torch.autograd.graph.save_on_cpu`).

    A trace saves placeholders; values saved by a call of its program do go through the hooks.
    """
    hooks = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]
    taken = []
    while (top := hooks._top_saved_tensors_default_hooks(True)) is not None:
        taken.append(top)
        hooks._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(taken):
            hooks._push_saved_tensors_default_hooks(pack, unpack)


@contextlib.contextmanager
def no_search_for_nan() -> Iterator[None]:
    """Keep torch's anomaly mode from reading traced gradients.

    Those that a program returns are searched, by the backward pass that runs it.
    """
    if not torch.is_anomaly_check_nan_enabled():
        yield
        return
    is_enabled = torch.is_anomaly_enabled()
    torch.set_anomaly_enabled(is_enabled, check_nan=False)
    try:
        yield
    finally:
        torch.set_anomaly_enabled(is_enabled, check_nan=True)


@contextlib.contextmanager
def no_validation_of_distributions() -> Iterator[None]:
    """Keep torch.distributions from checking traced parameters, unless it is told to.

    Their values are unknown; torch would read them.
    """
    base = torch.distributions.Distribution
    before = base._validate_args
    base._validate_args = False
    try:
        yield
    finally:
        base._validate_args = before


@contextlib.contextmanager
def lazy_conjugates() -> Iterator[None]:
    """Let kernels conjugate and negate what they have marked to be, as `torch.linalg.pinv` does.

    Below a subclass, torch 2.9 takes no notice of the marks.
    """
    unset = torch._C._SetExcludeDispatchKeyGuard
    keys = torch._C.DispatchKey
    with unset(keys.Conjugate, False), unset(keys.Negative, False):
        yield
