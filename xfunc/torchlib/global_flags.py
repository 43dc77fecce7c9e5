"""Settings of torch and Python that are changed in a block.

NOTE [switches of the process]: some settings of Python and torch are the same for all threads. They
are changed while any trace is open: by the first of several, and back by the last one. Where torch
or Python calls a function of ours, threads that do not trace get the original result.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn.modules import transformer

from xfunc.core.counted import Counted
from xfunc.core.device import AUTOCAST, TYPE
from xfunc.core.garbage import has_frozen

_BETWEEN_COLLECTIONS = 50_000  # new objects; Python's own number is 700


class _Thread(threading.local):
    is_tracing = is_loading = False


_thread = _Thread()


@contextlib.contextmanager
def while_tracing(more: contextlib.AbstractContextManager[object]) -> Iterator[None]:
    """Change the settings in a block that traces; `more`: changes further ones."""
    with _settings, _filters, more:
        _validates.install()
        _find_no_nan()
        _thread.is_tracing = True
        try:
            put_filters_first()
            yield
        finally:
            _thread.is_tracing = False


def is_tracing() -> bool:
    """Whether this thread is in such a block."""
    return _thread.is_tracing


@contextlib.contextmanager
def _young_garbage_only() -> Iterator[None]:
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


NO_RULE = r"(\S+): an autograd kernel was not registered to the Autograd key"
"""torch's message about an operation that it cannot differentiate."""


class _Message:
    """A pattern of a filter of warnings, for those of some threads."""

    def __init__(self, pattern: str, applies: Callable[[], bool]):
        self._pattern, self._applies = re.compile(pattern), applies

    def match(self, text: str) -> bool:
        """Whether the filter is for a warning."""
        return self._applies() and self._pattern.match(text) is not None


class _Nothing(Warning):
    """A category that no warning has."""


# torch warns where a backward pass meets an operation without a rule, and goes on with zeros. Its
# own error mode for this is not implemented in torch 2.9. vmap runs an operation without a rule one
# example at a time: in a program that need not be slower, and users could not avoid it.
_FILTERS: list[Any] = [
    (action, _Message(pattern, applies), UserWarning, None, 0)
    for action, pattern, applies in (
        ("ignore", "There is a performance drop because", is_tracing),
        ("error", NO_RULE, is_tracing),
        ("ignore", "Some donated buffers were not usable", lambda: _thread.is_loading),
    )
]


def put_filters_first() -> None:
    """Put our filters first; a ``catch_warnings`` block of Python's may have removed them."""
    filters: Any = warnings.filters
    if filters[: len(_FILTERS)] != _FILTERS and (_thread.is_tracing or _thread.is_loading):
        with _changing:
            warnings.simplefilter("ignore", _Nothing)  # So Python drops its cache of filters.
            filters = warnings.filters
            rest = [f for f in filters if f not in _FILTERS and f[2] is not _Nothing]
            filters[:] = [*_FILTERS, *rest]


@contextlib.contextmanager
def _own_filters() -> Iterator[None]:
    try:
        yield
    finally:
        with _changing:
            filters: Any = warnings.filters
            filters[:] = [f for f in filters if f not in _FILTERS]


_changing: Any = threading.RLock()
os.register_at_fork(after_in_child=_changing._at_fork_reinit)
_filters = Counted(_own_filters)


@contextlib.contextmanager
def while_loading() -> Iterator[None]:
    """Let JAX not warn, in a block that compiles a program, of buffers donated for nothing."""
    with _filters:
        before, _thread.is_loading = _thread.is_loading, True
        put_filters_first()
        try:
            yield
        finally:
            _thread.is_loading = before


# -- functions of torch for which ours stand while any trace is open

_usual: dict[str, Any] = {}  # what they replace, by name


def _compiling() -> bool:
    """Makes modules skip code that inspects data.

    Where ``torch.compiler.is_compiling()``, many models skip checks of their inputs, and build an
    attention mask instead of looking whether one is needed.
    """
    if _thread.is_tracing:
        return _is_compiling(sys._getframe(1))
    return _usual["is_compiling"]()


def _check_tensor_all(error_type: Any, cond: Any, message: Any = None) -> None:
    """Checks only what is not traced."""
    traced = isinstance(cond, torch.Tensor) and cond.device.type == TYPE
    if not (traced and cond.dtype == torch.bool and _thread.is_tracing):
        _usual["_check_tensor_all_with"](error_type, cond, message)


def _is_causal(mask: Any, is_causal: bool | None = None, size: Any = None) -> bool:
    """For layers of torch's own transformer, which would compare the mask with a causal one."""
    if _thread.is_tracing:
        return is_causal is True
    return _usual["_detect_is_causal_mask"](mask, is_causal, size)


def _has_no_amp() -> bool:
    """Lets ``torch.autocast("cuda")`` count without CUDA, where torch would disable it."""
    return not _thread.is_tracing and _usual["amp_definitely_not_available"]()


def _has_bfloat16(*args: Any, **kwargs: Any) -> bool:
    missing = _thread.is_tracing and not torch.cuda.is_available()
    return missing or _usual["is_bf16_supported"](*args, **kwargs)


def _with_known_device(name: str) -> Callable[..., Any]:
    """A function of ``torch.autocast``, which would refuse the device of traced tensors.

    That stands for the one whose block is in effect.
    """

    def known(kind: object) -> object:
        if not (_thread.is_tracing and kind == TYPE):
            return kind
        return next(filter(_usual["is_autocast_enabled"], AUTOCAST), "xla")

    def call(*args: Any, **kwargs: Any) -> Any:
        return _usual[name](*map(known, args), **{k: known(v) for k, v in kwargs.items()})

    return call


def _enter_inference_mode(block: Any) -> None:
    """Only forbids derivatives in a trace: in inference mode there are no views of other values."""
    if not (block.mode and _thread.is_tracing) or torch.is_inference_mode_enabled():
        _usual["__enter__"](block)
        return
    block.in_trace = contextlib.ExitStack()
    block.in_trace.enter_context(torch.no_grad())
    block.in_trace.enter_context(forward_ad._set_fwd_grad_enabled(False))


def _leave_inference_mode(block: Any, *error: Any) -> None:
    stack = vars(block).pop("in_trace", None)
    _usual["__exit__"](block, *error) if stack is None else stack.__exit__(*error)


_amp: Any = torch.amp.autocast_mode
_OURS: list[tuple[Any, str, Callable[..., Any]]] = [
    (torch.compiler, "is_compiling", _compiling),
    (torch, "_check_tensor_all_with", _check_tensor_all),
    (transformer, "_detect_is_causal_mask", _is_causal),
    (torch.cuda.amp.common, "amp_definitely_not_available", _has_no_amp),
    (torch.cuda, "is_bf16_supported", _has_bfloat16),
    (torch.inference_mode, "__enter__", _enter_inference_mode),
    (torch.inference_mode, "__exit__", _leave_inference_mode),
    *(
        (owner, name, _with_known_device(name))
        for owner, name in (
            (torch.autocast, "__init__"),
            (torch, "is_autocast_enabled"),
            (torch, "get_autocast_dtype"),
            (torch.amp, "is_autocast_available"),
            (_amp, "is_autocast_available"),
        )
    ),
]


@contextlib.contextmanager
def _our_functions() -> Iterator[None]:
    """Replace functions of torch.

    For speed on other devices, the fast path of torch's own transformer drops padding, which needs
    data-dependent shapes.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    usual = [getattr(owner, name) for owner, name, _ in _OURS]
    for (owner, name, ours), function in zip(_OURS, usual, strict=True):
        _usual[name] = function
        setattr(owner, name, ours)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        for (owner, name, _), function in zip(_OURS, usual, strict=True):
            setattr(owner, name, function)
        torch.backends.mha.set_fastpath_enabled(fast)


def _is_compiling(caller: types.FrameType) -> bool:
    """For ``torch.compiler.is_compiling``, called in a frame.

    Optimizers would expect dynamo, but for the function that computes a step: it asks whether it
    must know the device.
    """
    is_optimizer = caller.f_globals.get("__name__", "").startswith("torch.optim")
    return not is_optimizer or caller.f_code.co_name.startswith("_single_tensor_")


class _Validates:
    """Keeps torch.distributions from checking traced parameters, unless it is told to.

    Their values are unknown; torch would read them. It is an attribute of torch's class, at all
    times, since the state of a class is a part of the values of its instances.
    """

    def __init__(self) -> None:
        self._usual: bool = False

    def __get__(self, instance: object, owner: object = None) -> bool:
        return self._usual and not _thread.is_tracing

    def install(self) -> None:
        """Stand for the setting of the class, unless that is False."""
        base: Any = torch.distributions.Distribution
        if vars(base)["_validate_args"] is True:
            self._usual, base._validate_args = True, self


_validates = _Validates()
_validates.install()


@contextlib.contextmanager
def _finding_nan_again() -> Iterator[None]:
    try:
        yield
    finally:
        if _found_nan:
            _found_nan.clear()
            torch.set_anomaly_enabled(torch.is_anomaly_enabled(), check_nan=True)


_found_nan: list[None] = []  # One if anomaly mode did.


def _find_no_nan() -> None:
    """Keep torch's anomaly mode from reading traced gradients.

    Those that a program returns are searched, by the backward pass that runs it.
    """
    if torch.is_anomaly_check_nan_enabled():
        _found_nan[:] = [None]
        torch.set_anomaly_enabled(torch.is_anomaly_enabled(), check_nan=False)


@contextlib.contextmanager
def _all_settings() -> Iterator[None]:
    with _young_garbage_only(), _our_functions(), _finding_nan_again():
        yield


_settings = Counted(_all_settings)


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
def lazy_conjugates() -> Iterator[None]:
    """Let kernels conjugate and negate what they have marked to be, as `torch.linalg.pinv` does.

    Below a subclass, torch 2.9 takes no notice of the marks.
    """
    unset = torch._C._SetExcludeDispatchKeyGuard
    keys = torch._C.DispatchKey
    with unset(keys.Conjugate, False), unset(keys.Negative, False):
        yield
