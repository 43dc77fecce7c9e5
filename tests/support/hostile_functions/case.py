"""How a hostile function is described, and what a call leaves to be checked.

An error names the user's own file and line: a line that is a lambda of a table, or that ends in
`# bad`.
"""

from __future__ import annotations

import dataclasses
import itertools
import linecache
import re
from collections.abc import Callable
from typing import Any

import torch

import xfunc as xf
from tests.support.functions import vector
from xfunc.errors import ConcretizationError, PurityError, UnsupportedOpError

READ, PURE, UNSUPPORTED = ConcretizationError, PurityError, UnsupportedOpError
GRAD, VMAP = xf.grad, xf.vmap

_sizes = itertools.count(5)


@dataclasses.dataclass(frozen=True)
class Hostile:
    """Calling ``jit(fun)(argument())`` raises `error`, whose message holds `says`."""

    fun: Callable[..., Any]
    error: type[Exception] | tuple[type[Exception], ...]
    says: str
    argument: Callable[[], torch.Tensor] = vector
    names_line: bool = True


def no_line(fun: Any, error: Any, says: str) -> Hostile:
    return Hostile(fun, error, says, names_line=False)


def matrix() -> torch.Tensor:
    return torch.tensor([[4.0, 1.0], [1.0, 3.0]])


def assert_alive() -> None:
    """An ordinary call, of a function and a shape never seen before, and a synchronisation."""
    import torch_xla

    n = next(_sizes)
    x = torch.arange(n, dtype=torch.float32)
    assert xf.jit(lambda x, k=n: x * 2 + k)(x).tolist() == (x * 2 + n).tolist()
    lazy = x.to(torch_xla.device()) + 1
    torch_xla.sync()
    assert lazy.tolist() == (x + 1).tolist()


def assert_names_the_line(message: str, files: str) -> None:
    """The first line in a file of this pattern that an error names is a bad one."""
    places = re.findall(rf"(/[^:\n]*(?:{files})):(\d+)", message)
    assert places, f"no line of the user's in: {message}"
    text = linecache.getline(places[0][0], int(places[0][1]))
    assert "lambda" in text or "# bad" in text, f"{message}\nnames the line: {text}"
    assert "Hint: " in message
