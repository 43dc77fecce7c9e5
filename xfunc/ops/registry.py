"""The table of kernels, and their registration with torch's dispatcher.

NOTE [kernels]: a kernel computes an operation that has no rule (`xfunc.rules`) with other torch
operations. It sits below everything that transforms an operation: autograd's formulas, the batching
rules of torch.func, and the operations that torch composes of others in C++ all reach it. Where a
kernel is missing, too, torch's own composition is used (`xfunc.ops.fallback`).

NOTE [which way to replace an operation]: from the user's call down to the device, higher levels
cover more (derivatives, batching), and lower levels are reached by more callers:

- a function in `xfunc.torchlib.replacements` runs in place of a torch function that traced code
  calls, before autograd and torch.func see it: for operations that other torch functions can
  express;
- a `composition` replaces an operation's own derivative and batching rule with those of the
  operations that it is composed of, wherever it is called;
- a `differentiable` function brings its own derivative: where torch's formula is wrong, or needs
  an operation that cannot be lowered;
- a `batched` function is only a batching rule for torch.func's vmap: where it is missing or wrong;
- a `kernel` only computes values, where torch's derivative is right.

NOTE [kernels are written with views]: above the device's key torch turns views and in-place writes
into plain operations ("functionalisation"); below it a view is a copy, and a write to it is lost.
Our kernels therefore run above it again, on wrapped tensors.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad

from xfunc.core import device
from xfunc.core.torch_versions import is_missing
from xfunc.torchlib.functorch import (
    differentiates_pushes,
    differentiates_twice,
    is_watched_at_this_level,
)
from xfunc.torchlib.values import tensors_in

R = TypeVar("R")
V = TypeVar("V")
K = TypeVar("K", bound=Callable[..., object])


Kernel = Callable[..., object]

_kernels: dict[str, Kernel] = {}
_unless: dict[str, Callable[..., bool]] = {}
_compositions: dict[str, Kernel] = {}
_differentiable: dict[str, Kernel] = {}
_when: dict[str, Callable[..., bool]] = {}
_batched: dict[str, Kernel] = {}
_original: Callable[[str], Callable[..., Any]] | None = None
_libraries: list[torch.library.Library] = []  # An override lives as long as its library.
_LEVEL = "Functionalize"


def _each(names: Iterable[str], value: V) -> dict[str, V]:
    """This value for each of these operations that torch has."""
    return {name: value for name in names if not is_missing(name)}


def kernel(*names: str) -> Callable[[K], K]:
    """A decorator: this is the kernel of these dispatcher operations.

    Args:
        names: without ``aten::``, with the overload after a dot.
    """

    def put(function: K) -> K:
        _kernels.update(_each(names, function))
        return function

    return put


def composition(*names: str, when: Callable[..., bool] | None = None) -> Callable[[K], K]:
    """A decorator: this function's torch operations replace these, under differentiation too.

    For operations whose derivative in torch is missing, wrong or cannot be lowered.

    Args:
        names: as for `kernel`; without a condition, this registers a kernel too.
        when: for which arguments, under differentiation; torch's rule handles the others.
    """

    def put(function: K) -> K:
        _compositions.update(_each(names, function))
        if when is None:
            return kernel(*names)(function)
        _when.update(_each(names, when))
        return function

    return put


def is_pushed(*args: object, **kwargs: object) -> bool:
    """A condition of a `composition`: an argument has a tangent."""
    return any(
        isinstance(a, torch.Tensor) and forward_ad.unpack_dual(a, level=0).tangent is not None
        for a in args
    )


def is_twice(*args: object, **kwargs: object) -> bool:
    """A condition of a `composition`: there is differentiation within differentiation."""
    return differentiates_twice(args)


def is_nested(*args: object, **kwargs: object) -> bool:
    """A condition of a `composition`: see NOTE [derivatives of derivatives]."""
    return differentiates_pushes(args)


def batched(*names: str) -> Callable[[K], K]:
    """A decorator: this function's torch operations replace these under vmap.

    For operations whose batching rule in torch is missing, wrong or cannot be lowered. The rule is
    not specific to a device: it applies to CPU tensors as well.
    """

    def put(function: K) -> K:
        _batched.update(_each(names, function))
        return function

    return put


def differentiable(*names: str) -> Callable[[K], K]:
    """A decorator: this function wraps torch's own operations, with torch's own derivatives.

    For operations whose arguments must pass `materialize` first. The function's first argument is
    torch's own operation.
    """

    def put(function: K) -> K:
        _differentiable.update(_each(names, function))
        return function

    return put


def wrap(
    name: str, decorator: Callable[[str, Kernel], Kernel], unless: Callable[..., bool]
) -> None:
    """Wrap the kernel of an operation, whether ours or the device's own.

    Args:
        name: name of the operation.
        decorator: takes the name and the kernel, and returns a new kernel.
        unless: for which arguments the existing kernel is right.
    """
    if name not in _kernels:
        kernel(name)(decorator(name, original(name)))
        _unless.update(_each([name], unless))
        return
    _kernels[name] = decorator(name, _kernels[name])
    if name in _compositions:
        _compositions[name] = decorator(name, _compositions[name])
    before = _unless.get(name)
    if before is not None:
        _unless[name] = lambda *args: before(*args) and unless(*args)


def original(name: str) -> Callable[..., Any]:
    """The device's own computation of an operation that has a kernel."""

    def call(*args: object, **kwargs: object) -> object:
        return defunctionalized(_found(name), *args, **kwargs)

    return call


def functionalized(function: Callable[..., R], *args: object, **kwargs: object) -> R:
    """Call a kernel written with views: see NOTE [kernels are written with views]."""
    with _level(excluded=False):
        return _unwrap(function(*_wrap(args), **{k: _wrap(v) for k, v in kwargs.items()}))


def defunctionalized(function: Callable[..., R], *args: object, **kwargs: object) -> R:
    """Record something in a kernel: see NOTE [kernels are written with views]."""
    raw, kwraw = _unwrap(args), {k: _unwrap(v) for k, v in kwargs.items()}
    with _level(excluded=True):
        return _wrap(function(*raw, **kwraw))


def install() -> None:
    """Register the kernels with the dispatcher."""
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    with warnings.catch_warnings():
        # torch warns, once in a process, when a kernel replaces another.
        warnings.filterwarnings("ignore", "[^$]*Overriding a previously registered kernel")
        for name, function in _compositions.items():
            _replace_derivative(library, name, function)
        for name, function in _batched.items():
            library.impl(name, function, "FuncTorchBatched", allow_override=True)
        for name, function in _differentiable.items():
            # The formula is the same for every device.
            formula = torch.library.get_kernel(f"aten::{name}", "AutogradCPU").call_boxed
            run = functools.partial(_derived, function, formula)
            library.impl(name, run, device.AUTOGRAD, with_keyset=True, allow_override=True)
            _replace_wrapped(library, name, run)


def _replace_derivative(library: torch.library.Library, name: str, function: Kernel) -> None:
    """Put a composition in place of torch's own derivative."""
    if name in _when:
        run = _chosen(name, function, device.AUTOGRAD)
        library.impl(name, run, device.AUTOGRAD, with_keyset=True)
    else:
        library.impl(name, function, device.AUTOGRAD)
    run = functools.partial(_without_keys, function)
    if name in _when:
        run = _chosen(name, function, device.AUTOGRAD_WRAPPED)
    _replace_wrapped(library, name, run)


def _replace_wrapped(library: torch.library.Library, name: str, run: Kernel) -> None:
    """Register a derivative for wrapped placeholders; other devices keep torch's own."""
    key = device.AUTOGRAD_WRAPPED
    rule = torch.library.get_kernel(f"aten::{name}", key)

    def choose(keys: torch._C.DispatchKeySet, *args: object, **kwargs: object) -> object:
        if any(t.device.type == device.TYPE for t in tensors_in(args, kwargs)):
            return run(keys, *args, **kwargs)
        return rule.call_boxed(keys, *args, **kwargs)

    library.impl(name, choose, key, with_keyset=True, allow_override=True)


def kernel_of(name: str) -> Kernel | None:
    """The kernel of an operation, as it is called below functionalisation."""
    function = _kernels.get(name)
    return None if function is None else _functionalised(name, function)


def set_originals(of: Callable[[str], Callable[..., Any]]) -> None:
    """Give the function that finds the device's own computation of an operation."""
    global _original
    _original = of


@functools.cache
def _found(name: str) -> Callable[..., Any]:
    assert _original is not None, name
    return _original(name)


def _without_keys(function: Kernel, keys: object, *args: object, **kwargs: object) -> object:
    return function(*args, **kwargs)


def _chosen(name: str, function: Kernel, key: str) -> Kernel:
    """A composition that is used only for some arguments."""
    rule, when = torch.library.get_kernel(f"aten::{name}", key), _when[name]

    def run(keys: torch._C.DispatchKeySet, *args: object, **kwargs: object) -> object:
        tensors = (a for a in args if isinstance(a, torch.Tensor))
        if when(*args, **kwargs) and any(map(is_watched_at_this_level, tensors)):
            return function(*args, **kwargs)
        return rule.call_boxed(keys, *args, **kwargs)

    return run


def _derived(
    function: Kernel, formula: Kernel, keys: object, *args: object, **kwargs: object
) -> object:
    return function(functools.partial(formula, keys), *args, **kwargs)


def tensor_places(name: str) -> list[int]:
    """The positions of an operation's tensor arguments."""
    base, _, overload = name.partition(".")
    arguments = torch._C._get_schema(f"aten::{base}", overload).arguments
    return [k for k, a in enumerate(arguments) if str(a.type) == "Tensor"]


def _on_device(x: torch.Tensor) -> torch.Tensor:
    """Move a 0-d CPU array to the device: torch treats it as a number, on any device."""
    return torch.full((), x.item(), dtype=x.dtype, device=device.TYPE)


def _functionalised(name: str, function: Kernel) -> Kernel:
    """See NOTE [kernels are written with views]."""
    unless = _unless.get(name)

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        if unless is not None and unless(*args):
            return _found(name)(*args, **kwargs)
        return functionalized(function, *args, **kwargs)

    return run


class _level:
    """Sets whether operations are functionalised in a block."""

    def __init__(self, excluded: bool):
        self._excluded = excluded

    def __enter__(self) -> None:
        self._before = torch._C._dispatch_tls_is_dispatch_key_excluded(_LEVEL)
        torch._C._dispatch_tls_set_dispatch_key_excluded(_LEVEL, self._excluded)

    def __exit__(self, *_: object) -> None:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_LEVEL, self._before)


def _wrap(x: object) -> Any:
    if isinstance(x, torch.Tensor):
        if x.ndim == 0 and x.is_cpu:
            return _on_device(x)
        if x.device.type != device.TYPE or torch._is_functional_tensor(x):
            return x
        return torch._to_functional_tensor(x)
    if isinstance(x, (list, tuple)):
        return type(x)(_wrap(v) for v in x) if type(x) in (list, tuple) else tuple(map(_wrap, x))
    return x


def _unwrap(x: object) -> Any:
    if isinstance(x, torch.Tensor):
        if not torch._is_functional_tensor(x):
            return x
        torch._sync(x)
        return torch._from_functional_tensor(x)
    if isinstance(x, list):
        return [_unwrap(v) for v in x]
    if isinstance(x, tuple):
        return tuple(_unwrap(v) for v in x)
    return x
