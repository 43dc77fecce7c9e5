"""Finding the operation that made a NaN: `search` runs a function again, operation by operation."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from xfunc import tree
from xfunc.backends import processes
from xfunc.core.locations import Location, in_user_file, user_location
from xfunc.errors import fail
from xfunc.torchlib.eager import disable_jit
from xfunc.torchlib.values import tensors_in
from xfunc.trace import effects
from xfunc.transforms.jit import jit
from xfunc.tree import PyTree

_UNINITIALISED = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")


def has_nan(x: object) -> bool:
    """Whether a tensor holds a NaN."""
    if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
        return False
    return bool((_any_nan if processes.is_shared(x) else _any_nan.fun)(x.detach()))


@jit
def _any_nan(x: torch.Tensor) -> torch.Tensor:
    return x.isnan().any()


def paths(what: object) -> Iterator[str]:
    """The key paths of a tree's leaves that hold a NaN."""
    return (path for path, x in tree.leaves_with_path(what) if has_nan(x))


def search(
    name: str, fun: Callable[..., object], args: PyTree, kwargs: PyTree, result: object
) -> None:
    """Raise a FloatingPointError if a function's result holds a NaN, saying which line made it."""
    where = next(paths(result), None)
    if where is None:
        return
    problem = f"the result{where} of {name} holds a NaN"
    given = [f"{i}{p}" for i, a in (*enumerate(args), *kwargs.items()) for p in paths(a)]
    if given:
        fail(
            FloatingPointError,
            f"{problem}, and so does its argument {given[0]}",
            "look for the NaN where the argument is computed.",
        )
    args, kwargs = tree.map(_on_cpu, (args, kwargs))
    with contextlib.ExitStack() as stack:
        stack.enter_context(disable_jit())
        stack.enter_context(effects.silenced())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # The error includes what anomaly detection prints.
        stack.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
        stack.enter_context(_Search(problem))
        fun(*args, **kwargs)
    fail(
        FloatingPointError,
        f"{problem}, but run one operation at a time it produces none",
        "the compiler's rearrangements overflow: use a wider dtype, or smaller numbers.",
    )


def _on_cpu(x: object) -> object:
    return processes.whole(x) if isinstance(x, torch.Tensor) else x


class _Search(TorchDispatchMode):
    """Runs every operation on the CPU, and raises at the first that makes a NaN."""

    def __init__(self, problem: str):
        super().__init__()
        self._problem = problem

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        named: dict[str, object]
        args, named = tree.map(_here, (args, kwargs or {}))
        out = func(*args, **named)
        name = func.overloadpacket.__name__
        outs = tree.leaves(out)
        if name in _UNINITIALISED or not any(map(has_nan, outs)):
            return out
        if any(map(has_nan, tensors_in(args, named))):
            return out
        backward = torch._C._current_autograd_node()
        at = user_location() if backward is None else _forward_line(backward)
        part = "" if backward is None else ", in the backward pass of the operation"
        fail(
            FloatingPointError,
            f"{self._problem}; {name} made the first{part}",
            "keep its inputs inside its domain (torch.where on the input, "
            "a small epsilon, a clamp).",
            at=at,
        )


def _here(x: object) -> object:
    if isinstance(x, torch.Tensor):
        return x.cpu() if x.device.type == "xla" else x
    return torch.device("cpu") if isinstance(x, torch.device) and x.type == "xla" else x


_FRAME = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)')


def _forward_line(node: Any) -> Location | None:
    """The user's line that made a node of the autograd graph, recorded by anomaly detection."""
    for text in reversed(node.metadata.get("traceback_", ())):
        found = _FRAME.search(text)
        if found and in_user_file(found["file"]):
            return Location(found["file"], int(found["line"]), found["function"].strip())
    return user_location()
