"""The search for leaked values at the end of a trace, interrupted."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import xfunc as xf
from tests.support.functions import vector
from xfunc.errors import LeakError
from xfunc.trace import leaks

pytestmark = [pytest.mark.usefixtures("alive_afterwards"), pytest.mark.quick]

_kept: list[torch.Tensor] = []


def _leak_list(x: torch.Tensor) -> Any:
    _kept.append(x * 2)
    return x


@pytest.mark.parametrize("leak", [False, True])
@pytest.mark.parametrize("where", ["end", "_empty_tokens", "_survivors"])
def test_trace_end_interrupted_restores_state(
    where: str, leak: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C may come while a trace is closed: everything is as before it."""
    whole = getattr(leaks.Made, where)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(leaks.Made, where, whole)
        raise KeyboardInterrupt

    monkeypatch.setattr(leaks.Made, where, interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        xf.jit(_leak_list if leak else lambda x: x * 2)(vector())
    assert xf.jit(lambda x: x * 3)(vector()).tolist() == [3.0, 6.0, 9.0]
    if "torch_xla" in sys.modules:
        assert (vector().to("xla") * 2).tolist() == [2.0, 4.0, 6.0]
    with ThreadPoolExecutor(1) as pool:  # The lock is free.
        assert pool.submit(xf.jit(lambda x: x * 5), vector()).result().tolist() == [5.0, 10.0, 15.0]
    if leak:
        with pytest.raises(LeakError, match=r"made by Tensor\.mul, outlived its trace"):
            _ = _kept.pop() + 1
