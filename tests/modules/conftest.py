"""Fixtures of the tests of `xf.functional`."""

import pytest


@pytest.fixture
def seeded() -> None:
    """Weights are drawn alike each time."""
    import torch

    torch.manual_seed(0)
