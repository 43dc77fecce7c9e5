"""What differs between releases of torch: all that asks for its version, or for what some lack."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable

import torch


def properties(*names: str) -> list[Callable[..., object]]:
    """The getters of these properties of tensors, without those that this release no longer has.

    Named tensors went with torch 2.13.
    """
    return [getattr(torch.Tensor, n).__get__ for n in names if hasattr(torch.Tensor, n)]


@functools.cache
def load_tangents_of_compositions() -> None:
    """Import what torch imports at the first forward derivative.

    It compiles them by ``torch.jit.script``, at which torch 2.12 and later warn: of its own code.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._decomp.decompositions_for_jvp")
