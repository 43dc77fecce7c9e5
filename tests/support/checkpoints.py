"""What tests of checkpoints have in common."""

import pytest
import torch

import xfunc as xf

SHAPE = xf.ShapeDtypeStruct
QUIETLY = pytest.mark.filterwarnings("ignore::UserWarning")  # torch warns of a single process


def check(found, expected):
    """Whether two trees are equal, in values, dtypes and types of numbers."""
    pairs = zip(xf.tree.leaves(found), xf.tree.leaves(expected), strict=True)
    assert xf.tree.structure(found) == xf.tree.structure(expected)
    for a, b in pairs:
        if isinstance(b, torch.Tensor):
            assert isinstance(a, torch.Tensor)
            assert a.dtype == b.dtype
            assert torch.equal(a.cpu(), b.cpu())
        else:
            assert type(a) is type(b)
            assert a == b
