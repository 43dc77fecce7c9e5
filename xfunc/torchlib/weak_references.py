"""Weak references to tensors.

NOTE [tensors that C++ holds]: when Python's last reference to a tensor goes, but an owner in C++
stays, such as autograd's graph, the owner keeps the Python object too. A weak reference still leads
there, and torch must be told of the new reference: otherwise it frees the object with its owner.
"""

# torch does not declare these in its type stubs.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import weakref
from typing import Any

import torch

_tell: Any = torch.Tensor._fix_weakref


def held(ref: weakref.ref[torch.Tensor]) -> torch.Tensor | None:
    """What a weak reference to a tensor leads to: see NOTE [tensors that C++ holds]."""
    found = ref()
    return None if found is None else hold(found)


def hold(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that Python has found without a reference to it, likewise."""
    with torch._C.DisableTorchFunction():
        _tell(tensor)
    return tensor
