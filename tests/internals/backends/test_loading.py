"""`xfunc.backends.torch_xla.loading`: torch's compilers while torch_xla is imported."""

from __future__ import annotations

import pytest

from tests.backends.test_loading import SETTINGS, printed
from tests.support.fresh import Server

pytestmark = pytest.mark.torch_xla


def test_loading_dynamo_while_torch_xla_is_imported(fresh: Server) -> None:
    """Whoever asks for `torch._dynamo` in the meantime gets the real one."""
    code = (
        """
import importlib, sys, torch
from xfunc.backends.torch_xla import loading
with loading._dynamo_unchanged():
    assert "torch._dynamo" not in sys.modules
    torch._dynamo.config.specialize_float = True
    assert torch._dynamo.optimize is importlib.import_module("torch._dynamo").optimize
"""
        + SETTINGS
    )
    assert printed(fresh, code) == ["True", "False"]
