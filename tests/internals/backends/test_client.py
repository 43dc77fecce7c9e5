"""`xfunc.backends.pjrt.client`: JAX as a library that may be missing."""

from __future__ import annotations

import inspect
import sys

import pytest

from xfunc.backends.pjrt import client

pytestmark = pytest.mark.usefixtures("pjrt")


def test_client_library_without_jax_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r"needs JAX(.|\n)*pip install 'xfunc\[pjrt\]'"):
        inspect.unwrap(client.library)()
