"""Operations without a rule: by a kernel of `xfunc.ops`, or torch's decomposition."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch

from xfunc.core import torch_versions
from xfunc.errors import PurityError, UnsupportedOpError, fail
from xfunc.ops import registry
from xfunc.torchlib import torch_functions
from xfunc.tracer import placeholders
from xfunc.tracer.table import BASES, operation


def compute(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Compute an operation without a rule, by other operations.

    Raises:
        UnsupportedOpError: there is no way.
    """
    run = _way(func)
    if run is None:
        _refuse(func)
    return run(*args, **kwargs)


def _refuse(func: Any) -> NoReturn:
    if torch.Tag.nondeterministic_seeded in func.tags:
        fail(PurityError, torch_functions.DRAWS, torch_functions.KEYED, at=None)
    fail(
        UnsupportedOpError,
        f"{func.name().removeprefix('aten::')} has no rule, and no decomposition",
        "write it with other torch operations, or use xf.pure_callback.",
    )


_NO_KERNELS = "VE"  # a device for which torch has no kernels: it gets the composites


@functools.cache
def _way(func: Any) -> Callable[..., Any] | None:
    name = func.name().removeprefix("aten::")
    kernel = registry.kernel_of(name)
    if kernel is not None:
        return kernel
    return _below_kernels(func)


def _below_kernels(func: Any) -> Callable[..., Any] | None:
    name = func.name().removeprefix("aten::")
    rule = BASES.get(name)
    if rule is not None:

        def by_rule(*args: Any, **kwargs: Any) -> Any:
            out = rule(*args, **kwargs)
            if out is NotImplemented:
                run = _composed(func)
                return _refuse(func) if run is None else run(*args, **kwargs)
            return placeholders.as_placeholders(out)

        return by_rule
    return _composed(func)


def _composed(func: Any) -> Callable[..., Any] | None:
    """torch's own composite in C++, else its decomposition in Python."""
    for key in ("CompositeExplicitAutograd", "CompositeImplicitAutograd",
                "CompositeExplicitAutogradNonFunctional"):  # fmt: skip
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key):
            return functools.partial(_once, func)
    return _decomposed(func)


def _decomposed(func: Any) -> Callable[..., Any] | None:
    from torch._decomp import decomposition_table  # half a second of imports

    found = decomposition_table.get(func)
    return None if found is None else functools.partial(registry.functionalized, found)


class _Active(threading.local):
    def __init__(self) -> None:
        self.operations: list[object] = []


_active = _Active()


def _once(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a composite; or torch's decomposition, if it is of its own form with ``out=``.

    Such a composite comes back as itself. A draw has no other form: its decomposition comes back,
    too.
    """
    if any(f is func for f in _active.operations):
        run = None if torch.Tag.nondeterministic_seeded in func.tags else _decomposed(func)
        return _refuse(func) if run is None else run(*args, **kwargs)
    _active.operations.append(func)
    try:
        return registry.functionalized(_composite(func), *args, **kwargs)
    finally:
        _active.operations.pop()


@functools.cache
def _composite(func: Any) -> Callable[..., Any]:
    call = torch.library.get_kernel(func.name(), _NO_KERNELS).call_boxed
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, placeholders.KEY))
    return functools.partial(call, keys)


def base_of(name: str) -> Callable[..., Any]:
    """The device's own computation of an operation that has a kernel."""
    found = _below_kernels(operation(name))
    assert found is not None, name
    return found


def install() -> None:
    """Compute operations without a rule."""
    torch_versions.functionalise_logic()
    placeholders.fallback.append(compute)
    registry.set_originals(base_of)
