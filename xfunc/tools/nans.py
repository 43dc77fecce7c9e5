"""Finding the operation that made a NaN or an infinity.

A `Finder` runs the function again, operation by operation.
"""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Kind:
    """A kind of number that a result should not hold.

    Attributes:
        name: with its article.
        test: torch's function that finds it.
        hint: how to avoid it.
    """

    name: str
    test: Callable[[torch.Tensor], torch.Tensor]
    hint: str

    def is_in(self, x: object) -> bool:
        """Whether a tensor holds one."""
        if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
            return False
        return bool((_any if processes.is_shared(x) else _any.fun)(x.detach(), test=self.test))

    def paths(self, what: object) -> Iterator[str]:
        """The key paths of a tree's leaves that hold one."""
        return (path for path, x in tree.leaves_with_path(what) if self.is_in(x))


NAN = Kind(
    "a NaN",
    torch.isnan,
    "keep its inputs inside its domain (torch.where on the input, a small epsilon, a clamp).",
)
INFINITY = Kind(
    "an infinity",
    torch.isinf,
    "keep its inputs in range (a clamp, a small epsilon in the divisor), or use a wider dtype.",
)


@functools.partial(jit, static_argnames="test")
def _any(x: torch.Tensor, test: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return test(x).any()


@dataclass(frozen=True)
class Finder:
    """Raises a FloatingPointError if a function's result holds a number of some kinds.

    The error says which line made it.
    """

    kinds: tuple[Kind, ...]

    def __call__(
        self, name: str, fun: Callable[..., object], args: PyTree, kwargs: PyTree, result: object
    ) -> None:
        for kind in self.kinds:
            if (where := next(kind.paths(result), None)) is not None:
                problem = f"the result{where} of {name} holds {kind.name}"
                _search(kind, problem, fun, args, kwargs)


def _search(
    kind: Kind, problem: str, fun: Callable[..., object], args: PyTree, kwargs: PyTree
) -> None:
    given = [f"{i}{p}" for i, a in (*enumerate(args), *kwargs.items()) for p in kind.paths(a)]
    if given:
        fail(
            FloatingPointError,
            f"{problem}, and so does its argument {given[0]}",
            "look for its cause where the argument is computed.",
        )
    args, kwargs = tree.map(_on_cpu, (args, kwargs))
    with contextlib.ExitStack() as stack:
        stack.enter_context(disable_jit())
        stack.enter_context(effects.silenced())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # The error includes the output of anomaly detection.
        stack.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
        stack.enter_context(_Search(kind, problem))
        fun(*args, **kwargs)
    fail(
        FloatingPointError,
        f"{problem}, but run one operation at a time it produces none",
        "the compiler's rearrangements overflow: use a wider dtype, or smaller numbers.",
    )


def _on_cpu(x: object) -> object:
    return processes.whole(x) if isinstance(x, torch.Tensor) else x


class _Search(TorchDispatchMode):
    """Runs every operation on the CPU, and raises at the first that makes a number of a kind."""

    def __init__(self, kind: Kind, problem: str):
        super().__init__()
        self._kind, self._problem = kind, problem

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
        if name in _UNINITIALISED or not any(map(self._kind.is_in, outs)):
            return out
        if any(map(self._kind.is_in, tensors_in(args, named))):
            return out
        backward = torch._C._current_autograd_node()
        at = user_location() if backward is None else _forward_line(backward)
        part = "" if backward is None else ", in the backward pass of the operation"
        fail(
            FloatingPointError,
            f"{self._problem}; {name} made the first{part}",
            self._kind.hint,
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
