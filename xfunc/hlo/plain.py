"""Tensors that hold numbers for HLO, whatever trace or transform they are made in."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
# torch has no public name for this.
from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch


@contextlib.contextmanager
def plain_tensors() -> Generator[None]:
    """Create tensors that no transform wraps and no function mode sees."""
    with torch._C.DisableTorchFunction(), torch._C._DisableFuncTorch():
        yield
