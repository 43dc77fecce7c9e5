"""`xfunc.backends.pjrt.executable_cache`: damaged files of compiled programs."""

import hashlib
from pathlib import Path

import pytest
import torch

from tests.backends.test_pjrt_compilations import X, run
from tests.backends.test_pjrt_compilations import folder as folder
from xfunc.backends.pjrt import executable_cache

pytestmark = pytest.mark.usefixtures("pjrt")


def test_stored_unreadable_file_is_rewritten(folder: Path) -> None:
    def fun(x: torch.Tensor) -> torch.Tensor:
        return x * 7 - 2

    run(fun, X)
    (file,) = folder.iterdir()
    data = b"{}\n\x80\x04\x8e" + b"\xff" * 8  # a pickle of bytes, longer than memory
    file.write_bytes(hashlib.sha256(file.stem.encode() + data).digest() + data)
    assert executable_cache.load(file, [], []) is None
    for wanted in (1, 0):
        compiles, found = run(fun, X)
        assert compiles == wanted
        torch.testing.assert_close(found, fun(X))
