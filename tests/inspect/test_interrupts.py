"""Ctrl-C while programs are traced and run, as debugging.md says."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest
import torch

import xfunc as xf


def steps(x: torch.Tensor) -> torch.Tensor:
    return xf.fori_loop(0, 50, lambda _, y: torch.sin(y), x)


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    """Python's own, which processes of pytest-xdist do not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("anew", [False, True], ids=["running", "tracing too"])
def test_everything_works_after_an_interrupt(anew: bool) -> None:
    program, x = xf.jit(steps), torch.ones(1000)
    want = program(x).tolist()
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt, match=r"^$"):  # noqa: PT012
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()
            for _ in range(100 if anew else 10_000):
                if anew:
                    program.clear_cache()
                program(x)
        assert program(x).tolist() == want
